//! [`evaluate`] and [`predict`]: the loss and the outputs of a model over all batches of a dataset.

use candle_core::{DType, Tensor};
use distribute_base::{Error, Result};
use distribute_core::{DistributedDataset, Replicated};
use distribute_tensor::Nest;
use distribute_tensor::ReduceOp;

/// Computes the mean loss of a model over all examples of a dataset.
///
/// `loss` is called on each replica with its model and its per-replica batch, and returns the mean loss and the
/// number of examples. All workers must make this call together, and all get the same result. The call works with
/// every strategy, inside and outside its scope.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Tensor};
/// use candle_nn::{Init, Module, linear};
/// use distribute::runner;
/// let strategy = MirroredStrategy::cpus(2)?;
/// let model = strategy.replicate(|vb| vb.get_with_hints((), "w", Init::Const(2.)))?;
/// let numbers = Dataset::from_slices(Tensor::arange(0f32, 5., &Device::Cpu)?)?;
/// let batches = strategy.distribute_dataset(numbers.batch(4))?;
/// let mean = runner::evaluate(&model, &batches, |w, x| Ok((x.broadcast_mul(w)?.mean_all()?, x.dim(0)?)))?;
/// assert_eq!(mean, 4.);
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// # Errors
/// - [`Error::InvalidArgument`]: there are no examples.
/// - The errors of the dataset and of `loss`.
#[doc(alias = "tf.keras.Model.evaluate")]
#[track_caller]
pub fn evaluate<M: Send + Sync, B: Nest + Send>(
    model: &Replicated<M>,
    batches: &DistributedDataset<B>,
    loss: impl Fn(&M, B) -> Result<(Tensor, usize)> + Sync,
) -> Result<f64> {
    let strategy = model.variables.strategy();
    let (mut examples, mut sum) = (0., 0.);
    for batch in batches {
        let counted = strategy.run((model, batch?), |_ctx, (model, batch)| {
            let (loss, examples) = loss(model, batch)?;
            // The mean over no examples may be NaN.
            let sum = if examples == 0 { 0. } else { scalar(&loss)? * examples as f64 };
            Ok((sum, examples as f64))
        })?;
        let (sums, counts) = counted.unzip();
        sum += strategy.reduce(ReduceOp::Sum, sums, None)?;
        examples += strategy.reduce(ReduceOp::Sum, counts, None)?;
    }
    if examples == 0. {
        let reason = "the validation had no example; is the dataset empty?";
        return Err(Error::invalid("runner::evaluate", reason));
    }
    Ok(sum / examples)
}

/// Computes the outputs of a model for all examples of a dataset. Returns a tensor with one row per example.
///
/// Rows have the order of the dataset if its batches are split by
/// [`distribute_dataset`](distribute_core::Strategy::distribute_dataset). If each worker reads its own data, rows are
/// ordered by step, and by replica within a step. All workers must make this call together, and all get the same
/// result.
///
/// `outputs` is called on each replica with its model and its per-replica batch, which may be empty. It returns a
/// tensor with one row for each row of the batch. The call works inside and outside the strategy's scope.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Tensor};
/// use candle_nn::Init;
/// use distribute::runner;
/// let strategy = MirroredStrategy::cpus(2)?;
/// let model = strategy.replicate(|vb| vb.get_with_hints((), "w", Init::Const(2.)))?;
/// let numbers = Dataset::from_slices(Tensor::arange(0f32, 5., &Device::Cpu)?)?;
/// let batches = strategy.distribute_dataset(numbers.batch(3))?;
/// let outputs = runner::predict(&model, &batches, |w, x| Ok(x.broadcast_mul(w)?))?;
/// assert_eq!(outputs.to_vec1::<f32>()?, [0., 2., 4., 6., 8.]);
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// # Errors
/// - [`Error::InvalidArgument`]: there are no examples.
/// - [`Error::Tensor`]: the shapes of outputs differ in more than the number of rows.
/// - The errors of the dataset and of `outputs`.
#[doc(alias = "tf.keras.Model.predict")]
#[track_caller]
pub fn predict<M: Send + Sync, B: Nest + Send>(
    model: &Replicated<M>,
    batches: &DistributedDataset<B>,
    outputs: impl Fn(&M, B) -> Result<Tensor> + Sync,
) -> Result<Tensor> {
    let strategy = model.variables.strategy();
    let mut all = Vec::new();
    for batch in batches {
        // Detached from the graph, which would keep all intermediate tensors in memory.
        let pieces =
            strategy.run((model, batch?), |_ctx, (model, batch)| Ok(outputs(model, batch)?.detach()))?;
        all.push(strategy.gather(pieces, 0)?);
    }
    if all.is_empty() {
        return Err(Error::invalid("runner::predict", "there is no example; is the dataset empty?"));
    }
    Ok(Tensor::cat(&all, 0)?)
}

pub(super) fn scalar(loss: &Tensor) -> Result<f64> {
    Ok(loss.to_dtype(DType::F64)?.to_scalar::<f64>()?)
}
