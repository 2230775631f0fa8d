//! How a step is made, once each replica has its gradients.

use super::brought::{self, Brought};
use super::contribution::Contribution;
use super::in_place::InPlace;
use super::judge::{Call, Judged, Verdict};
use super::losses::Losses;
use super::on_copies::OnCopies;
use super::on_devices::Copies;
use super::on_devices_too::OnDevicesToo;
use super::on_servers::OnServers;
use super::operands::Operands;
use super::progress::Change;
use super::rate::Rate;
use super::reduction;
use super::rules_of_step::Rules;
use super::sharded::Sharded;
use super::tally::{Position, Tally};
use super::threads::Threads;
use super::together::{Together, or_decline};
use super::updater::Updater;
use super::{Optimizer, Transform, Weighting};
use candle_core::Tensor;
use distribute_base::internal::{LocalGradient, to_device};
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::threads::Member;
use distribute_core::ReplicaContext;
use distribute_core::internal::{Mode, enter, failure};
use distribute_optim::Rule;
use std::panic::Location;
use std::sync::Arc;

impl<R: Rule> Optimizer<R> {
    /// Meets the other replicas, and makes the step with them. Gives the mean loss.
    pub(super) fn step(
        &self,
        ctx: &ReplicaContext,
        operation: &'static str,
        mut mine: Losses,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        let _update = tracing::trace_span!("update").entered();
        let (weighting, ahead) = (mine.weighting, mine.ahead);
        let stale = mine.stale.take();
        let (member, on_devices) = (ctx.member(), self.on_devices());
        let stay = self.staying(&on_devices, ctx.local_replica());
        let looks = self.not_finite.looks_at_gradients();
        let mut mine = Contribution::new(&self.trained, mine, &self.before_reduce, &stay, looks)?;
        mine.tally.rows = ctx.rows().map(|rows| rows.len());
        let unread = mine.unread_loss()?;
        if ahead && mine.tally.sent.is_none() && member.replica() == 0 {
            mine.tally.order = self.trained.buckets.order();
        }
        if member.rank() == 0 {
            // Before replicas meet: a schedule that hangs is late, and holds nobody beyond the deadline.
            mine.tally.position = self.position(operation, member);
        }
        let mut call = Call::new(ctx, operation);
        call.warn(stale);
        let sharded = if self.trained.shards.is_some() { ", sharded" } else { "" };
        let detail = match weighting {
            Weighting::Replicas(op) => format!("{} {}{sharded} {op}", self.rule.name(), self.number),
            _ => format!("{} {}{sharded}", self.rule.name(), self.number),
        };
        let print = Fingerprint::new(Operation::Minimize, detail, at);
        let variables = self.trained.variables.len();
        let (mine, all) = member
            .all_gather_with_group(print.clone(), mine, |all: &[Arc<Contribution>], calling| {
                brought::tallies(calling, all, variables, || self.settings())
            })
            .map_err(failure(operation))?;
        let together = Together { member, call: &print };
        let mut made = self.update(&mut call, &together, Brought { mine, all }, &on_devices);
        if let (Ok(judged), Some(loss)) = (&made, &unread)
            && let Err(error) = self.made_unread(&mut call, judged.finished + 1, loss.clone())
        {
            made = Err(behind(operation, Verdict::Make, "losses of steps cannot be read", &error));
        }
        call.tell();
        let Judged { loss, dtype, verdict, .. } = made?;
        if member.rank() == 0 {
            self.trained.strategy.count_update();
        }
        self.trained.strategy.refresh_copies(ctx.local_replica()).map_err(|error| {
            let what =
                "its weights cannot be brought to this replica's device, which the next run does again";
            behind(operation, verdict, what, &error)
        })?;
        if let Some(loss) = unread {
            // Of the only replica.
            return Ok(loss);
        }
        let loss = Tensor::new(loss, &candle_core::Device::Cpu)?.to_dtype(dtype)?;
        to_device(&loss, &ctx.device_for_candle()?).map_err(|error| {
            behind(operation, verdict, "its loss cannot be brought to this replica's device", &error.into())
        })
    }

    /// Where this process is in its training, where that is to be compared, or a schedule to be asked.
    fn position(&self, operation: &'static str, member: &Member) -> Option<Position> {
        let finished = self.finished_steps();
        if matches!(self.rate, Rate::Set(_)) && member.session().is_none() {
            return None;
        }
        let _once = enter(Mode::CrossReplica(self.trained.strategy.clone()));
        let learning_rate = self.rate.of_step(finished, operation).map_err(Arc::new);
        let incomplete = self.progress.is_incomplete();
        let settings = member.session().and_then(|_| self.digest_to_compare());
        Some(Position { finished, incomplete, settings, learning_rate })
    }

    /// The step, once all replicas have met.
    fn update(
        &self,
        call: &mut Call,
        together: &Together<'_>,
        brought: Brought,
        on_devices: &Copies<'_>,
    ) -> Result<Judged> {
        let (only_computes, remote) = (self.only_computes(), self.trained.remote.as_ref());
        let closures = self
            .after_reduce
            .iter()
            .rposition(|transform| transform.closure().is_some())
            .map_or(0, |last| last + 1);
        if only_computes && closures == 0 && remote.is_none() {
            // What is run is all our own: one pass.
            return together.lead(move |threads| {
                let judged = self.judge(call, together, &brought)?;
                if judged.verdict == Verdict::Make {
                    let (change, all) = self.begin(call, together, &brought, &judged, on_devices, threads)?;
                    let in_place = self.in_place(&judged, &self.after_reduce);
                    match &self.trained.shards {
                        Some(shards) => {
                            let sharded = Sharded { in_place, shards, operation: call.operation };
                            sharded.reduce_and_apply(&change, &all, together, threads)?;
                        }
                        None if on_devices.is_empty() => in_place.reduce_and_apply(&change, &all, threads)?,
                        None => self.apply_brought(&judged, &brought, &all, on_devices, &change, threads)?,
                    }
                    self.trained.end_step(&change)?;
                }
                Ok(judged)
            });
        }
        let (before, rest) = self.after_reduce.split_at(closures);
        let mut parts: Vec<&[Transform]> = reduction::parts(before).collect();
        if (!only_computes || remote.is_some()) && (parts.is_empty() || !rest.is_empty()) {
            // The rule sees whole gradients, too, and so do servers.
            parts.push(rest);
        }
        self.update_in_parts(call, together, brought, &parts, rest, on_devices)
    }

    /// Takes the right to make the step, and reduces its gradients over workers.
    fn begin<'a: 'b, 'b>(
        &'a self,
        call: &Call,
        together: &Together<'_>,
        brought: &'b Brought,
        judged: &Judged,
        on_devices: &Copies<'_>,
        threads: &Threads<'_>,
    ) -> Result<(Change<'a>, Operands<'b>)> {
        let mut calling = together.calling("its gradients");
        let replicas = brought.tallies().len();
        let weights = |tally: &Tally| judged.weight(tally, replicas);
        let begun = self.progress.change(call.operation).and_then(|change| {
            self.to_host(&change, on_devices)?;
            Ok((change, brought.operands(calling.as_mut(), &self.trained, weights, threads)?))
        });
        begun.inspect_err(|error| or_decline(calling, error))
    }

    /// Brings to the host what was updated on devices before, and is not in this step.
    fn to_host(&self, change: &Change<'_>, on_devices: &Copies<'_>) -> Result<()> {
        if self.trained.device_copies.is_empty() {
            return Ok(());
        }
        for (number, (slots, (_, variable))) in
            change.slots().iter_mut().zip(&self.trained.variables).enumerate()
        {
            if on_devices.get(number).is_none_or(Option::is_none) {
                slots.bring_back(variable)?;
            }
        }
        self.trained.bring_back(on_devices)
    }

    /// The step where it calls code of users, a part after the other, so that nobody waits for that beyond the deadline.
    /// `rest` are the transforms that come after the last closure; they are among the `parts` where the rule is the
    /// user's.
    fn update_in_parts(
        &self,
        call: &mut Call,
        together: &Together<'_>,
        brought: Brought,
        parts: &[&[Transform]],
        rest: &[Transform],
        on_devices: &Copies<'_>,
    ) -> Result<Judged> {
        // Replica 0's right to make the step, from the first part to the last.
        let mut change = None;
        let Some((first, others)) = parts.split_first() else {
            return Err(Error::invalid(call.operation, "there is nothing that calls code of users"));
        };
        let right = &mut change;
        let (judged, mut gradients) = together.lead(move |threads| {
            let judged = self.judge(call, together, &brought)?;
            let mut made = Vec::new();
            if judged.verdict == Verdict::Make {
                let (change, all) = self.begin(call, together, &brought, &judged, on_devices, threads)?;
                *right = Some(change);
                made = reduction::reduced(first, &self.trained, &all, threads)?;
            }
            Ok((judged, Arc::new(made)))
        })?;
        if judged.verdict == Verdict::Leave {
            return Ok(judged);
        }
        gradients = self.changed(together, first, gradients, change.as_ref())?;
        for part in others {
            let all = gradients;
            gradients = together.lead(move |threads| {
                let all = Operands::new(&self.trained, &[(1., all.as_slice())], 1)?;
                Ok(Arc::new(reduction::reduced(part, &self.trained, &all, threads)?))
            })?;
            gradients = self.changed(together, part, gradients, change.as_ref())?;
        }
        if let Some(remote) = &self.trained.remote {
            let (rules, trained) = (self.rules_of(&judged), &*self.trained);
            OnServers { rules, trained, remote }.apply(together, &gradients, change.as_ref())?;
        } else if !on_devices.is_empty() {
            let there =
                OnDevicesToo { optimizer: self, judged: &judged, transforms: rest, copies: on_devices };
            there.apply(together, &gradients, change.as_ref())?;
        } else if self.only_computes() {
            self.in_place(&judged, rest).apply(together, &gradients, change.as_ref())?;
        } else {
            let (rules, trained) = (self.rules_of(&judged), &*self.trained);
            let on_copies = OnCopies { rules, trained, progress: &self.progress };
            on_copies.apply(together, &gradients, change.as_ref())?;
        }
        Ok(judged)
    }

    pub(super) fn only_computes(&self) -> bool {
        self.rule.only_computes() && self.groups.only_compute()
    }

    pub(super) fn in_place<'a>(&'a self, judged: &Judged, transforms: &'a [Transform]) -> InPlace<'a> {
        InPlace { rules: self.rules_of(judged), transforms, trained: &self.trained }
    }

    pub(super) fn rules_of(&self, judged: &Judged) -> Rules<'_> {
        self.groups.rules(&self.rule, judged.finished, judged.learning_rate)
    }

    /// Gradients after the closure at the end of a part, if there is one.
    fn changed(
        &self,
        together: &Together<'_>,
        part: &[Transform],
        gradients: Arc<Vec<Option<LocalGradient>>>,
        change: Option<&Change<'_>>,
    ) -> Result<Arc<Vec<Option<LocalGradient>>>> {
        let Some(closure) = part.last().and_then(Transform::closure) else { return Ok(gradients) };
        together.once("a closure of after_reduce on replica 0", || {
            // What is looked at here would be of half a step.
            let _slots = change.map(Change::slots);
            let _once = enter(Mode::CrossReplica(self.trained.strategy.clone()));
            Ok(Arc::new(reduction::changed(closure, &self.trained, Arc::unwrap_or_clone(gradients))?))
        })
    }
}

/// An error of this replica's device behind a step, which is not to be made again.
fn behind(operation: &'static str, verdict: Verdict, what: &str, error: &Error) -> Error {
    let made = match verdict {
        Verdict::Make => "made",
        Verdict::Leave => "left out",
    };
    Error::invalid(operation, format!("the step was {made}, but {what}: {error}"))
}
