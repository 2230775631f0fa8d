//! The backward pass: computes gradients from a replica's losses, weighted by numbers of examples.

use crate::gradients::require_scalar;
use crate::parameters::sums_locally_first;
use crate::{Gradients, Inner, Weighting};
use candle_core::{DType, Tensor};
use distribute_base::internal::{Bucket, accumulation_dtype, gradients, to_device, to_host};
use distribute_base::{Error, Result};
use distribute_collective::group::Session;
use distribute_core::ReplicaContext;
use std::panic::Location;
use std::sync::Arc;

/// The losses of a replica in one step, with their gradients.
pub(crate) struct ReplicaLosses {
    /// The gradients that the traversal of the graph has returned.
    pub(crate) gradients: Gradients,
    /// The bucket into which layers have written gradients.
    pub(crate) bucket: Option<Bucket>,
    pub(crate) weighting: Weighting,
    /// The mean losses, each with its number of examples. They are still on the devices on which they were computed.
    pub(crate) losses: Vec<(Tensor, usize)>,
    pub(crate) dtype: DType,
    /// Whether gradients may be sent to other workers before all of them are complete.
    pub(crate) early: bool,
    /// The warning about tensors that are computed only once; `None` if there is none.
    pub(crate) stale: Option<String>,
}

impl ReplicaLosses {
    pub(crate) fn new(optimizer: &Inner, ctx: &ReplicaContext) -> Self {
        // Gradients that are transformed before they are reduced are not complete when layers have written them.
        let buckets = &optimizer.parameters.buckets;
        // When the group has re-formed, the worker may sum its replicas first, or no longer.
        let sends_packs = |session: &&Arc<Session>| !sums_locally_first(session.world());
        let is_early = buckets.has_packs() && optimizer.before_reduce.is_empty();
        let early = ctx.member().session().filter(|_| is_early).filter(sends_packs);
        let early = early.map(|session| session.early_send());
        Self {
            early: early.is_some(),
            gradients: Gradients::none(&optimizer.parameters),
            bucket: Some(buckets.take(
                ctx.local_replica(),
                optimizer.parameters.strategy.generation(),
                early,
            )),
            weighting: Weighting::SumOver(0),
            losses: Vec::new(),
            dtype: DType::F32,
            stale: None,
        }
    }

    /// Adds a mean loss and its gradients. `weighting` contains the number of examples, and determines whether
    /// gradients are those of the mean or of the sum. A loss over no examples has no weight, but its backward pass
    /// still takes part in the collectives of the graph.
    pub(crate) fn add(
        &mut self,
        optimizer: &Inner,
        ctx: &ReplicaContext,
        loss: Tensor,
        weighting: Weighting,
        at: &'static Location<'static>,
    ) -> Result<()> {
        let _backward = tracing::trace_span!("backward").entered();
        let Some(examples) = weighting.examples().filter(|examples| *examples > 0) else {
            return self.join(optimizer, ctx, Some(&loss), at);
        };
        require_scalar("minimize", &loss)?;
        if let Some(stale) = optimizer.checks.stale.check(&loss, ctx, &optimizer.parameters) {
            self.stale = Some(stale);
        }
        let shared = ctx.announce_gradients(&loss, at)?;
        let scaled = match optimizer.loss_scaling.factor() {
            // A scaled loss can exceed the range of half precision.
            Some(factor) => Some((loss.to_dtype(accumulation_dtype(loss.dtype()))? * factor)?),
            None => None,
        };
        let root = scaled.as_ref().unwrap_or(&loss);
        let summed = matches!(weighting, Weighting::SumOver(_));
        // Summing losses in half precision can overflow. If no collective ties this replica to others, its gradients
        // are scaled instead.
        let later = summed && !shared && !matches!(root.dtype(), DType::F32 | DType::F64);
        let root = if summed && !later { sum_from_mean(root, examples)? } else { root.clone() };
        if later {
            let mut gradients = Gradients::from_loss(&optimizer.parameters, &root)?;
            gradients.scale(examples as f64)?;
            self.gradients.add(gradients)?;
        } else {
            self.backward(optimizer, &root)?
        }
        self.dtype = loss.dtype();
        self.losses.push((loss.detach(), examples));
        Ok(())
    }

    /// Adds the gradients of other replicas' losses that reach this replica through collectives. `loss` is the root of
    /// this replica's graph; `None` if the replica has no loss.
    pub(crate) fn join(
        &mut self,
        optimizer: &Inner,
        ctx: &ReplicaContext,
        loss: Option<&Tensor>,
        at: &'static Location<'static>,
    ) -> Result<()> {
        let _backward = tracing::trace_span!("backward").entered();
        match ctx.join_gradients(loss, at)? {
            Some(root) => self.backward(optimizer, &root),
            None => Ok(()),
        }
    }

    /// Adds the gradients of the scalar `root`, at the root of the graph.
    fn backward(&mut self, optimizer: &Inner, root: &Tensor) -> Result<()> {
        let found =
            gradients::collect(&mut self.bucket, || Gradients::from_loss(&optimizer.parameters, root))?;
        self.gradients.add(found)
    }
}

/// Returns the sum of the losses of all examples. Waits for the device.
pub(crate) fn read(losses: &[(Tensor, usize)]) -> Result<f64> {
    let mut sum = 0.;
    for (mean, examples) in losses {
        sum += to_host(mean)?.to_dtype(DType::F64)?.to_scalar::<f64>()? * *examples as f64;
    }
    Ok(sum)
}

/// Returns the mean loss over all examples, on the device and with the dtype of the last loss. Returns `None` if there
/// are no losses.
pub(crate) fn mean(losses: &[(Tensor, usize)]) -> Result<Option<Tensor>> {
    let Some(((last, _), before)) = losses.split_last() else { return Ok(None) };
    if before.is_empty() {
        return Ok(Some(last.clone()));
    }
    let all: usize = losses.iter().map(|(_, examples)| examples).sum();
    // The user chooses the device of each loss.
    let weighed = |(mean, examples): &(Tensor, usize)| {
        let mean = to_device(mean, last.device())?;
        mean.to_dtype(DType::F64)?.affine(*examples as f64 / all as f64, 0.)
    };
    let weighed = losses.iter().map(weighed).collect::<candle_core::Result<Vec<_>>>()?;
    Ok(Some(Tensor::stack(&weighed, 0)?.sum_all()?.to_dtype(last.dtype())?))
}

/// Returns the sum of the losses of `examples` examples, given their mean. Returns an error if the dtype of the mean
/// cannot represent that number.
fn sum_from_mean(mean: &Tensor, examples: usize) -> Result<Tensor> {
    let dtype = mean.dtype();
    if !matches!(dtype, DType::F32 | DType::F64) {
        let held =
            Tensor::new(examples as f64, &candle_core::Device::Cpu)?.to_dtype(dtype)?.to_dtype(DType::F64)?;
        if held.to_scalar::<f64>()? != examples as f64 {
            let reason = format!(
                "the loss is of {dtype:?}, which cannot represent its weight {examples}; with collectives in the \
                 model, pass loss.to_dtype(DType::F32)?"
            );
            return Err(Error::invalid("minimize", reason));
        }
    }
    Ok((mean * examples as f64)?)
}
