//! Reductions of a row in several lanes, for SIMD. The order of additions depends only on the length of the row.

use distribute_base::internal::Number;

const LANES: usize = 16;

/// Returns the sum of `term(x, y)` over two rows of the same length.
#[inline(always)]
pub(super) fn sum<T: Number>(x: &[T], y: &[T], term: impl Fn(T, T) -> T) -> T {
    let mut lanes = [T::of(0.); LANES];
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in x.iter().zip(y) {
        for (lane, (x, y)) in lanes.iter_mut().zip(x.iter().zip(y)) {
            *lane = lane.plus(term(*x, *y));
        }
    }
    for (lane, (x, y)) in lanes.iter_mut().zip(x_rest.iter().zip(y_rest)) {
        *lane = lane.plus(term(*x, *y));
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        let (low, high) = lanes.split_at_mut(width);
        low.iter_mut().zip(high).for_each(|(low, high)| *low = low.plus(*high));
    }
    lanes[0]
}

/// Returns the largest element of a row. NaNs are ignored; if there is nothing else, the result is negative infinity.
pub(super) fn max<T: Number>(x: &[T]) -> T {
    let mut lanes = [T::of(f64::NEG_INFINITY); LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    let larger = |lane: T, x: T| if x > lane { x } else { lane };
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane = larger(*lane, *x));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, x)| *lane = larger(*lane, *x));
    lanes.into_iter().fold(T::of(f64::NEG_INFINITY), larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_counts_once() {
        for n in [0, 1, 2, 15, 16, 17, 33, 100] {
            let x: Vec<f64> = (0..n).map(|i| f64::from(i) - 40.).collect();
            assert_eq!(sum(&x, &x, |x, y| x + 2. * y), 3. * x.iter().sum::<f64>());
            for (place, largest) in x.iter().enumerate() {
                let mut x = x.clone();
                x[place] = largest + 1e3;
                assert_eq!(max(&x), largest + 1e3);
            }
        }
        assert_eq!(max::<f32>(&[]), f32::NEG_INFINITY);
        assert_eq!(max(&[f32::NAN, 1., f32::NAN]), 1.);
    }
}
