//! One training step. This module contains the algorithm; each of its phases has a separate file.
//!
//! 1. **Backward** ([`backward`]). `backward` of `nn` traverses the graph of the loss, because candle computes some
//!    gradients incorrectly. Layers of `nn` write gradients into the replica's bucket; the traversal returns all
//!    other gradients. If there are other workers, dense gradients are in *packs*. All workers have the layout of the
//!    packs from the previous step. A gradient is considered complete after the same number of writes as in the last
//!    step. A complete pack is sent while the backward pass continues, and sent again if it changes after that.
//! 2. **Gather** ([`gather`]). Each replica prepares its gradients on its own thread ([`replica`]), and the
//!    replicas of all workers exchange headers. Messages keep their order, so packs have arrived when headers have.
//!    After a setting was changed, headers contain a digest of all settings. If digests differ, the workers
//!    exchange the settings themselves ([`agreement`]).
//! 3. **Decide** ([`decide`]). A function of all headers determines whether the step is made and with which weights, or
//!    which error is returned.
//! 4. **Exchange** ([`workers`]). Replica 0 is the leader, and the threads of the other replicas are its helpers.
//!    The leader exchanges gradients with the other workers. Workers on the same machine read them in place.
//! 5. **Reduce and update** ([`Backend`](crate::update::Backend)). The parameters, at most 64 variables at a time, are
//!    split over the threads. Each thread reduces, transforms and updates its range block by block, while a block is in
//!    the cache.
//!
//! Gathering is one exchange between the replicas, and everything after it is one pass. There are two exceptions: steps
//! that call the program's code, such as a closure after the reduction or a custom rule, and steps with parameter
//! servers, which need complete gradients. These steps are split into parts ([`parts`]), so that no thread waits for
//! the program's code beyond the deadline.

pub(crate) mod agreement;
pub(crate) mod backward;
pub(crate) mod decide;
pub(crate) mod gather;
mod parts;
pub(crate) mod replica;

use crate::header::StepHeader;
use crate::parameters::Copies;
use crate::progress::Change;
use crate::reduce::operands::Operands;
use crate::reduce::range::Rounding;
use crate::reduce::{Weighted, compressed, workers};
use crate::step::backward::ReplicaLosses;
use crate::step::decide::{StepAction, StepDecision, StepLog};
use crate::step::gather::GatheredStep;
use crate::sync::{StepSync, Threads, abort_on};
use crate::update::{Pass, Update};
use crate::{Inner, Transform, Weighting};
use candle_core::{Device, Tensor};
use distribute_base::internal::to_device;
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_core::ReplicaContext;
use distribute_core::internal::failure;
use std::panic::Location;

/// A step in which all replicas have exchanged their headers.
pub(crate) struct StepContext<'a> {
    pub(crate) sync: &'a StepSync<'a>,
    /// The contributions of the replicas. They are dropped after replica 0 has completed the step, because the other
    /// replicas reuse their buckets in the next step.
    pub(crate) gathered: GatheredStep,
    copies: &'a Copies<'a>,
}

impl StepContext<'_> {
    /// Returns the gradients of this process's replicas, with their weights in the sum over all replicas.
    fn weighted(&self, weights: &[f64]) -> Vec<Weighted<'_>> {
        let member = self.sync.member;
        let first = if self.gathered.is_alone() { 0 } else { member.replica() - member.rank() };
        let gradients = self.gathered.mine.iter().map(|of| of.gradients.as_slice());
        weights.iter().skip(first).copied().zip(gradients).collect()
    }
}

impl Inner {
    /// Runs one step together with the other replicas. Returns the mean loss over all examples.
    pub(crate) fn step(
        &self,
        ctx: &ReplicaContext,
        operation: &'static str,
        mut mine: ReplicaLosses,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        let _update = tracing::trace_span!("update").entered();
        let local = self.local.as_ref().map(|local| (local, ctx.member().without_group()));
        let (member, copies) =
            (local.as_ref().map_or(ctx.member(), |(_, own)| own), self.backend.copies(self));
        let mut log = StepLog::new(ctx, operation, mine.stale.take());
        let fingerprint = Fingerprint::new(Operation::Minimize, self.detail(mine.weighting), at);

        let mut mine = self.contribute(ctx, member, operation, mine, &copies)?;
        if let Some((local, own)) = &local
            && own.rank() == 0
        {
            mine.outer = local.begin(self, operation)?;
        }
        let pending = mine.pending_loss()?;
        let gathered = self.gather(member, &fingerprint, mine).map_err(failure(operation))?;
        let sync = &StepSync { member, fingerprint: &fingerprint };
        let step = StepContext { sync, gathered, copies: &copies };
        let mut made = match &local {
            None => self.decide_and_apply(&mut log, step),
            Some((local, _)) => local.step(self, ctx.member(), &mut log, step),
        };

        if let (Ok(decision), Some(loss)) = (&made, &pending)
            && let Err(error) = self.record_pending_loss(&mut log, decision.finished + 1, loss.clone())
        {
            made =
                Err(after_step_error(operation, StepAction::Apply, "losses of steps cannot be read", &error));
        }
        log.write();
        self.finish(ctx, operation, made?, pending)
    }

    /// Decides about the step, exchanges gradients, reduces and updates. All headers must have been exchanged.
    pub(crate) fn decide_and_apply(&self, log: &mut StepLog, step: StepContext<'_>) -> Result<StepDecision> {
        if self.needs_complete_gradients() {
            return self.apply_in_parts(log, step);
        }
        let StepContext { sync, copies, .. } = step;
        sync.run_on_leader(move |threads| {
            let headers = step.gathered.headers();
            let decision = self.decide(log, &step, &headers)?;
            if decision.action == StepAction::Apply {
                let weights = decision.weights(&headers);
                let replicas = &step.weighted(&weights);
                let (change, operands) = self.exchange(log, &step, &headers, &weights, replicas, threads)?;
                let update = self.update(log, copies, &decision, &self.after_reduce);
                let pass = Pass { change: &change, operands: &operands, replicas, sync, threads };
                self.backend.reduce_and_apply(&update, &pass)?;
                self.parameters.commit(&change)?;
            }
            Ok(decision)
        })
    }

    /// Returns `true` if closures or the backend need complete gradients after the reduction.
    fn needs_complete_gradients(&self) -> bool {
        !self.backend.is_one_pass(self) || self.end_of_closures() > 0
    }

    /// Returns the number of transforms after the reduction, up to and including the last closure.
    fn end_of_closures(&self) -> usize {
        self.after_reduce
            .iter()
            .rposition(|transform| transform.closure().is_some())
            .map_or(0, |last| last + 1)
    }

    /// Acquires the right to change the state, copies variables and slots to the host if the step updates them there,
    /// and exchanges gradients with the other workers.
    fn exchange<'a: 'b, 'b>(
        &'a self,
        log: &StepLog,
        step: &StepContext<'_>,
        headers: &[&StepHeader],
        weights: &[f64],
        mine: &[Weighted<'b>],
        threads: &Threads<'_>,
    ) -> Result<(Change<'a>, Operands<'b>)> {
        let mut calling = step.sync.group_call("its gradients");
        let exchanged = self.progress.change(log.operation).and_then(|change| {
            self.parameters.sync_to_host_with_slots(&change, step.copies)?;
            let sums = if self.parameters.compression_of_gradients().has_feedback() {
                let step = change.number();
                compressed::exchange(calling.as_mut(), &self.parameters, headers, mine, step, threads)?
            } else {
                Vec::new()
            };
            let operands = match &mut calling {
                Some(calling) => {
                    workers::exchange(calling, &self.parameters, headers, weights, mine, threads)?
                }
                None => {
                    // As if each replica were on a worker of its own.
                    let wire = self.parameters.wire();
                    let rounding = Rounding { summands: wire, sum: wire };
                    Operands::new(&self.parameters, mine, mine.len())?.rounded(rounding)
                }
            };
            Ok((change, operands.with_sums(sums)))
        });
        exchanged.inspect_err(|error| abort_on(calling, error))
    }

    /// Counts the step as an update of the strategy, refreshes this replica's copies of the variables, and returns the
    /// loss of the step on the device of the replica.
    fn finish(
        &self,
        ctx: &ReplicaContext,
        operation: &'static str,
        StepDecision { loss, dtype, action, .. }: StepDecision,
        pending: Option<Tensor>,
    ) -> Result<Tensor> {
        let strategy = &self.parameters.strategy;
        if ctx.member().rank() == 0 {
            strategy.record_update();
        }
        strategy.refresh_copies(ctx.local_replica()).map_err(|error| {
            let what =
                "its weights cannot be copied to this replica's device, which the next run tries again";
            after_step_error(operation, action, what, &error)
        })?;
        if let Some(loss) = pending {
            // The loss of the only replica.
            return Ok(loss);
        }
        let loss = Tensor::new(loss, &Device::Cpu)?.to_dtype(dtype)?;
        to_device(&loss, &ctx.device_for_candle()?).map_err(|error| {
            after_step_error(
                operation,
                action,
                "its loss cannot be copied to this replica's device",
                &error.into(),
            )
        })
    }

    fn update<'a>(
        &'a self,
        log: &StepLog,
        copies: &'a Copies<'a>,
        decision: &StepDecision,
        transforms: &'a [Transform],
    ) -> Update<'a> {
        let rules = self.groups.rules_of_step(decision.finished, decision.learning_rate);
        Update { optimizer: self, operation: log.operation, rules, transforms, copies }
    }

    /// Returns the detail of the step's fingerprint, which must be the same on all replicas.
    fn detail(&self, weighting: Weighting) -> String {
        let sharded = match &self.parameters.partition {
            None => "",
            Some(partition) if partition.copied_worker().is_none() => ", sharded",
            Some(_) => ", sharded and replicated",
        };
        let name = self.groups.rule().name();
        match weighting {
            Weighting::Replicas(op) => format!("{name} {}{sharded} {op}", self.number),
            _ => format!("{name} {}{sharded}", self.number),
        }
    }
}

/// Returns the error for a failure of this replica's device after a step has been applied or skipped. The error states
/// that the step must not be repeated.
fn after_step_error(operation: &'static str, action: StepAction, what: &str, error: &Error) -> Error {
    let made = match action {
        StepAction::Apply => "applied",
        StepAction::Skip => "skipped",
    };
    Error::invalid(operation, format!("the step was {made}, but {what}: {error}"))
}
