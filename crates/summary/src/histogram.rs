//! Histograms as TensorBoard expects them: counts in buckets, each a tenth wider than the next one towards
//! zero.

use crate::event::Histogram;
use std::sync::LazyLock;

/// The limits of the buckets, in ascending order. The bucket of a limit contains the values that are below the limit,
/// and not below the previous one.
static LIMITS: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let small =
        std::iter::successors(Some(1e-12), |limit| Some(limit * 1.1)).take_while(|limit| *limit < 1e20);
    let positive: Vec<f64> = small.chain([f64::MAX]).collect();
    positive.iter().rev().map(|limit| -limit).chain([0.]).chain(positive.iter().copied()).collect()
});

/// Counts values in buckets. If a value is NaN or infinite, returns the first such value as the error.
pub(crate) fn counted(values: impl IntoIterator<Item = f64>) -> Result<Histogram, f64> {
    let mut counts = vec![0f64; LIMITS.len()];
    let (mut number, mut sum, mut sum_of_squares) = (0f64, 0f64, 0f64);
    let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        if !value.is_finite() {
            return Err(value);
        }
        let place = LIMITS.partition_point(|limit| *limit <= value).min(LIMITS.len() - 1);
        if let Some(count) = counts.get_mut(place) {
            *count += 1.;
        }
        (number, sum, sum_of_squares) = (number + 1., sum + value, value.mul_add(value, sum_of_squares));
        (min, max) = (min.min(value), max.max(value));
    }
    if number == 0. {
        (min, max) = (0., 0.);
    }
    // Empty buckets at both ends are left out. One below the first values is kept, so that their bucket has
    // two limits.
    let first = counts.iter().position(|count| *count > 0.).map_or(0, |first| first.saturating_sub(1));
    let last = counts.iter().rposition(|count| *count > 0.).unwrap_or(0);
    let part = |all: &[f64]| all.get(first..=last).unwrap_or_default().to_vec();
    let (limits, counts) = (part(&LIMITS), part(&counts));
    Ok(Histogram { min, max, number, sum, sum_of_squares, limits, counts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_in_the_bucket_whose_limits_are_around_it() {
        let near = LIMITS.iter().skip(1).take(LIMITS.len() - 2).flat_map(|limit| [*limit, limit * 1.01]);
        for value in near.chain([-0., 1e-13, -1e-13, 0.5, -0.5, 3., 1e19, -1e19, 1e30, -1e30]) {
            let found = counted([value]).unwrap();
            assert_eq!(found.counts, [0., 1.], "{value}");
            assert!((found.limits[0]..found.limits[1]).contains(&value), "{value}: {:?}", found.limits);
        }
        assert_eq!(counted([f64::MAX, f64::MIN]).unwrap().counts.iter().sum::<f64>(), 2.);
    }

    #[test]
    fn a_histogram_has_the_statistics_of_all_values() {
        let found = counted([1., -2., 0.5, 1.]).unwrap();
        assert_eq!(
            (found.min, found.max, found.number, found.sum, found.sum_of_squares),
            (-2., 1., 4., 0.5, 6.25)
        );
        assert_eq!(found.counts.iter().sum::<f64>(), 4.);
        assert!(found.limits.is_sorted_by(|a, b| a < b));
        assert!(found.counts.last().is_some_and(|count| *count == 2.), "the ones are in the last bucket");
    }

    #[test]
    fn of_no_values_there_is_an_empty_bucket() {
        let found = counted([]).unwrap();
        assert_eq!((found.min, found.max, found.number, found.counts), (0., 0., 0., vec![0.]));
    }

    #[test]
    fn values_in_no_bucket_are_reported() {
        assert_eq!(counted([1., f64::INFINITY]), Err(f64::INFINITY));
        assert!(counted([f64::NAN]).is_err_and(f64::is_nan));
    }
}
