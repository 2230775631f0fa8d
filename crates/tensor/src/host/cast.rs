//! Conversion between dtypes.

use crate::dtype::Buffer;
use crate::{DType, Error, HostTensor, Result};
use half::{bf16, f16};
use num_complex::Complex;
use num_traits::AsPrimitive;

impl HostTensor {
    /// Converts the elements to the given dtype, with the rules of Rust's `as`.
    ///
    /// When floats are converted to integers, the fraction is dropped, and values out of range saturate. Integers wrap.
    /// A bool becomes 0 or 1, and any number other than 0 becomes `true`. A complex number that becomes a real number
    /// loses its imaginary part.
    ///
    /// # Errors
    /// - [`Error::UnsupportedDType`]: exactly one of the two dtypes is string.
    pub fn cast(&self, dtype: DType) -> Result<HostTensor> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        if dtype == DType::String || self.dtype() == DType::String {
            return Err(Error::UnsupportedDType { operation: "cast", dtype: DType::String });
        }
        let buffer = match self.buffer() {
            Buffer::F16(v) => from(v, dtype),
            Buffer::Bf16(v) => from(v, dtype),
            Buffer::F32(v) => from(v, dtype),
            Buffer::F64(v) => from(v, dtype),
            Buffer::I8(v) => from(v, dtype),
            Buffer::U8(v) => from(v, dtype),
            Buffer::I16(v) => from(v, dtype),
            Buffer::U16(v) => from(v, dtype),
            Buffer::I32(v) => from(v, dtype),
            Buffer::U32(v) => from(v, dtype),
            Buffer::I64(v) => from(v, dtype),
            Buffer::U64(v) => from(v, dtype),
            Buffer::Bool(v) => from(&v.iter().map(|x| u8::from(*x)).collect::<Vec<_>>(), dtype),
            Buffer::C64(v) => from_complex(v, dtype),
            Buffer::C128(v) => from_complex(v, dtype),
            Buffer::String(_) => None,
        };
        let unsupported = Error::UnsupportedDType { operation: "cast", dtype };
        HostTensor::from_buffer(buffer.ok_or(unsupported)?, self.dims())
    }
}

fn to<S: AsPrimitive<T>, T: Copy + 'static>(v: &[S]) -> Vec<T> {
    v.iter().map(|x| x.as_()).collect()
}

/// Converts real numbers to any dtype except string, for which it returns `None`.
fn from<S>(v: &[S], dtype: DType) -> Option<Buffer>
where
    S: Copy
        + PartialEq
        + Default
        + AsPrimitive<f16>
        + AsPrimitive<bf16>
        + AsPrimitive<f32>
        + AsPrimitive<f64>,
    S: AsPrimitive<i8>
        + AsPrimitive<u8>
        + AsPrimitive<i16>
        + AsPrimitive<u16>
        + AsPrimitive<i32>
        + AsPrimitive<u32>,
    S: AsPrimitive<i64> + AsPrimitive<u64>,
{
    Some(match dtype {
        DType::F16 => Buffer::F16(to(v)),
        DType::Bf16 => Buffer::Bf16(to(v)),
        DType::F32 => Buffer::F32(to(v)),
        DType::F64 => Buffer::F64(to(v)),
        DType::I8 => Buffer::I8(to(v)),
        DType::U8 => Buffer::U8(to(v)),
        DType::I16 => Buffer::I16(to(v)),
        DType::U16 => Buffer::U16(to(v)),
        DType::I32 => Buffer::I32(to(v)),
        DType::U32 => Buffer::U32(to(v)),
        DType::I64 => Buffer::I64(to(v)),
        DType::U64 => Buffer::U64(to(v)),
        DType::Bool => Buffer::Bool(v.iter().map(|x| *x != S::default()).collect()),
        DType::C64 => Buffer::C64(v.iter().map(|x| Complex::new(x.as_(), 0.0)).collect()),
        DType::C128 => Buffer::C128(v.iter().map(|x| Complex::new(x.as_(), 0.0)).collect()),
        DType::String => return None,
    })
}

/// Converts complex numbers to any dtype except string, for which it returns `None`.
fn from_complex<F: AsPrimitive<f32> + AsPrimitive<f64>>(v: &[Complex<F>], dtype: DType) -> Option<Buffer> {
    let wide = |x: &F| -> f64 { x.as_() };
    match dtype {
        DType::C64 => Some(Buffer::C64(v.iter().map(|x| Complex::new(x.re.as_(), x.im.as_())).collect())),
        DType::C128 => Some(Buffer::C128(v.iter().map(|x| Complex::new(x.re.as_(), x.im.as_())).collect())),
        DType::Bool => {
            Some(Buffer::Bool(v.iter().map(|x| wide(&x.re) != 0.0 || wide(&x.im) != 0.0).collect()))
        }
        real => from(&v.iter().map(|x| wide(&x.re)).collect::<Vec<_>>(), real),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_numeric_dtype_casts_to_every_other_and_back() {
        let small = HostTensor::vector(vec![0u8, 1, 3, 100]);
        let numeric: Vec<DType> =
            DType::ALL.into_iter().filter(|d| !matches!(d, DType::String | DType::Bool)).collect();
        for a in &numeric {
            for b in &numeric {
                let there = small.cast(*a).unwrap().cast(*b).unwrap();
                assert_eq!(there.dtype(), *b);
                assert_eq!(there.cast(DType::U8).unwrap(), small, "{a} to {b}");
            }
            let truth = small.cast(*a).unwrap().cast(DType::Bool).unwrap();
            assert_eq!(truth, HostTensor::vector(vec![false, true, true, true]), "{a}");
            assert_eq!(
                truth.cast(*a).unwrap().cast(DType::U8).unwrap(),
                HostTensor::vector(vec![0u8, 1, 1, 1])
            );
        }
    }

    #[test]
    fn strings_do_not_cast() {
        let text = HostTensor::scalar(b"1".to_vec());
        assert!(matches!(text.cast(DType::I32), Err(Error::UnsupportedDType { dtype: DType::String, .. })));
        assert!(matches!(HostTensor::scalar(1i32).cast(DType::String), Err(Error::UnsupportedDType { .. })));
        assert!(text.cast(DType::String).is_ok());
    }

    #[test]
    fn wide_integers_are_rounded_once() {
        // A conversion through f64 would round twice, and end one step lower.
        let x = (1i64 << 60) + (1 << 36) + 1;
        let got = HostTensor::scalar(x).cast(DType::F32).unwrap().item::<f32>().unwrap();
        assert_eq!(got, x as f32);
    }
}
