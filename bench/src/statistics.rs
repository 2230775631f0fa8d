//! The median and the spread of rounds.

/// A summary of the values of several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The median of the values.
    pub median: f64,
    /// The interquartile range of the values.
    pub spread: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl Summary {
    /// Summarizes values. If there are none, all fields are NaN.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |q: f64| quantile(&sorted, q);
        Self { median: at(0.5), spread: at(0.75) - at(0.25), min: at(0.), max: at(1.) }
    }
}

/// Returns a quantile of sorted values, with linear interpolation between neighbouring values. If there are no values,
/// returns NaN.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = q * last as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_quartiles_lie_between_neighbours() {
        let summary = Summary::of(&[4., 1., 3., 2.]);
        assert_eq!(summary, Summary { median: 2.5, spread: 1.5, min: 1., max: 4. });
    }

    #[test]
    fn one_value_has_no_spread() {
        assert_eq!(Summary::of(&[7.]), Summary { median: 7., spread: 0., min: 7., max: 7. });
    }
}
