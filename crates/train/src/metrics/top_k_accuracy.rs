//! The fraction of examples whose label is among the classes with the largest scores.

use super::counts::{Counts, numbers};
use candle_core::Tensor;
use distribute_base::{Error, Result};
use distribute_core::{Strategy, Variable};

/// The fraction of examples whose label is among the k classes with the largest scores.
///
/// If one of several classes with equal scores is among the k classes, they all are, as in TensorFlow. A row with a
/// score that is infinite or NaN counts as wrong.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Tensor};
/// use distribute::metrics::TopKAccuracy;
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let accuracy = TopKAccuracy::new(&strategy, "top-2", 2)?;
/// strategy.run((), |_, ()| {
///     let scores = Tensor::new(&[[0.1f32, 0.2, 0.7], [0.5, 0.4, 0.1]], &Device::Cpu)?;
///     accuracy.update(&scores, &Tensor::new(&[1u32, 2], &Device::Cpu)?)
/// })?;
/// assert_eq!(accuracy.result()?, 0.5);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.keras.metrics.SparseTopKCategoricalAccuracy")]
#[doc(alias = "SparseTopKCategoricalAccuracy")]
#[doc(alias = "tf.math.in_top_k")]
#[derive(Clone, Debug)]
pub struct TopKAccuracy {
    k: usize,
    /// The number of correct examples, and the number of all.
    counts: Counts,
}

impl TopKAccuracy {
    /// Creates an empty metric whose variable is named `name`.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: `k` is 0.
    /// - The errors of [`Mean::new`](super::Mean::new).
    pub fn new(strategy: &Strategy, name: &str, k: usize) -> Result<Self> {
        if k == 0 {
            return Err(Error::invalid(
                "TopKAccuracy::new",
                "k is 0, so that no class is correct; use at least 1",
            ));
        }
        Ok(Self { k, counts: Counts::new(strategy, name, &[2])? })
    }

    /// Adds examples. `scores` are logits or probabilities of shape `[n, classes]`, `labels` integers of shape `[n]`.
    ///
    /// # Errors
    /// Nothing is counted after an error.
    /// - [`Error::InvalidArgument`]: the shapes do not match, or a label is not one of the classes.
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): called outside `run`.
    /// - The errors of writing a variable: see [`Variable`].
    #[track_caller]
    pub fn update(&self, scores: &Tensor, labels: &Tensor) -> Result<()> {
        const OPERATION: &str = "TopKAccuracy::update";
        if scores.rank() != 2 || labels.dims() != &scores.dims()[..1] {
            let (scores, labels) = (scores.dims(), labels.dims());
            let reason =
                format!("scores have shape {scores:?}, labels {labels:?}; pass [n, classes] and [n]");
            return Err(Error::invalid(OPERATION, reason));
        }
        let (classes, scores, labels) = (scores.dim(1)?, numbers(scores)?, numbers(labels)?);
        let mut correct = 0.;
        for (row, label) in labels.iter().enumerate() {
            let scores = &scores[row * classes..][..classes];
            if !(*label >= 0. && *label < classes as f64 && label.fract() == 0.) {
                let reason =
                    format!("row {row} has the label {label}, which is not one of {classes} classes");
                return Err(Error::invalid(OPERATION, reason));
            }
            correct += f64::from(u8::from(is_in_top_k(scores, *label as usize, self.k)));
        }
        self.counts.add(vec![correct, labels.len() as f64])
    }

    /// Returns the fraction of correct examples of all replicas; 0 if there are none.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): the call is inside `run`.
    /// - The errors of [`Variable::read`]. With several workers, all must make this call.
    pub fn result(&self) -> Result<f64> {
        let counts = self.counts.total("TopKAccuracy::result")?;
        Ok(counts[0] / counts[1].max(1.))
    }

    /// Resets the counts of this worker's replicas. With several workers, all must make this call.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): the call is inside `run`.
    #[track_caller]
    pub fn reset(&self) -> Result<()> {
        self.counts.reset("TopKAccuracy::reset")
    }

    /// Returns the variable with the counts, f64 `[2]`: correct examples, and all.
    pub fn variable(&self) -> &Variable {
        self.counts.variable()
    }
}

/// Returns whether all scores are finite and fewer than `k` classes have a larger score than `label`.
fn is_in_top_k(scores: &[f64], label: usize, k: usize) -> bool {
    let larger = scores.iter().filter(|score| **score > scores[label]).count();
    scores.iter().all(|score| score.is_finite()) && larger < k
}

#[cfg(test)]
mod tests {
    use super::*;

    // The results of keras.metrics.sparse_top_k_categorical_accuracy of Keras 3.15, except for the last row, for which
    // those of its backends differ.
    #[test]
    fn equal_scores_are_all_in_the_top_k() {
        let rows = [
            [0.1, 0.2, 0.3, 0.4],
            [0.4, 0.3, 0.2, 0.1],
            [0.5; 4],
            [0.2, 0.2, 0.3, 0.3],
            [f64::NAN, 1., 2., 3.],
        ];
        let labels = [2, 3, 3, 1, 3];
        for (k, expected) in [
            (1, [false, false, true, false, false]),
            (2, [true, false, true, false, false]),
            (3, [true, false, true, true, false]),
            (5, [true, true, true, true, false]),
        ] {
            let found: Vec<bool> =
                rows.iter().zip(labels).map(|(row, label)| is_in_top_k(row, label, k)).collect();
            assert_eq!(found, expected, "{k}");
        }
    }
}
