//! [`evaluate`] and [`predict`]: what a model makes of all batches of a dataset.

use candle_core::{DType, Tensor};
use distribute_base::{Error, Result};
use distribute_core::{DistributedDataset, Replicated};
use distribute_tensor::Nest;
use distribute_tensor::ReduceOp;

/// The mean loss of a model over all examples of a dataset.
///
/// `loss` is called on each replica with its model and its piece of the batch, and gives the mean loss and over how many examples. It is
/// the same on all workers, which make this call together, under every strategy. Inside of the strategy's scope or outside makes no
/// difference.
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
/// [`Error::InvalidArgument`] where there is no example; those of the dataset and of `loss`.
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
            // The mean over nothing may be NaN.
            let sum = if examples == 0 { 0. } else { scalar(&loss)? * examples as f64 };
            Ok((sum, examples as f64))
        })?;
        let (sums, counts) = counted.unzip();
        sum += strategy.reduce(ReduceOp::Sum, sums, None)?;
        examples += strategy.reduce(ReduceOp::Sum, counts, None)?;
    }
    if examples == 0. {
        let reason = "a validation without an example; is the dataset empty?";
        return Err(Error::invalid("runner::evaluate", reason));
    }
    Ok(sum / examples)
}

/// What a model makes of all examples of a dataset: a tensor with their rows, in the order of the dataset where
/// [`distribute_dataset`](distribute_core::Strategy::distribute_dataset) has cut its batches; where each worker reads its own, step by step in the order
/// of replicas. It is the same on all workers, which make this call together.
///
/// `outputs` is called on each replica with its model and its piece of the batch, which may have no rows, and gives a tensor with as
/// many. Inside of the strategy's scope or outside makes no difference.
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
/// [`Error::InvalidArgument`] where there is no example; [`Error::Tensor`] for outputs whose shapes differ in more than their rows; those of the dataset and of `outputs`.
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
        // Cut from the graph, which would keep all that has led to them.
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
