//! Formatting of tensors as text, in the style of numpy.

use crate::{HostTensor, with_buffer};
use half::{bf16, f16};
use num_complex::{Complex32, Complex64};
use std::fmt::{Display, Formatter, Result, Write};

/// The maximum number of elements with which a tensor is printed completely.
const ALL: usize = 1000;
/// The number of entries that are printed at each end of a shortened axis.
const EDGE: usize = 3;

/// Prints a tensor, for example as `<Tensor: shape=(6,), dtype=int32, data=[1, 2, 3, 1, 2, 3]>`. Matrices take several
/// lines. If there are more than 1000 elements, only the first and last three along each axis are printed.
impl Display for HostTensor {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str("<Tensor: shape=")?;
        shape(f, self.dims())?;
        write!(f, ", dtype={}, data={}", self.dtype(), if self.rank() > 1 { "\n" } else { "" })?;
        with_buffer!(self.buffer(), v => nested(f, v, self.dims(), 0, v.len() > ALL))?;
        f.write_char('>')
    }
}

/// Prints a shape, such as `()`, `(6,)` or `(2, 3)`.
pub(crate) fn shape(f: &mut impl Write, dims: &[usize]) -> Result {
    let list = dims.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    write!(f, "({list}{})", if dims.len() == 1 { "," } else { "" })
}

fn nested<T: Show>(
    f: &mut impl Write,
    elements: &[T],
    dims: &[usize],
    depth: usize,
    shorten: bool,
) -> Result {
    let Some((len, inner)) = dims.split_first() else {
        return elements.iter().try_for_each(|x| x.show(f));
    };
    let step: usize = inner.iter().product();
    let separate = |f: &mut _| -> Result {
        if inner.is_empty() {
            return Write::write_str(f, ", ");
        }
        Write::write_char(f, ',')?;
        inner.iter().try_for_each(|_| Write::write_char(f, '\n'))?;
        (0..=depth).try_for_each(|_| Write::write_char(f, ' '))
    };
    f.write_char('[')?;
    let gap = if (shorten || *len > ALL) && *len > 2 * EDGE { EDGE..len - EDGE } else { 0..0 };
    // A filter would visit all indices, and an axis of an empty tensor may have too many for that.
    for i in (0..gap.start).chain(gap.end..*len) {
        if i > 0 {
            separate(f)?;
        }
        if i > 0 && i == gap.end {
            f.write_str("...")?;
            separate(f)?;
        }
        nested(f, &elements[i * step..(i + 1) * step], inner, depth + 1, shorten)?;
    }
    f.write_char(']')
}

/// An element that can be printed.
trait Show {
    fn show(&self, f: &mut impl Write) -> Result;
}

macro_rules! show {
    ($form:literal $($t:ty)*) => {$(
        impl Show for $t {
            fn show(&self, f: &mut impl Write) -> Result { write!(f, $form, self) }
        }
    )*};
}
show!("{}" i8 u8 i16 u16 i32 u32 i64 u64 bool);
show!("{:?}" f32 f64);

impl Show for f16 {
    fn show(&self, f: &mut impl Write) -> Result {
        self.to_f32().show(f)
    }
}

impl Show for bf16 {
    fn show(&self, f: &mut impl Write) -> Result {
        self.to_f32().show(f)
    }
}

impl Show for Complex32 {
    fn show(&self, f: &mut impl Write) -> Result {
        write!(f, "{:?}{:+?}i", self.re, self.im)
    }
}

impl Show for Complex64 {
    fn show(&self, f: &mut impl Write) -> Result {
        write!(f, "{:?}{:+?}i", self.re, self.im)
    }
}

impl Show for Vec<u8> {
    fn show(&self, f: &mut impl Write) -> Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn scalars_and_vectors_stand_on_one_line() {
        assert_eq!(HostTensor::scalar(6.0f32).to_string(), "<Tensor: shape=(), dtype=float32, data=6.0>");
        assert_eq!(
            HostTensor::vector(vec![1i32, 2, 3, 1, 2, 3]).to_string(),
            "<Tensor: shape=(6,), dtype=int32, data=[1, 2, 3, 1, 2, 3]>"
        );
        assert_eq!(
            HostTensor::vector(vec![b"a\"b".to_vec(), Vec::new()]).to_string(),
            "<Tensor: shape=(2,), dtype=string, data=[\"a\\\"b\", \"\"]>"
        );
        assert_eq!(
            HostTensor::scalar(Complex32::new(1.5, -2.0)).to_string(),
            "<Tensor: shape=(), dtype=complex64, data=1.5-2.0i>"
        );
        assert_eq!(
            HostTensor::vector(vec![0.1f32, 1e-7, f32::NAN]).to_string(),
            "<Tensor: shape=(3,), dtype=float32, data=[0.1, 1e-7, NaN]>"
        );
        assert_eq!(
            HostTensor::scalar(f16::from_f32(0.5)).to_string(),
            "<Tensor: shape=(), dtype=float16, data=0.5>"
        );
    }

    #[test]
    fn matrices_stand_over_several_lines() {
        let t = HostTensor::new((0..8).collect::<Vec<i64>>(), [2, 2, 2]).unwrap();
        assert_eq!(
            t.to_string(),
            "<Tensor: shape=(2, 2, 2), dtype=int64, data=\n[[[0, 1],\n  [2, 3]],\n\n [[4, 5],\n  [6, 7]]]>"
        );
    }

    #[test]
    fn empty_tensors_have_empty_brackets() {
        let t = HostTensor::zeros(DType::F32, [0]).unwrap();
        assert_eq!(t.to_string(), "<Tensor: shape=(0,), dtype=float32, data=[]>");
        let t = HostTensor::zeros(DType::F32, [0, 3]).unwrap();
        assert_eq!(t.to_string(), "<Tensor: shape=(0, 3), dtype=float32, data=\n[]>");
    }

    #[test]
    fn long_tensors_are_shortened() {
        let t = HostTensor::vector((0..1000).collect::<Vec<u16>>()).to_string();
        assert!(!t.contains("..."));
        let t = HostTensor::vector((0..1001).collect::<Vec<u16>>()).to_string();
        assert!(t.ends_with("data=[0, 1, 2, ..., 998, 999, 1000]>"), "{t}");
        let t = HostTensor::new((0..2000).collect::<Vec<u16>>(), [1000, 2]).unwrap().to_string();
        assert!(t.contains(" [4, 5],\n ...,\n [1994, 1995],"), "{t}");
    }
}
