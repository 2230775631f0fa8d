//! [`Accuracy`]: the fraction of examples whose label has the largest logit.

use super::counts::Counts;
use candle_core::Tensor;
use distribute_base::{Error, Result};
use distribute_core::{Strategy, Variable};
use distribute_nn::loss;

/// The fraction of examples whose label has the largest logit or probability; 0 without examples.
///
/// If several logits are equally large, the first of them is treated as the largest. See [the module](super) for an
/// example.
#[doc(alias = "tf.keras.metrics.SparseCategoricalAccuracy")]
#[doc(alias = "SparseCategoricalAccuracy")]
#[derive(Clone, Debug)]
pub struct Accuracy {
    /// The number of correct examples and the number of all examples.
    counts: Counts,
}

impl Accuracy {
    /// Creates an empty metric whose variable is named `name`.
    ///
    /// # Errors
    /// Returns the errors of [`Mean::new`](super::Mean::new).
    pub fn new(strategy: &Strategy, name: &str) -> Result<Self> {
        Ok(Self { counts: Counts::new(strategy, name, &[2])? })
    }

    /// Adds examples: `logits` are logits or probabilities of shape `[n, classes]`, `labels` are integers of shape
    /// `[n]`.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the shapes do not match.
    /// - [`Error::WrongContext`]: called outside `run`.
    /// - The errors of writing a variable: see [`Variable`].
    #[track_caller]
    pub fn update(&self, logits: &Tensor, labels: &Tensor) -> Result<()> {
        if logits.rank() != 2 || labels.dims() != &logits.dims()[..1] {
            let reason = format!(
                "logits have shape {:?}, labels {:?}; pass [n, classes] and [n]",
                logits.dims(),
                labels.dims()
            );
            return Err(Error::invalid("Accuracy::update", reason));
        }
        let correct = loss::correct(logits, labels)?;
        self.counts.add(vec![correct as f64, labels.elem_count() as f64])
    }

    /// Returns the fraction of correct examples, over all replicas.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): called inside `run`.
    /// - The errors of [`Variable::read`]. With several workers, all must make this call.
    pub fn result(&self) -> Result<f64> {
        let counts = self.counts.total("Accuracy::result")?;
        Ok(counts[0] / counts[1].max(1.))
    }

    /// Resets the counts of this worker's replicas. With several workers, all must make this call.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): called inside `run`.
    #[track_caller]
    pub fn reset(&self) -> Result<()> {
        self.counts.reset("Accuracy::reset")
    }

    /// Returns the variable with the counts, of dtype f64: the number of correct examples, followed by the number of
    /// all examples.
    pub fn variable(&self) -> &Variable {
        self.counts.variable()
    }
}
