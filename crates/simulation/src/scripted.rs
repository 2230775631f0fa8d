//! A program that runs a script from its first step in every world. It makes the same calls as other workers or
//! different ones, declines calls, and leaves and ends sessions.

use crate::context::Context;
use crate::planted::Planted;
use crate::script::Deed;
use crate::working::{Ending, Go, Working};
use bytes::Bytes;
use distribute_cluster::{Blame, Fault, Fingerprint, Operation, Presence, ReplicaStatus};
use distribute_collective::group::Frame;
use std::panic::Location;
use std::sync::Arc;

/// The name of the sessions.
const NAME: &str = "strategy";

/// The position of a worker in its script.
#[derive(Debug, Default)]
pub struct Scripted {
    step: u64,
    call: u64,
    /// Whether the worker does not participate in the current round.
    declines: bool,
}

impl Scripted {
    /// Starts the script from its first step, after the workers of a world have joined.
    pub fn joined(&mut self, working: &mut Working, context: &mut Context<'_>) {
        *self = Self { step: 1, ..Self::default() };
        working.open(NAME);
        self.compute(working, context);
    }

    /// Computes before the next call of the step. If there are no more calls, leaves the step and begins the next one.
    fn compute(&mut self, working: &mut Working, context: &mut Context<'_>) {
        self.call += 1;
        let script = &context.plan.script;
        if self.call > script.calls {
            let left = working.protocol.leave(statuses(working, Presence::Returned));
            working.say(context, &left);
            return self.end_step(working, context);
        }
        let time = script.compute(working.generation, working.world.worker(), self.step, self.call);
        working.compute(context, time);
    }

    fn end_step(&mut self, working: &mut Working, context: &mut Context<'_>) {
        (self.step, self.call) = (self.step + 1, 0);
        working.open(NAME);
        if self.step <= context.plan.script.steps {
            self.compute(working, context);
        } else {
            working.compute(context, Default::default());
        }
    }

    /// Performs the next action of the script.
    pub fn act(&mut self, working: &mut Working, context: &mut Context<'_>) -> Go {
        let (me, step, call) = (working.world.worker(), self.step, self.call);
        let script = &context.plan.script;
        if step > script.steps {
            return Go::End(Ending::Done);
        }
        let (deed, timeout) = (script.deed(working.generation, me, step, call), script.timeout);
        if let Deed::Call { .. } = deed {
            context.trigger(working.generation, step, call);
        }
        let operation = |detail| Fingerprint::new(Operation::AllReduce, detail, Location::caller());
        match deed {
            Deed::Call { other } => {
                let detail = if other { "another" } else { "SUM" };
                context.note(|| format!("step {step}, call {call}: {detail}"));
                let (generation, plan) = (working.generation, context.plan);
                let body = |frame: &Frame, to| body(plan, generation, frame, me, to);
                self.declines = false;
                working.call(context, step, operation(detail), body, timeout);
            }
            Deed::Decline => {
                context.note(|| format!("step {step}, call {call}: declines"));
                match working.protocol.abort_call(step, statuses(working, Presence::Failed), timeout) {
                    Some(_) if context.has(Planted::DeclineUnsaid) => self.compute(working, context),
                    Some(frame) => {
                        working.say(context, &frame);
                        self.compute(working, context);
                    }
                    None => {
                        self.declines = true;
                        working.wait(context, timeout);
                    }
                }
            }
            Deed::Abandon => {
                context.note(|| format!("step {step}, call {call}: ends the session"));
                working.hear_all(context);
                let blame = Blame::failed(step, working.world.global(0), &operation("SUM"));
                let verdict = working.protocol.abort(Arc::new(blame));
                if let Some(verdict) = verdict {
                    working.say(context, &verdict);
                }
                over(working, context);
                self.end_step(working, context);
            }
            Deed::Leave => {
                context.note(|| format!("step {step}, call {call}: leaves"));
                let left = working.protocol.leave(statuses(working, Presence::Returned));
                working.say(context, &left);
                self.end_step(working, context);
            }
        }
        Go::On
    }

    /// Passes the result of a call to the checks, unless this worker declined the call. Then begins to compute before
    /// the next call. If the session is over, instead begins the next step, or leaves the world for a rendezvous if a
    /// worker was lost.
    pub fn decided(
        &mut self,
        working: &mut Working,
        context: &mut Context<'_>,
        made: Result<Vec<Bytes>, Arc<Blame>>,
    ) -> Go {
        let (me, step, call) = (working.world.worker(), self.step, self.call);
        let place = place(working);
        match &made {
            _ if self.declines => {}
            Ok(bodies) => {
                let sum = sum(working, context, bodies);
                context.note(|| format!("step {step}, call {call}: {sum}"));
                context.checks.agreed(place, me, call, sum);
            }
            Err(blame) => {
                context.note(|| format!("step {step}, call {call}: {blame}"));
                let over = working.protocol.over().is_some();
                context.checks.blamed(place, me, call, blame, over);
            }
        }
        if working.protocol.over().is_none() {
            self.compute(working, context);
            return Go::On;
        }
        over(working, context);
        match made {
            Err(blame) if blame.fault == Fault::Lost => return Go::Meet,
            _ => self.end_step(working, context),
        }
        Go::On
    }
}

/// Returns the sequence numbers of the generation, the session and the round.
fn place(working: &Working) -> (u64, u64, u64) {
    (working.generation, working.protocol.session().number, working.protocol.rounds())
}

/// Returns the data that one worker sends another in a call: the sequence numbers of the round, the two workers, and a
/// number that is summed over all workers.
fn body(plan: &crate::plan::Plan, generation: u64, frame: &Frame, from: usize, to: usize) -> Bytes {
    let number = plan.script.compute(generation, from, frame.session.number, frame.round);
    let place = (generation, frame.session.number, frame.round);
    format!("{place:?} {from} to {to}: {}", number.as_secs_f32() * 0.1).into()
}

/// Returns the sum of the numbers of all workers, and checks that each worker's data is what it had to send in this
/// round.
fn sum(working: &Working, context: &mut Context<'_>, bodies: &[Bytes]) -> f32 {
    let (me, generation) = (working.world.worker(), working.generation);
    let frame = working.protocol.frame(distribute_collective::group::Content::Left { statuses: Vec::new() });
    let mut sum = 0.0;
    for (from, come) in bodies.iter().enumerate() {
        let expected = body(context.plan, generation, &frame, from, me);
        if from != me && *come != expected {
            context.broken(format!("used {come:?} for {expected:?}"));
        }
        let text = if from == me { &expected } else { come };
        let number = text.rsplit(|byte| *byte == b' ').next().and_then(|text| std::str::from_utf8(text).ok());
        sum += number.and_then(|text| text.parse::<f32>().ok()).unwrap_or(0.0);
    }
    sum
}

/// Passes the reason why the session is over to the checks, if it is over.
fn over(working: &Working, context: &mut Context<'_>) {
    if let Some(blame) = working.protocol.over() {
        context.checks.over(place(working), working.world.worker(), blame);
    }
}

fn statuses(working: &Working, presence: Presence) -> Vec<ReplicaStatus> {
    let status = |replica| ReplicaStatus { presence: presence.clone(), ..ReplicaStatus::running(replica) };
    working.world.local_replicas().map(status).collect()
}
