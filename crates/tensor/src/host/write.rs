//! Writes to a tensor, with arithmetic operations.

use super::check_same;
use crate::dtype::Buffer;
use crate::kernel::{self, Arithmetic, Write};
use crate::with_buffer;
use crate::{Element, Error, HostTensor, Result};

impl HostTensor {
    /// Writes `value`, which must have the same dtype and shape, to this tensor element by element. After an error,
    /// this tensor is unchanged.
    ///
    /// # Errors
    /// - [`Error::ShapeMismatch`], [`Error::DTypeMismatch`]: `value` has a different shape or dtype.
    /// - [`Error::UnsupportedDType`]: the dtype does not support this operation. Bool and string can only be
    ///   assigned; complex numbers have no minimum and maximum.
    /// - [`Error::DivisionByZero`]: an integer would be divided by 0.
    pub fn write(&mut self, how: Write, value: &HostTensor) -> Result<()> {
        check_same(how.name(), (self.dtype(), self.dims()), (value.dtype(), value.dims()))?;
        self.buffer_mut().write(how, value.buffer())
    }
}

impl Buffer {
    /// Writes the elements of `from`, which must have the same dtype, to this buffer one by one. After an error, the
    /// buffer is unchanged.
    ///
    /// # Errors
    /// - [`Error::UnsupportedDType`]: the dtypes differ, or the dtype does not support this operation.
    /// - [`Error::DivisionByZero`]: an integer would be divided by 0.
    ///
    /// # Panics
    /// Panics if the number of elements differs.
    pub fn write(&mut self, how: Write, from: &Buffer) -> Result<()> {
        into(how, self, from, None)
    }

    /// Writes the rows in `from`, which must have the same dtype, to the given rows of this buffer, one after another.
    /// A row that occurs twice is written twice. The width of a row is the number of elements in `from`, divided by the
    /// number of `rows`. After an error, the buffer is unchanged.
    ///
    /// # Errors
    /// Returns the errors of [`write`](Self::write).
    ///
    /// # Panics
    /// Panics if a row does not exist.
    pub fn write_rows(&mut self, how: Write, rows: &[usize], from: &Buffer) -> Result<()> {
        into(how, self, from, Some(rows))
    }
}

impl HostTensor {
    /// Splits this tensor into `of` summands whose sum is the tensor, and returns the summand with the given index.
    ///
    /// For integers, the sum is exact: if there is a remainder, the first summands are larger by one, or smaller by one
    /// for a negative element. Floats are divided, so the sum may be rounded unless `of` is a power of two.
    ///
    /// # Errors
    /// - [`Error::UnsupportedDType`]: the dtype is bool or string.
    /// - [`Error::DivisionByZero`]: `of` is 0.
    pub fn share(&self, index: usize, of: usize) -> Result<HostTensor> {
        if of == 0 {
            return Err(Error::DivisionByZero { operation: "share" });
        }
        macro_rules! by_type {
            ($($variant:ident)*) => {
                match self.buffer() {
                    $(Buffer::$variant(elements) => {
                        let share = |x: &_| integer_share(*x as i128, index as i128, of as i128) as _;
                        Self::from_buffer(Buffer::$variant(elements.iter().map(share).collect()), self.dims())
                    })*
                    _ => self.divide(of as f64),
                }
            };
        }
        by_type!(I8 U8 I16 U16 I32 U32 I64 U64)
    }

    /// Returns whether the dtypes, the shapes and all bits are equal. NaN equals a NaN with the same bits, and 0 does
    /// not equal -0.
    pub fn same_bits(&self, other: &HostTensor) -> bool {
        if self.dims() != other.dims() {
            return false;
        }
        macro_rules! by_type {
            ($($variant:ident $bits:expr,)*) => {
                match (self.buffer(), other.buffer()) {
                    $((Buffer::$variant(a), Buffer::$variant(b)) => a.iter().map($bits).eq(b.iter().map($bits)),)*
                    (a, b) => a == b,
                }
            };
        }
        by_type! {
            F16 |x| x.to_bits(),
            Bf16 |x| x.to_bits(),
            F32 |x| x.to_bits(),
            F64 |x| x.to_bits(),
            C64 |x| (x.re.to_bits(), x.im.to_bits()),
            C128 |x| (x.re.to_bits(), x.im.to_bits()),
        }
    }
}

fn integer_share(value: i128, index: i128, of: i128) -> i128 {
    let (quotient, remainder) = (value / of, value % of);
    quotient + if index < remainder.abs() { remainder.signum() } else { 0 }
}

impl Write {
    /// Returns the name of the operation, for errors.
    pub const fn name(self) -> &'static str {
        match self {
            Write::Assign => "assign",
            Write::Add => "add",
            Write::Sub => "sub",
            Write::Mul => "mul",
            Write::Div => "div",
            Write::Min => "min",
            Write::Max => "max",
        }
    }

    /// Checks the new values before anything is written.
    ///
    /// # Errors
    /// - [`Error::DivisionByZero`]: an integer would be divided by 0.
    pub fn check<T: Arithmetic>(self, values: &[T]) -> Result<()> {
        if self == Write::Div && values.iter().any(|value| T::default().divided(*value).is_none()) {
            Err(Error::DivisionByZero { operation: self.name() })
        } else {
            Ok(())
        }
    }
}

fn into(how: Write, to: &mut Buffer, from: &Buffer, rows: Option<&[usize]>) -> Result<()> {
    let dtype = to.dtype();
    let unsupported = || Error::UnsupportedDType { operation: how.name(), dtype };
    macro_rules! by_type {
        ($($variant:ident)*) => {
            match (to, from) {
                $((Buffer::$variant(to), Buffer::$variant(from)) => {
                    how.check(from)?;
                    calculated(how, to, from, rows).ok_or_else(unsupported)
                })*
                (to, from) if how == Write::Assign => with_buffer!(to, to => assign(to, from, rows).ok_or_else(unsupported)),
                _ => Err(unsupported()),
            }
        };
    }
    by_type!(F16 Bf16 F32 F64 I8 U8 I16 U16 I32 U32 I64 U64 C64 C128)
}

/// Writes elements that support arithmetic. Returns `None` if their type does not support the operation `how`.
fn calculated<T: Arithmetic>(how: Write, to: &mut [T], from: &[T], rows: Option<&[usize]>) -> Option<()> {
    fn each<T: Copy>(to: &mut [T], from: &[T], rows: Option<&[usize]>, operation: impl Fn(T, T) -> T) {
        match rows {
            None => kernel::write(to, from, operation),
            Some(rows) => kernel::write_rows(to, rows, from, operation),
        }
    }
    match how {
        // The most frequent operations have their own loops, which become vector instructions.
        Write::Assign => each(to, from, rows, |_, new| new),
        Write::Add => each(to, from, rows, T::added),
        Write::Sub => each(to, from, rows, T::minus),
        _ => each(to, from, rows, how.of()?),
    }
    Some(())
}

/// Assigns elements that do not support arithmetic. Returns `None` if `from` has a different dtype.
fn assign<T: Element>(to: &mut [T], from: &Buffer, rows: Option<&[usize]>) -> Option<()> {
    let from = T::slice(from)?;
    match rows {
        None => to.clone_from_slice(from),
        Some(rows) => {
            let width = from.len().checked_div(rows.len()).unwrap_or(0);
            for (i, row) in rows.iter().enumerate() {
                to[row * width..(row + 1) * width].clone_from_slice(&from[i * width..(i + 1) * width]);
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, IndexedSlices};

    #[test]
    fn bool_and_string_are_assigned_and_not_added() {
        for mut tensor in
            [HostTensor::vector(vec![true, false]), HostTensor::vector(vec![b"a".to_vec(), b"b".to_vec()])]
        {
            let other = tensor.take_rows(&[1, 0]).unwrap();
            assert!(matches!(tensor.write(Write::Add, &other), Err(Error::UnsupportedDType { .. })));
            tensor.write(Write::Assign, &other).unwrap();
            assert_eq!(tensor, other);
            let row =
                IndexedSlices::new(tensor.take_rows(&[0]).unwrap(), HostTensor::vector(vec![1i64]), None);
            tensor.write_rows(Write::Assign, &row.unwrap()).unwrap();
            assert_eq!(tensor.row(0).unwrap(), tensor.row(1).unwrap());
        }
    }

    #[test]
    fn shares_add_up_to_the_whole() {
        let whole = HostTensor::vector(vec![7i32, -7, 8, 0]);
        for of in [1, 2, 3, 5] {
            let shares: Vec<_> = (0..of).map(|i| whole.share(i, of).unwrap()).collect();
            assert_eq!(
                HostTensor::reduce(crate::ReduceOp::Sum, &shares.iter().collect::<Vec<_>>()).unwrap(),
                whole
            );
        }
        assert_eq!(HostTensor::scalar(3f32).share(1, 2).unwrap(), HostTensor::scalar(1.5f32));
        assert!(HostTensor::scalar(true).share(0, 2).is_err());
        for whole in [HostTensor::scalar(3i32), HostTensor::scalar(3f32)] {
            assert!(matches!(whole.share(0, 0), Err(Error::DivisionByZero { .. })));
        }
    }

    #[test]
    fn bits_are_compared_as_bits() {
        let of = |x: f32| HostTensor::scalar(x);
        assert!(of(f32::NAN).same_bits(&of(f32::NAN)) && !of(0.).same_bits(&of(-0.)));
        assert!(
            !of(0.).same_bits(&HostTensor::scalar(0i32))
                && HostTensor::scalar(1u8).same_bits(&HostTensor::scalar(1u8))
        );
    }

    #[test]
    fn nothing_has_changed_after_an_error() {
        let mut tensor = HostTensor::vector(vec![4i32, 6]);
        let before = tensor.clone();
        assert!(matches!(
            tensor.write(Write::Div, &HostTensor::vector(vec![2, 0])),
            Err(Error::DivisionByZero { .. })
        ));
        assert!(tensor.write(Write::Add, &HostTensor::vector(vec![2])).is_err());
        assert!(tensor.write(Write::Add, &HostTensor::vector(vec![2f32, 0.])).is_err());
        for index in [-1i64, 2] {
            let rows = IndexedSlices {
                values: HostTensor::vector(vec![1, 1]),
                indices: HostTensor::vector(vec![0, index]),
                dense_shape: None,
            };
            assert!(matches!(tensor.write_rows(Write::Add, &rows), Err(Error::Index { .. })), "{index}");
        }
        assert_eq!(tensor, before);
        assert_eq!(tensor.dtype(), DType::I32);
    }
}
