//! Backward: from a replica's losses to their gradients, weighed by examples.

use crate::gradients::require_scalar;
use crate::{Gradients, Inner, Weighting};
use candle_core::{DType, Tensor};
use distribute_base::internal::{Bucket, deposit, to_device, to_host};
use distribute_base::{Error, Result};
use distribute_core::ReplicaContext;
use std::panic::Location;

/// The gradients of a replica's losses.
pub(crate) struct Losses {
    /// The gradients that candle has found.
    pub(crate) gradients: Gradients,
    /// The bucket that layers have written gradients into.
    pub(crate) bucket: Option<Bucket>,
    pub(crate) weighting: Weighting,
    /// Mean losses on the replica's device, each with its number of examples. They have not been read.
    pub(crate) losses: Vec<(Tensor, usize)>,
    pub(crate) dtype: DType,
    /// Whether gradients may be sent to other workers before all of them are there.
    pub(crate) early: bool,
    /// The warning of tensors that are not computed again in each step.
    pub(crate) stale: Option<String>,
}

impl Losses {
    pub(crate) fn new(optimizer: &Inner, ctx: &ReplicaContext) -> Self {
        // What is transformed before it is reduced is not complete when layers have deposited it.
        let buckets = &optimizer.parameters.buckets;
        let is_early = buckets.has_packs() && optimizer.before_reduce.is_empty();
        let early = ctx.member().session().filter(|_| is_early).map(|session| session.early_send());
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

    /// Adds a mean loss over examples, and its gradients in the form that `weighting` says. A loss over no examples has
    /// no weight, but takes part in the gradients of the other replicas' collectives.
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
        if let Some(stale) = optimizer.seen.stale.look(&loss, ctx, &optimizer.parameters) {
            self.stale = Some(stale);
        }
        let shared = ctx.announce_gradients(&loss, at)?;
        let summed = matches!(weighting, Weighting::SumOver(_));
        // Half precision has no room for losses added up: where nobody else's are among the gradients, they wait.
        let later = summed && !shared && !matches!(loss.dtype(), DType::F32 | DType::F64);
        let root = if summed && !later { added_up(&loss, examples)? } else { loss.clone() };
        if later {
            let mut gradients = Gradients::found(&optimizer.parameters, &root)?;
            gradients.scale(examples as f64)?;
            self.gradients.add(gradients)?;
        } else {
            self.backward(optimizer, &root)?
        }
        self.dtype = loss.dtype();
        self.losses.push((loss.detach(), examples));
        Ok(())
    }

    /// Adds the gradients that the losses of the other replicas have on this one, by collectives.
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

    /// Adds the gradients of a scalar.
    fn backward(&mut self, optimizer: &Inner, root: &Tensor) -> Result<()> {
        let found = deposit::collect(&mut self.bucket, || Gradients::found(&optimizer.parameters, root))?;
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

/// Returns the mean loss over all examples on the device of the last loss and in its dtype; `None` if there is no loss.
pub(crate) fn mean(losses: &[(Tensor, usize)]) -> Result<Option<Tensor>> {
    let Some(((last, _), before)) = losses.split_last() else { return Ok(None) };
    if before.is_empty() {
        return Ok(Some(last.clone()));
    }
    let all: usize = losses.iter().map(|(_, examples)| examples).sum();
    // Losses may be on any device: that of each is the user's.
    let weighed = |(mean, examples): &(Tensor, usize)| {
        let mean = to_device(mean, last.device())?;
        mean.to_dtype(DType::F64)?.affine(*examples as f64 / all as f64, 0.)
    };
    let weighed = losses.iter().map(weighed).collect::<candle_core::Result<Vec<_>>>()?;
    Ok(Some(Tensor::stack(&weighed, 0)?.sum_all()?.to_dtype(last.dtype())?))
}

/// Returns the sum of the losses of the examples, from their mean.
fn added_up(mean: &Tensor, examples: usize) -> Result<Tensor> {
    let dtype = mean.dtype();
    if !matches!(dtype, DType::F32 | DType::F64) {
        let held =
            Tensor::new(examples as f64, &candle_core::Device::Cpu)?.to_dtype(dtype)?.to_dtype(DType::F64)?;
        if held.to_scalar::<f64>()? != examples as f64 {
            let reason = format!(
                "the loss is of {dtype:?}, which cannot hold the number {examples} by which it is weighed; with collectives \
                 in the model, give loss.to_dtype(DType::F32)?"
            );
            return Err(Error::invalid("minimize", reason));
        }
    }
    Ok((mean * examples as f64)?)
}
