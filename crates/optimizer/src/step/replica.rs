//! The gradients of one replica, prepared for the reduction, with their header.

// - INV-9: if a per-replica batch has rows that no loss counts, or variables in a collective, the others' losses
//   still have gradients there. Tests: `computing/stock_models.rs`, `computing/equivalence.rs`,
//   `tensor/tests/it/leaf.rs`.

use crate::checks::finite::all_finite;
use crate::gradients::Gradient;
use crate::header::{EarlyGradients, GradientKind, OuterHeader, Position, StepHeader};
use crate::parameters::{Copies, Parameters};
use crate::rate::Rate;
use crate::step::backward::{self, ReplicaLosses};
use crate::update::devices;
use crate::{Inner, Transform, Weighting, reduce};
use candle_core::{Tensor, Var};
use distribute_base::Result;
use distribute_base::internal::{Bucket, ReplicaGradient};
use distribute_collective::threads::Member;
use distribute_core::ReplicaContext;
use distribute_core::internal::{Mode, enter};
use std::sync::Arc;

/// The gradients of one replica in a step, with their header.
#[derive(Debug)]
pub(crate) struct ReplicaGradients {
    pub(crate) header: StepHeader,
    /// The gradient of each variable, on the host or on the replica's device; `None` if the loss does not depend on the
    /// variable, or has no weight.
    pub(crate) gradients: Vec<Option<ReplicaGradient>>,
    /// The mean losses on a device, each with its number of examples; `None` after they have been read into the header.
    pending: Option<Vec<(Tensor, usize)>>,
    /// The facts that workers compare in the outer step at the end of this step; `None` if no outer step is due, and on
    /// replicas other than 0.
    pub(crate) outer: Option<OuterHeader>,
}

impl ReplicaGradients {
    /// Prepares the gradients, on the replica's own thread: applies transforms and adds up rows that occur more than
    /// once. Gradients of variables with a copy in `on_device` stay on the replica's device. If there are such
    /// variables, the loss also stays on the device, unless there are several replicas or gradients are checked.
    fn new(optimizer: &Inner, mine: ReplicaLosses, on_device: &[Option<&Var>]) -> Result<Self> {
        let ReplicaLosses { gradients, bucket, weighting, losses, dtype, .. } = mine;
        let parameters = &*optimizer.parameters;
        let found = gradients.into_checked(parameters)?;
        let header = StepHeader::new(weighting, dtype, found.len());
        let mut made = Self { header, gradients: Vec::new(), pending: Some(losses), outer: None };
        let (stays, looks) = (on_device.iter().any(Option::is_some), optimizer.checks_gradients());
        // The mean over several replicas is computed on the host.
        if !stays || looks || parameters.strategy.world().replicas() > 1 {
            made.read_losses()?;
        }
        // INV-9: mean gradients over no examples have no weight, even if they are NaN. Summed gradients over no
        // examples belong to other replicas, whose losses depend on this one through collectives.
        if weighting == Weighting::MeanOver(0) {
            made.gradients = vec![None; found.len()];
            return Ok(made);
        }
        made.gradients = collect_gradients(parameters, found, bucket, on_device)?;
        if !optimizer.before_reduce.is_empty() {
            made.transform(optimizer, on_device)?;
        }
        for gradient in made.gradients.iter_mut().flatten() {
            gradient.round_rows(parameters.wire());
        }
        made.header.kinds = made.gradients.iter().map(GradientKind::of).collect();
        made.header.early = early_gradients(&made.gradients);
        if looks && made.header.finite {
            made.header.finite =
                all_finite(parameters, &made.gradients)? && devices::are_finite(&made.gradients)?;
        }
        Ok(made)
    }

    /// Returns the mean loss over this replica's examples; `None` if it has already been read or there are no examples.
    pub(crate) fn pending_loss(&self) -> Result<Option<Tensor>> {
        self.pending.as_deref().map_or(Ok(None), backward::mean)
    }

    pub(crate) fn has_pending_losses(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns the same contribution, with all gradients and losses on the host. Waits for the device.
    pub(crate) fn to_host(&self, parameters: &Parameters) -> Result<Self> {
        let gradients = devices::to_host(parameters, &self.gradients)?;
        let (header, pending) = (self.header.clone(), self.pending.clone());
        let mut made = Self { header, gradients, pending, outer: self.outer };
        made.read_losses()?;
        Ok(made)
    }

    fn read_losses(&mut self) -> Result<()> {
        if let Some(losses) = self.pending.take() {
            self.header.set_loss(backward::read(&losses)?);
        }
        Ok(())
    }

    /// Undoes the loss scale, and applies the transforms that precede the reduction. Gradients of a sum of losses
    /// become gradients of the mean loss.
    fn transform(&mut self, optimizer: &Inner, on_device: &[Option<&Var>]) -> Result<()> {
        let unscale = 1. / optimizer.loss_scaling.factor().unwrap_or(1.);
        // Users clip the gradient of the mean, whose norm does not grow with the per-replica batch.
        let (transforms, weight): (&[Transform], f64) = match self.header.weighting {
            // Gradients for the losses of other replicas have no mean of their own, so they are only unscaled.
            Weighting::SumOver(0) if unscale == 1. => return Ok(()),
            Weighting::SumOver(0) => (&[], unscale),
            Weighting::SumOver(examples) => {
                self.header.weighting = Weighting::MeanOver(examples);
                (&optimizer.before_reduce, unscale / examples as f64)
            }
            _ => (&optimizer.before_reduce, unscale),
        };
        let on_host = reduce::transform_own(transforms, &optimizer.parameters, weight, &self.gradients)?;
        devices::weigh(&mut self.gradients, weight)?;
        devices::transform(transforms, &mut self.gradients, on_device)?;
        for (gradient, on_host) in self.gradients.iter_mut().zip(on_host) {
            if gradient.as_ref().is_none_or(|gradient| !gradient.is_on_device()) {
                *gradient = on_host;
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Prepares the gradients of this replica and their header.
    pub(super) fn contribute(
        &self,
        ctx: &ReplicaContext,
        member: &Member,
        operation: &'static str,
        mine: ReplicaLosses,
        copies: &Copies<'_>,
    ) -> Result<ReplicaGradients> {
        let early = mine.early;
        let on_device = self.backend.gradients_on_device(self, copies, ctx.local_replica());
        let mut mine = ReplicaGradients::new(self, mine, &on_device)?;
        mine.header.rows = ctx.rows().map(|rows| rows.len());
        if early && mine.header.early.is_none() && member.replica() == 0 {
            mine.header.order = self.parameters.buckets.order();
        }
        if member.rank() == 0 {
            // Before replicas exchange headers, so that a schedule that hangs delays no replica beyond the deadline.
            mine.header.position = self.position(operation, member);
        }
        Ok(mine)
    }

    /// Returns the position of this process in its training run. Returns `None` if it need not be compared: there are
    /// no other workers, the learning rate has no schedule, and the state is complete.
    fn position(&self, operation: &'static str, member: &Member) -> Option<Position> {
        let finished = self.finished_steps();
        let incomplete = self.progress.is_incomplete() || self.backend.is_incomplete(self);
        if !incomplete && matches!(self.rate, Rate::Constant(_)) && member.session().is_none() {
            return None;
        }
        let copied = self.parameters.partition.as_ref().and_then(|partition| partition.copied_worker());
        let version = copied.map(|_| self.progress.copies().version);
        let _once = enter(Mode::CrossReplica(self.parameters.strategy.clone()));
        let learning_rate = self.rate.for_step(finished, operation).map_err(Arc::new);
        let settings = member.session().and_then(|_| self.digest_to_compare());
        let loss_scale = self.loss_scaling.factor();
        Some(Position { finished, incomplete, version, settings, loss_scale, learning_rate })
    }
}

/// Combines the gradients that the traversal has `found` with those that layers have written into the bucket. Each
/// remains on the host or on the replica's device.
fn collect_gradients(
    parameters: &Parameters,
    found: Vec<Option<Gradient>>,
    mut bucket: Option<Bucket>,
    on_device: &[Option<&Var>],
) -> Result<Vec<Option<ReplicaGradient>>> {
    let copy = |number: usize| on_device.get(number).copied().flatten();
    let mut there: Vec<(usize, &Var, ReplicaGradient)> = Vec::new();
    let mut on_host = Vec::with_capacity(found.len());
    for (number, (gradient, (_, variable))) in found.into_iter().zip(&parameters.variables).enumerate() {
        on_host.push(match (gradient, copy(number)) {
            (Some(gradient), Some(copy)) => {
                there.push((number, copy, gradient.into_device(copy)?));
                None
            }
            (gradient, _) => gradient.map(|gradient| gradient.into_host(variable)).transpose()?,
        });
    }
    if let Some(bucket) = &mut bucket {
        for (number, rows) in bucket.take_device_rows() {
            match copy(number) {
                Some(copy) => there.push((number, copy, ReplicaGradient::Rows(rows))),
                None => bucket.add_rows(number, rows.to_host(parameters.variables[number].1.dtype())?),
            }
        }
    }
    let mut all = match bucket {
        Some(bucket) => bucket.into_gradients(on_host)?,
        None => on_host,
    };
    for (number, copy, gradient) in there {
        all[number] = Some(match all[number].take() {
            Some(before) => before.into_device(copy)?.add_on_device(gradient, copy)?,
            None => gradient,
        });
    }
    Ok(all)
}

/// Returns the description of the dense gradients that were sent early, if these were all dense gradients. Returns
/// `None` if a dense gradient is not in the packs that were sent, or if a variable of these packs has a gradient by
/// row.
fn early_gradients(gradients: &[Option<ReplicaGradient>]) -> Option<EarlyGradients> {
    let all = gradients.iter().flatten().find_map(ReplicaGradient::packs)?;
    let is_sent = |(number, gradient): (usize, &Option<ReplicaGradient>)| match gradient {
        Some(ReplicaGradient::Rows(_)) => !all.layout().has(number),
        Some(dense) => dense.packs().is_some_and(|packs| Arc::ptr_eq(packs, all)),
        None => true,
    };
    let call = all.early_call()?;
    gradients.iter().enumerate().all(is_sent).then(|| EarlyGradients { call, layout: all.layout().digest() })
}
