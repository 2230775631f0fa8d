//! [`Auc`]: the area under the ROC curve, computed from counts at fixed thresholds.

use super::counts::{Counts, pairs, require_probability};
use candle_core::Tensor;
use distribute_base::{Error, Result};
use distribute_core::{Strategy, Variable};

/// The distance by which the first threshold is below 0 and the last is above 1, as in TensorFlow.
const EDGE: f64 = 1e-7;

/// The area under the receiver operating characteristic (ROC) curve: the probability that a positive example has a
/// larger prediction than a negative one.
///
/// The area is computed as in TensorFlow: from true and false positive rates at evenly spaced thresholds from 0 to 1
/// (200 by default), with linear interpolation. Predictions between the same two thresholds are treated as equal, so
/// the error is small unless many predictions are close together. Without positive examples, or without negative
/// examples, the area is 0.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Tensor};
/// use distribute::metrics::Auc;
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let auc = Auc::new(&strategy, "auc")?;
/// strategy.run((), |_, ()| {
///     let predictions = Tensor::new(&[0f32, 0.5, 0.3, 0.9], &Device::Cpu)?;
///     auc.update(&predictions, &Tensor::new(&[0u8, 0, 1, 1], &Device::Cpu)?)
/// })?;
/// assert_eq!(auc.result()?, 0.75);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.keras.metrics.AUC")]
#[derive(Clone, Debug)]
pub struct Auc {
    thresholds: Vec<f64>,
    /// The number of predictions above each threshold and not above the next one: first for negative examples, then for
    /// positive examples.
    counts: Counts,
}

impl Auc {
    /// Creates an empty metric with 200 thresholds, whose variable is named `name`.
    ///
    /// # Errors
    /// Returns the errors of [`Mean::new`](super::Mean::new).
    pub fn new(strategy: &Strategy, name: &str) -> Result<Self> {
        Self::with_thresholds(strategy, name, 200)
    }

    /// Creates an empty metric with the given number of thresholds.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: there are fewer than 2 thresholds.
    /// - The errors of [`Auc::new`].
    pub fn with_thresholds(strategy: &Strategy, name: &str, thresholds: usize) -> Result<Self> {
        if thresholds < 2 {
            let reason = format!("{thresholds} thresholds do not make a curve; use at least 2");
            return Err(Error::invalid("Auc::with_thresholds", reason));
        }
        Ok(Self {
            thresholds: self::thresholds(thresholds),
            counts: Counts::new(strategy, name, &[2, thresholds])?,
        })
    }

    /// Adds examples. Each prediction must be between 0 and 1. `labels` must have the same shape; a nonzero label marks
    /// a positive example.
    ///
    /// # Errors
    /// Nothing is counted after an error.
    /// - [`Error::InvalidArgument`]: the shapes differ.
    /// - [`Error::InvalidArgument`]: a prediction is out of range. The error names the first such prediction.
    /// - [`Error::WrongContext`]: called outside `run`.
    /// - The errors of writing a variable: see [`Variable`].
    #[track_caller]
    pub fn update(&self, predictions: &Tensor, labels: &Tensor) -> Result<()> {
        const OPERATION: &str = "Auc::update";
        let mut counts = vec![0.; 2 * self.thresholds.len()];
        let pairs = pairs(OPERATION, ["predictions", "labels"], predictions, labels)?;
        for (place, (prediction, label)) in pairs.enumerate() {
            require_probability(OPERATION, place, prediction)?;
            // The first threshold is below every prediction.
            let below = self.thresholds.partition_point(|threshold| *threshold < prediction) - 1;
            counts[below + if label == 0. { 0 } else { self.thresholds.len() }] += 1.;
        }
        self.counts.add(counts)
    }

    /// Returns the area, over the examples of all replicas.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): called inside `run`.
    /// - The errors of [`Variable::read`]. With several workers, all must make this call.
    pub fn result(&self) -> Result<f64> {
        let counts = self.counts.total("Auc::result")?;
        let (negative, positive) = counts.split_at(self.thresholds.len());
        Ok(area(negative, positive))
    }

    /// Resets the counts of this worker's replicas. With several workers, all must make this call.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): called inside `run`.
    #[track_caller]
    pub fn reset(&self) -> Result<()> {
        self.counts.reset("Auc::reset")
    }

    /// Returns the variable with the counts of negative and positive examples between thresholds, f64 `[2,
    /// thresholds]`.
    pub fn variable(&self) -> &Variable {
        self.counts.variable()
    }
}

fn thresholds(count: usize) -> Vec<f64> {
    let between = (1..count - 1).map(|i| i as f64 / (count - 1) as f64);
    // Predictions are mostly f32: one that equals a threshold is not above it.
    std::iter::once(-EDGE).chain(between.map(|t| f64::from(t as f32))).chain([1. + EDGE]).collect()
}

/// Computes the area under the curve with the trapezoidal rule, from the last threshold to the first. Returns 0 if a
/// class has no examples.
///
/// `negative` and `positive` contain the number of examples of each class between thresholds.
fn area(negative: &[f64], positive: &[f64]) -> f64 {
    let (negatives, positives) = (negative.iter().sum::<f64>(), positive.iter().sum::<f64>());
    if negatives == 0. || positives == 0. {
        return 0.;
    }
    let (mut above, mut area) = (0., 0.);
    for (false_positives, true_positives) in negative.iter().zip(positive).rev() {
        area += false_positives * (above + true_positives / 2.);
        above += true_positives;
    }
    area / (negatives * positives)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_tensorflows() {
        let thresholds = thresholds(5);
        assert_eq!(thresholds, [-1e-7, 0.25, 0.5, 0.75, 1. + 1e-7]);
    }

    #[test]
    fn area_of_few_counts_by_hand() {
        assert_eq!(area(&[1., 0.], &[0., 1.]), 1., "all positives above");
        assert_eq!(area(&[0., 1.], &[1., 0.]), 0.);
        assert_eq!(area(&[1., 1.], &[1., 1.]), 0.5);
        assert_eq!(area(&[3., 0.], &[0., 0.]), 0., "no positives");
    }
}
