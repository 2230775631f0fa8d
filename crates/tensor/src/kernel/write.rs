//! Writes to a tensor: assignment, addition and other operations on each element.

use super::{Sum, Summand};
use half::{bf16, f16};
use num_complex::{Complex32, Complex64};

/// An operation that a write applies to an existing element and a new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// Assigns the new value.
    Assign,
    /// Adds the new value to the element; integers wrap.
    Add,
    /// Subtracts the new value from the element; integers wrap.
    Sub,
    /// Multiplies the element by the new value; integers wrap.
    Mul,
    /// Divides the element by the new value; integers round towards zero.
    Div,
    /// Keeps the smaller of the element and the new value.
    Min,
    /// Keeps the larger of the element and the new value.
    Max,
}

/// An element that supports arithmetic.
pub trait Arithmetic: Summand {
    /// Returns `self + other`; integers wrap.
    #[inline(always)]
    fn added(self, other: Self) -> Self {
        Self::narrow(self.widen().plus(other.widen()))
    }
    /// Returns `self - other`; integers wrap.
    fn minus(self, other: Self) -> Self;
    /// Returns `self * other`; integers wrap.
    fn multiplied(self, other: Self) -> Self;
    /// Returns `self / other`, or `None` if an integer would be divided by 0.
    fn divided(self, other: Self) -> Option<Self>;
    /// Returns whether `self < other`, or `None` for complex numbers, which have no order.
    fn less(self, other: Self) -> Option<bool>;
}

impl Write {
    /// Returns the operation for elements of type `T`, or `None` if the type does not support it. An integer that would
    /// be divided by 0 stays unchanged; [`check`](Self::check) finds such divisors.
    pub fn of<T: Arithmetic>(self) -> Option<fn(T, T) -> T> {
        let ordered = T::default().less(T::default()).is_some();
        Some(match self {
            Write::Assign => |_, new| new,
            Write::Add => T::added,
            Write::Sub => T::minus,
            Write::Mul => T::multiplied,
            // Divisors are checked before anything is written.
            Write::Div => |old, new| old.divided(new).unwrap_or(old),
            Write::Min if ordered => |old, new| if new.less(old) == Some(true) { new } else { old },
            Write::Max if ordered => |old, new| if old.less(new) == Some(true) { new } else { old },
            Write::Min | Write::Max => return None,
        })
    }
}

/// Applies `operation` to each pair of elements in `to` and `from`, and stores the results in `to`.
///
/// # Panics
/// Panics if the lengths differ.
pub fn write<T: Copy>(to: &mut [T], from: &[T], operation: impl Fn(T, T) -> T) {
    assert_eq!(to.len(), from.len(), "both sides of a write");
    to.iter_mut().zip(from).for_each(|(to, from)| *to = operation(*to, *from));
}

/// Applies `operation` to each of the given `rows` of a table and the row at the same position in `from`, one after
/// another, and stores the results in the table. A row that occurs twice is written twice.
///
/// # Panics
/// Panics if a row index is outside the table.
pub fn write_rows<T: Copy>(table: &mut [T], rows: &[usize], from: &[T], operation: impl Fn(T, T) -> T) {
    let width = from.len().checked_div(rows.len()).unwrap_or(0);
    for (i, row) in rows.iter().enumerate() {
        write(&mut table[row * width..(row + 1) * width], &from[i * width..(i + 1) * width], &operation);
    }
}

macro_rules! arithmetic {
    (ints $($int:ty)*; floats $($float:ty)*; complex $($complex:ty)*) => {
        $(impl Arithmetic for $int {
            #[inline(always)]
            fn minus(self, other: Self) -> Self { self.wrapping_sub(other) }
            #[inline(always)]
            fn multiplied(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn divided(self, other: Self) -> Option<Self> { (other != 0).then(|| self.wrapping_div(other)) }
            #[inline(always)]
            fn less(self, other: Self) -> Option<bool> { Some(self < other) }
        })*
        $(impl Arithmetic for $float {
            #[inline(always)]
            fn minus(self, other: Self) -> Self { self - other }
            #[inline(always)]
            fn multiplied(self, other: Self) -> Self { self * other }
            #[inline(always)]
            fn divided(self, other: Self) -> Option<Self> { Some(self / other) }
            #[inline(always)]
            fn less(self, other: Self) -> Option<bool> { Some(self < other) }
        })*
        $(impl Arithmetic for $complex {
            #[inline(always)]
            fn minus(self, other: Self) -> Self { self - other }
            #[inline(always)]
            fn multiplied(self, other: Self) -> Self { self * other }
            #[inline(always)]
            fn divided(self, other: Self) -> Option<Self> { Some(self / other) }
            fn less(self, _: Self) -> Option<bool> { None }
        })*
    };
}
arithmetic! {
    ints i8 u8 i16 u16 i32 u32 i64 u64;
    floats f16 bf16 f32 f64;
    complex Complex32 Complex64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written<T: Arithmetic>(operation: Write, mut to: Vec<T>, from: &[T]) -> Vec<T> {
        write(&mut to, from, operation.of::<T>().unwrap());
        to
    }

    #[test]
    fn each_operation_has_its_effect() {
        let (to, from) = (vec![7i32, -7, 3], [2, 2, 5]);
        for (operation, expected) in [
            (Write::Assign, [2, 2, 5]),
            (Write::Add, [9, -5, 8]),
            (Write::Sub, [5, -9, -2]),
            (Write::Mul, [14, -14, 15]),
            (Write::Div, [3, -3, 0]),
            (Write::Min, [2, -7, 3]),
            (Write::Max, [7, 2, 5]),
        ] {
            assert_eq!(written(operation, to.clone(), &from), expected, "{operation:?}");
        }
        assert_eq!(written(Write::Add, vec![i8::MAX], &[1]), [i8::MIN]);
        assert_eq!(written(Write::Div, vec![i8::MIN], &[-1]), [i8::MIN]);
        assert!(Write::Min.of::<Complex32>().is_none() && Write::Div.of::<Complex32>().is_some());
    }

    // SC-2
    #[test]
    fn a_row_that_occurs_twice_is_written_twice() {
        let mut table = [1f32, 2., 3.];
        write_rows(&mut table, &[1, 1], &[2., 4.], |a, b| a * b);
        assert_eq!(table, [1., 16., 3.]);
    }
}
