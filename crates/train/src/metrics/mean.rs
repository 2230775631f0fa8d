//! [`Mean`]: the mean of numbers, with or without weights.

use super::counts::{Counts, numbers, pairs};
use candle_core::Tensor;
use distribute_base::Result;
use distribute_core::{Strategy, Variable};

/// The weighted mean of all numbers that replicas have added: Σ wᵢ xᵢ / Σ wᵢ. If the weights sum to 0, as they do
/// without any numbers, the mean is 0, as in TensorFlow.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Tensor};
/// use distribute::metrics::Mean;
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let mean = Mean::new(&strategy, "loss")?;
/// strategy.run((), |ctx, ()| {
///     let id = ctx.replica_id_in_sync_group() as f32;
///     let (loss, examples) = (Tensor::new(id, &Device::Cpu)?, Tensor::new(1. + 2. * id, &Device::Cpu)?);
///     mean.update_weighted(&loss, &examples)
/// })?;
/// assert_eq!(mean.result()?, 0.75);
/// mean.reset()?;
/// assert_eq!(mean.result()?, 0.);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.keras.metrics.Mean")]
#[derive(Clone, Debug)]
pub struct Mean {
    /// The weighted sum of the numbers, and the sum of the weights.
    counts: Counts,
}

impl Mean {
    /// Creates an empty mean whose variable is named `name`.
    ///
    /// # Errors
    /// - [`Error::MixedStrategies`](distribute_base::Error::MixedStrategies),
    ///   [`Error::WrongContext`](distribute_base::Error::WrongContext): as for [`Strategy::scope`].
    /// - [`Error::Collective`](distribute_base::Error::Collective): another worker does not create the same metric.
    pub fn new(strategy: &Strategy, name: &str) -> Result<Self> {
        Ok(Self { counts: Counts::new(strategy, name, &[2])? })
    }

    /// Adds each element of `values` with weight 1. `values` may have any shape and dtype.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): called outside `run`.
    /// - The errors of writing a variable: see [`Variable`].
    #[track_caller]
    pub fn update(&self, values: &Tensor) -> Result<()> {
        let values = numbers(values)?;
        self.counts.add(vec![values.iter().sum(), values.len() as f64])
    }

    /// Adds each element of `values` with its weight in `weights`.
    ///
    /// An element with weight 0 is ignored, even if it is NaN, for example the loss of an empty per-replica batch.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the shapes differ.
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): called outside `run`.
    /// - The errors of writing a variable: see [`Variable`].
    #[track_caller]
    pub fn update_weighted(&self, values: &Tensor, weights: &Tensor) -> Result<()> {
        let mut counts = vec![0., 0.];
        for (value, weight) in pairs("Mean::update_weighted", ["values", "weights"], values, weights)? {
            if weight != 0. {
                counts[0] += value * weight;
                counts[1] += weight;
            }
        }
        self.counts.add(counts)
    }

    /// Returns the mean over all replicas.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): called inside `run`.
    /// - The errors of [`Variable::read`]. With several workers, all must make this call.
    pub fn result(&self) -> Result<f64> {
        let counts = self.counts.total("Mean::result")?;
        Ok(if counts[1] == 0. { 0. } else { counts[0] / counts[1] })
    }

    /// Resets the mean of this worker's replicas. With several workers, all must make this call.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): called inside `run`.
    #[track_caller]
    pub fn reset(&self) -> Result<()> {
        self.counts.reset("Mean::reset")
    }

    /// Returns the variable with the weighted sum and the sum of weights, of dtype f64.
    pub fn variable(&self) -> &Variable {
        self.counts.variable()
    }
}
