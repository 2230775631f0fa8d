//! One step of training.
//!
//! Layers leave their gradients in a bucket while a replica goes backward ([`backward`]). When it is through, its
//! gradients are made ready on its own thread ([`replica`]), and the replicas of all workers exchange headers
//! ([`gather`]). Replica 0 decides for all whether the step is made ([`decide`]), exchanges gradients with the other
//! workers ([`workers`]), and the threads of all replicas of this process reduce and update each its part of the
//! variables ([`Backend`](crate::update::Backend)).
//!
//! Code of users, such as a rule or a closure among the transforms, never runs where others wait without a deadline:
//! the step is cut into parts before and after it ([`parts`]).

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
use crate::reduce::{Weighted, workers};
use crate::step::backward::Losses;
use crate::step::decide::{StepDecision, StepLog, Verdict};
use crate::step::gather::GatheredStep;
use crate::step::replica::ReplicaGradients;
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

/// A step in which all replicas have met.
pub(crate) struct Step<'a> {
    pub(crate) sync: &'a StepSync<'a>,
    /// It ends with replica 0's part of the step: the others use the buckets of their gradients again in the next.
    pub(crate) gathered: GatheredStep,
    copies: &'a Copies<'a>,
}

impl Step<'_> {
    /// The gradients of this process's replicas, with their weights of those of all replicas.
    fn weighted(&self, weights: &[f64]) -> Vec<Weighted<'_>> {
        let first = self.sync.member.replica() - self.sync.member.rank();
        let gradients = self.gathered.mine.iter().map(|of| of.gradients.as_slice());
        weights.iter().skip(first).copied().zip(gradients).collect()
    }
}

impl Inner {
    /// Makes one step with the other replicas. Returns the mean loss over all examples.
    pub(crate) fn step(
        &self,
        ctx: &ReplicaContext,
        operation: &'static str,
        mut mine: Losses,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        let _update = tracing::trace_span!("update").entered();
        let (member, copies) = (ctx.member(), self.backend.copies(self));
        let mut log = StepLog::new(ctx, operation, mine.stale.take());
        let fingerprint = Fingerprint::new(Operation::Minimize, self.detail(mine.weighting), at);

        let mine = self.contribute(ctx, operation, mine, &copies)?;
        let unread = mine.unread_loss()?;
        let gathered = self.gather(member, &fingerprint, mine).map_err(failure(operation))?;
        let sync = &StepSync { member, fingerprint: &fingerprint };
        let mut made = self.decide_and_apply(&mut log, Step { sync, gathered, copies: &copies });

        if let (Ok(decision), Some(loss)) = (&made, &unread)
            && let Err(error) = self.record_pending_loss(&mut log, decision.finished + 1, loss.clone())
        {
            made = Err(after(operation, Verdict::Apply, "losses of steps cannot be read", &error));
        }
        log.tell();
        self.finish(ctx, operation, made?, unread)
    }

    /// Makes this replica's gradients ready, and what the others have to know of them.
    fn contribute(
        &self,
        ctx: &ReplicaContext,
        operation: &'static str,
        mine: Losses,
        copies: &Copies<'_>,
    ) -> Result<ReplicaGradients> {
        let (member, early) = (ctx.member(), mine.early);
        let stay = self.backend.staying(self, copies, ctx.local_replica());
        let mut mine = ReplicaGradients::new(self, mine, &stay)?;
        mine.header.rows = ctx.rows().map(|rows| rows.len());
        if early && mine.header.early.is_none() && member.replica() == 0 {
            mine.header.order = self.parameters.buckets.order();
        }
        if member.rank() == 0 {
            // Before replicas meet: a schedule that hangs is late, and holds nobody beyond the deadline.
            mine.header.position = self.position(operation, member);
        }
        Ok(mine)
    }

    /// Decides, exchanges gradients, reduces and updates, once all headers are known.
    fn decide_and_apply(&self, log: &mut StepLog, step: Step<'_>) -> Result<StepDecision> {
        if self.needs_whole_gradients() {
            return self.apply_in_parts(log, step);
        }
        let Step { sync, copies, .. } = step;
        sync.run_on_leader(move |threads| {
            let headers = step.gathered.headers();
            let decision = self.decide(log, &step, &headers)?;
            if decision.verdict == Verdict::Apply {
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

    /// Takes the right to make the step, and exchanges gradients with the other workers.
    fn exchange<'a: 'b, 'b>(
        &'a self,
        log: &StepLog,
        step: &Step<'_>,
        headers: &[&StepHeader],
        weights: &[f64],
        mine: &[Weighted<'b>],
        threads: &Threads<'_>,
    ) -> Result<(Change<'a>, Operands<'b>)> {
        let mut calling = step.sync.calling("its gradients");
        let exchanged = self.progress.change(log.operation).and_then(|change| {
            self.parameters.bring_back_with_slots(&change, step.copies)?;
            let operands = match &mut calling {
                Some(calling) => {
                    workers::exchange(calling, &self.parameters, headers, weights, mine, threads)?
                }
                None => Operands::new(&self.parameters, mine, mine.len())?,
            };
            Ok((change, operands))
        });
        exchanged.inspect_err(|error| abort_on(calling, error))
    }

    /// Counts the step, and returns its loss on the replica's device.
    fn finish(
        &self,
        ctx: &ReplicaContext,
        operation: &'static str,
        StepDecision { loss, dtype, verdict, .. }: StepDecision,
        unread: Option<Tensor>,
    ) -> Result<Tensor> {
        let strategy = &self.parameters.strategy;
        if ctx.member().rank() == 0 {
            strategy.count_update();
        }
        strategy.refresh_copies(ctx.local_replica()).map_err(|error| {
            let what =
                "its weights cannot be brought to this replica's device, which the next run does again";
            after(operation, verdict, what, &error)
        })?;
        if let Some(loss) = unread {
            // Of the only replica.
            return Ok(loss);
        }
        let loss = Tensor::new(loss, &Device::Cpu)?.to_dtype(dtype)?;
        to_device(&loss, &ctx.device_for_candle()?).map_err(|error| {
            after(operation, verdict, "its loss cannot be brought to this replica's device", &error.into())
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

    /// The part of a step's fingerprint that all replicas must have in common.
    fn detail(&self, weighting: Weighting) -> String {
        let sharded = if self.parameters.partition.is_some() { ", sharded" } else { "" };
        let name = self.groups.rule().name();
        match weighting {
            Weighting::Replicas(op) => format!("{name} {}{sharded} {op}", self.number),
            _ => format!("{name} {}{sharded}", self.number),
        }
    }
}

/// The error of this replica's device after a step, which is not to be made again.
fn after(operation: &'static str, verdict: Verdict, what: &str, error: &Error) -> Error {
    let made = match verdict {
        Verdict::Apply => "made",
        Verdict::Skip => "left out",
    };
    Error::invalid(operation, format!("the step was {made}, but {what}: {error}"))
}
