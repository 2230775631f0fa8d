//! The loop over elements that all formulas share.

// - INV-11: enforced here. Tests: `optim/tests/it/properties.rs`, `ps-tables/src/table/tests.rs`.

use std::ops::Range;

use crate::Float;

/// A range of a variable, and its gradient; `None` for a gradient of zeros.
#[doc(hidden)]
#[derive(Debug)]
pub struct Span<'g, F> {
    pub(crate) at: Range<usize>,
    pub(crate) grad: Option<&'g [F]>,
}

mod sealed {
    pub trait Sealed {}
    impl<T, const N: usize> Sealed for [T; N] {}
}

/// An array with one `T` for each slot of a rule, of zero to three elements.
///
/// The trait is sealed. The loop is implemented for each length, so that the compiler vectorizes it.
pub trait Slots<T>: Sized + sealed::Sealed {
    /// The number of slots.
    const COUNT: usize;

    /// Creates an array of the results of `make`, which is called with the index of each slot.
    fn of(make: impl FnMut(usize) -> T) -> Self;

    /// Converts the array to a vector.
    fn into_vec(self) -> Vec<T>;

    /// Applies `kernel` to all elements of all spans. The caller must have checked lengths and ranges.
    #[doc(hidden)]
    fn sweep<'g>(
        var: &mut [T],
        slots: &mut [&mut [T]],
        spans: impl Iterator<Item = Span<'g, T>>,
        kernel: impl Fn(T, T, Self) -> (T, Self),
    ) where
        T: Float;
}

macro_rules! slots {
    ($count:literal, $var:ident $($slot:ident)*, $element:pat) => {
        impl<T: Copy> Slots<T> for [T; $count] {
            const COUNT: usize = $count;

            fn of(make: impl FnMut(usize) -> T) -> Self {
                std::array::from_fn(make)
            }

            fn into_vec(self) -> Vec<T> {
                self.to_vec()
            }

            fn sweep<'g>(
                var: &mut [T],
                slots: &mut [&mut [T]],
                spans: impl Iterator<Item = Span<'g, T>>,
                kernel: impl Fn(T, T, Self) -> (T, Self),
            ) where
                T: Float,
            {
                // Callers have checked the number against COUNT.
                let [$($slot),*] = slots else { return };
                for Span { at, grad } in spans {
                    let state = var[at.clone()].iter_mut()$(.zip($slot[at.clone()].iter_mut()))*;
                    match grad {
                        Some(grad) => state.zip(grad).for_each(|($element, &grad)| {
                            (*$var, [$(*$slot),*]) = kernel(*$var, grad, [$(*$slot),*]);
                        }),
                        None => state.for_each(|$element| {
                            (*$var, [$(*$slot),*]) = kernel(*$var, T::ZERO, [$(*$slot),*]);
                        }),
                    }
                }
            }
        }
    };
}
slots!(0, w, w);
slots!(1, w a, (w, a));
slots!(2, w a b, ((w, a), b));
slots!(3, w a b c, (((w, a), b), c));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_visit_their_ranges_only_and_none_is_a_gradient_of_zero() {
        let (mut var, mut a, mut b, mut c) = ([1.0f32; 5], [2.0f32; 5], [3.0f32; 5], [4.0f32; 5]);
        let spans = [Span { at: 0..2, grad: Some(&[10.0, 20.0][..]) }, Span { at: 3..4, grad: None }];
        <[f32; 3]>::sweep(
            &mut var,
            &mut [&mut a, &mut b, &mut c],
            spans.into_iter(),
            |var, grad, [a, b, c]| (var + grad, [a + grad + 1.0, b + 2.0, c + 3.0]),
        );
        assert_eq!(var, [11.0, 21.0, 1.0, 1.0, 1.0]);
        assert_eq!(a, [13.0, 23.0, 2.0, 3.0, 2.0]);
        assert_eq!(b, [5.0, 5.0, 3.0, 5.0, 3.0]);
        assert_eq!(c, [7.0, 7.0, 4.0, 7.0, 4.0]);
    }
}
