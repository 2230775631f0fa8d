//! The fraction of the examples predicted as positive that are positive.

use super::counts::{Confusion, Counts};
use candle_core::Tensor;
use distribute_base::Result;
use distribute_core::{Strategy, Variable};

/// The precision of a binary classifier: the fraction of the examples predicted as positive that are positive. It is 0
/// if no example was predicted as positive, as in TensorFlow.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Tensor};
/// use distribute::metrics::Precision;
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let precision = Precision::new(&strategy, "precision")?;
/// strategy.run((), |_, ()| {
///     let predictions = Tensor::new(&[0.9f32, 0.7, 0.2], &Device::Cpu)?;
///     precision.update(&predictions, &Tensor::new(&[1u32, 0, 1], &Device::Cpu)?)
/// })?;
/// assert_eq!(precision.result()?, 0.5);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.keras.metrics.Precision")]
#[derive(Clone, Debug)]
pub struct Precision {
    confusion: Confusion,
}

impl Precision {
    /// Creates an empty metric whose variable is named `name`. Predictions above 0.5 are positive.
    ///
    /// # Errors
    /// Returns the errors of [`Mean::new`](super::Mean::new).
    pub fn new(strategy: &Strategy, name: &str) -> Result<Self> {
        Self::with_threshold(strategy, name, 0.5)
    }

    /// Creates an empty metric like [`new`](Self::new). Predictions above `threshold` are positive.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): `threshold` is not in [0, 1].
    /// - The errors of [`Mean::new`](super::Mean::new).
    pub fn with_threshold(strategy: &Strategy, name: &str, threshold: f64) -> Result<Self> {
        Ok(Self { confusion: Confusion::new("Precision::with_threshold", strategy, name, threshold)? })
    }

    /// Adds examples. `predictions` are probabilities of the positive class; `labels` have the same shape and are 0 for
    /// the negative class, and any other number for the positive one.
    ///
    /// # Errors
    /// Nothing is counted after an error.
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the shapes differ, or a prediction is not
    ///   in [0, 1].
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): called outside `run`.
    /// - The errors of writing a variable: see [`Variable`].
    #[track_caller]
    pub fn update(&self, predictions: &Tensor, labels: &Tensor) -> Result<()> {
        self.confusion.update("Precision::update", predictions, labels)
    }

    /// Returns the precision over the examples of all replicas.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): the call is inside `run`.
    /// - The errors of [`Variable::read`]. With several workers, all must make this call.
    pub fn result(&self) -> Result<f64> {
        let [true_positives, false_positives, _] = self.confusion.total("Precision::result")?;
        Ok(true_positives / (true_positives + false_positives).max(1.))
    }

    /// Resets the counts of this worker's replicas. With several workers, all must make this call.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): the call is inside `run`.
    #[track_caller]
    pub fn reset(&self) -> Result<()> {
        self.counts().reset("Precision::reset")
    }

    /// Returns the variable with the counts, f64 `[3]`: true positives, false positives, false negatives.
    pub fn variable(&self) -> &Variable {
        self.counts().variable()
    }

    fn counts(&self) -> &Counts {
        self.confusion.counts()
    }
}
