//! A program that trains, and resumes after a worker is lost. It uses a `StateTransfer`, `Updates` and `RecoveryLimit`
//! in the same way as the `Training` of `distribute`, and makes steps in the same way as its `Strategy`.

use crate::checks::Certain;
use crate::context::Context;
use crate::course::{CHUNK, Weights};
use crate::planted::Planted;
use crate::working::{Ending, Go, Working};
use bytes::Bytes;
use distribute_cluster::{Blame, Fault, Fingerprint, Operation, Presence, ReplicaStatus};
use distribute_collective::group::{Frame, Protocol};
use distribute_collective::recovery::state_transfer::{Failure, Next, Round};
use distribute_collective::recovery::{Counters, RecoveryLimit, Report, StateTransfer, Updates};
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// The name of the session for the agreement after a rendezvous.
const RECOVERY: &str = "recovery";

/// The name of the session for calls between steps.
const BETWEEN: &str = "between steps";

/// The name of the sessions for steps.
const RUN: &str = "run";

/// The training run of one worker.
#[derive(Debug, Default)]
pub struct Training {
    /// Whether the worker has already taken part in training.
    begun: bool,
    /// Whether the process was a spare, which has built its model before it joined.
    spare: bool,
    /// The generation in which the worker last agreed with the others on the position.
    agreed: u64,
    weights: Weights,
    updates: Updates,
    /// The number of steps that have begun, without those that must be repeated.
    steps: u64,
    recovery_limit: RecoveryLimit,
    stage: Stage,
    /// The value of `agreed` that the worker reported in the agreement after the last rendezvous.
    told: u64,
    /// The number of waiting workers that this worker reported in its last call to begin a step.
    waiting: u64,
    /// The rank of the worker that this worker has proposed to replace in that call; 0 if it has proposed nothing.
    proposed: u64,
    /// The rank of the worker whose place a spare takes in the next rendezvous; `None` if there is none.
    replaced: Option<usize>,
    /// The deadline for the next rendezvous and the agreement after it; `None` if no call has failed, and no worker has
    /// been waiting to join, since the last agreement.
    until: Option<Duration>,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Started,
    /// The agreement after a rendezvous, with the sequence number of the round.
    Meeting(Box<StateTransfer<String>>, u64),
    /// The time between two steps.
    Between,
    /// A step, before the call with the given index. The session for calls between steps is kept.
    InStep(usize, Box<Protocol>),
}

impl Training {
    /// Returns the state, which contains the number of updates.
    pub fn weights(&self) -> Weights {
        self.weights
    }

    /// Returns `true` if the worker has a complete state.
    pub fn is_whole(&self) -> bool {
        self.begun && self.updates.clone().rewind().is_ok()
    }

    /// Returns the generation of the worker's last agreement before the last rendezvous; 0 if there was none.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// Returns `true` while the worker is agreeing on a state with the others after a rendezvous.
    pub fn is_meeting(&self) -> bool {
        matches!(self.stage, Stage::Meeting(..))
    }

    /// Returns the deadline for the next rendezvous; `None` if no call has failed, and no worker has been waiting to
    /// join, since the last agreement.
    pub fn until(&self) -> Option<Duration> {
        self.until
    }

    /// Extends the deadline by `pause`, for which the process was stopped.
    pub fn shift(&mut self, pause: Duration) {
        self.until = self.until.map(|until| until + pause);
    }

    /// Records that the process is a spare.
    pub fn is_spare(&mut self) {
        self.spare = true;
    }

    /// Removes and returns the rank of the worker whose place a spare takes in the next rendezvous.
    pub fn take_replaced(&mut self) -> Option<usize> {
        self.replaced.take()
    }

    fn counters(&self) -> Counters {
        Counters { steps: self.steps, ..self.updates.counters() }
    }

    fn set_numbers(&mut self, counters: Counters) {
        (self.updates, self.steps) = (Updates::after(counters), counters.steps);
    }

    /// Begins the agreement on a state, after the workers of a world have joined. If this worker was interrupted in a
    /// step, it first returns to its last update, or reports that its state is incomplete if only some of the step's
    /// updates have been made.
    pub fn joined(&mut self, working: &mut Working, context: &mut Context<'_>) {
        let mut torn = None;
        if self.begun {
            match self.updates.rewind() {
                Ok(steps) if !context.has(Planted::RewindForgotten) => {
                    self.steps = steps.unwrap_or(self.steps)
                }
                Ok(_) => {}
                Err(_) if context.has(Planted::TornIgnored) => {}
                Err(error) => torn = Some(error.to_string()),
            }
        }
        let (begun, spare) = (self.begun, self.spare && !self.begun);
        let mut mine =
            Report { begun, spare, agreed: self.agreed, counters: self.counters(), torn, share: None };
        if context.has(Planted::FurthestIgnored) {
            mine.counters.updates = 1;
        }
        self.told = mine.agreed;
        context.note(|| format!("has {mine:?}"));
        working.open(RECOVERY);
        let handover = StateTransfer::new(working.world, mine).with_chunk_size(CHUNK);
        self.stage = Stage::Meeting(Box::new(handover), 0);
        // A worker that has just started builds its model.
        let least = if self.begun || self.spare { 0 } else { 20 };
        working.compute(context, Duration::from_millis(least));
    }

    /// Makes the next call, after the computation before it. Returns whether the worker stays in this world, leaves it
    /// to re-form the group, or exits.
    pub fn act(&mut self, working: &mut Working, context: &mut Context<'_>) -> Go {
        match &self.stage {
            Stage::Started => Go::On,
            Stage::Meeting(..) if working.world.workers() == 1 => self.go_on_alone(working, context),
            Stage::Meeting(..) => self.hand_over(working, context),
            Stage::Between => self.begin(working, context),
            Stage::InStep(..) => self.call(working, context),
        }
    }

    /// Resumes from the worker's own state, as the only worker. If that state is incomplete, ends the worker.
    fn go_on_alone(&mut self, working: &mut Working, context: &mut Context<'_>) -> Go {
        if self.begun && self.updates.rewind().is_err() {
            context.checks.torn(context.pid, working.generation);
            return Go::End(Ending::Torn);
        }
        self.set_numbers(self.counters());
        self.go_on(working, context, self.weights.made)
    }

    /// Resumes after the given number of updates.
    fn go_on(&mut self, working: &mut Working, context: &mut Context<'_>, updates: u64) -> Go {
        context.note(|| format!("goes on after update {updates}"));
        context.checks.meet(context.pid, working.generation, updates);
        (self.begun, self.agreed, self.until) = (true, working.generation, None);
        working.open(BETWEEN);
        self.between(working, context)
    }

    /// Performs the actions of the state transfer, up to the next round. After the last round, resumes training, or
    /// ends the worker if the transfer has failed.
    fn hand_over(&mut self, working: &mut Working, context: &mut Context<'_>) -> Go {
        let Stage::Meeting(handover, round) = &mut self.stage else { return Go::On };
        loop {
            match handover.next_action() {
                Next::Exchange(Round { what, is_first, to, body }) => {
                    *round += 1;
                    context.trigger(working.generation, 0, *round);
                    let patience =
                        self.until.map_or(patience(context), |until| until.saturating_sub(context.now()));
                    let timeout = if is_first { patience } else { context.plan.script.timeout };
                    let body =
                        |to_whom: usize| if to.contains(&to_whom) { body.clone() } else { Bytes::new() };
                    say(working, context, self.steps, Operation::Recover, &what, timeout, body);
                    return Go::On;
                }
                Next::Provide => handover.provide_state(Ok(self.weights.image().into())),
                Next::Receive { image, source, counters } => {
                    let weights = Weights::of_image(&image);
                    context.note(|| format!("takes {weights:?} of worker {source} over"));
                    if let Some(weights) = weights {
                        self.weights = weights;
                        if !context.has(Planted::TakenUncounted) {
                            (self.begun, self.updates, self.steps) =
                                (true, Updates::after(counters), counters.steps);
                        }
                    }
                    handover.received(weights.map(|_| ()).ok_or_else(|| "no state".to_owned()));
                }
                Next::End(Ok(agreed)) => {
                    if let Some(agreed) = agreed {
                        self.set_numbers(agreed.counters);
                    }
                    let updates = agreed.map_or(0, |agreed| agreed.counters.updates);
                    return self.go_on(working, context, updates);
                }
                Next::End(Err(Failure::Torn(..))) => {
                    context.checks.torn(context.pid, working.generation);
                    return Go::End(Ending::Torn);
                }
                Next::End(Err(failure)) => {
                    context.broken(format!("cannot agree: {failure:?}"));
                    return Go::End(Ending::Failed(format!("{failure:?}")));
                }
            }
        }
    }

    /// Begins to compute before the next step.
    fn between(&mut self, working: &mut Working, context: &mut Context<'_>) -> Go {
        self.stage = Stage::Between;
        let (script, me) = (&context.plan.script, working.world.worker());
        let pause = context
            .plan
            .course
            .as_ref()
            .map_or(Duration::ZERO, |course| course.pause(script, working.generation, me, self.steps));
        let time = script.compute(working.generation, me, self.steps, 0);
        working.compute(context, time + pause);
        Go::On
    }

    /// Makes the call with which all workers begin a step or complete the training run.
    fn begin(&mut self, working: &mut Working, context: &mut Context<'_>) -> Go {
        let timeout = context.plan.script.timeout;
        context.trigger(working.generation, self.steps + 1, 0);
        if self.is_at_the_end(context) {
            let what = "the end of the training";
            say(working, context, self.steps, Operation::Barrier, what, timeout, |_| Bytes::new());
            return Go::On;
        }
        self.updates.begin(self.steps);
        self.waiting = working.waiting(context) as u64;
        self.proposed = self.propose(working, context);
        let mine = [self.steps, working.next_number(RUN), self.waiting, self.proposed];
        let mine = mine.map(u64::to_le_bytes).concat();
        say(working, context, self.steps, Operation::Run, "", timeout, |_| mine.clone().into());
        Go::On
    }

    /// Returns the rank of the worker that this worker proposes to replace before the next step; 0 if it proposes
    /// nothing. Only a worker that holds the connection to a spare makes a proposal.
    fn propose(&self, working: &Working, context: &Context<'_>) -> u64 {
        let (world, script) = (working.world, &context.plan.script);
        let course = context.plan.course.as_ref().filter(|_| working.has_spare());
        let proposed = course
            .and_then(|course| course.replaces(script, working.generation, world.workers(), self.steps));
        proposed.filter(|rank| *rank != world.worker()).unwrap_or(0) as u64
    }

    fn is_at_the_end(&self, context: &Context<'_>) -> bool {
        context.plan.course.as_ref().is_none_or(|course| self.steps >= course.steps)
    }

    /// Begins the step that all workers have agreed to begin, or a rendezvous if other workers are waiting to join or a
    /// spare takes the place of a worker.
    fn begun(&mut self, working: &mut Working, context: &mut Context<'_>, bodies: &[Bytes]) -> Go {
        let (mut number, mut waiting) = (working.next_number(RUN), self.waiting);
        let mut proposed = vec![0; working.world.workers()];
        proposed[working.world.worker()] = self.proposed;
        for (from, body) in bodies.iter().enumerate().filter(|(from, _)| *from != working.world.worker()) {
            let theirs: Vec<_> =
                body.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number)).collect();
            match theirs[..] {
                [steps, theirs, more, replaces] if steps == self.steps => {
                    number = number.max(theirs);
                    waiting += more;
                    if !context.has(Planted::ProposalUnheard) {
                        proposed[from] = replaces;
                    }
                }
                ref other => {
                    context.broken(format!("is at step {}, and worker {from} at {other:?}", self.steps))
                }
            }
        }
        if waiting > 0 && !context.has(Planted::WaitingIgnored) {
            context.note(|| format!("{waiting} wait to take part"));
            self.until.get_or_insert(context.now() + patience(context));
            return Go::Meet;
        }
        // INV-113
        self.replaced = proposed.into_iter().find(|rank| *rank > 0).map(|rank| rank as usize);
        let place = self.replaced.and_then(|rank| working.places().get(rank).copied());
        if context.plan.faults.is_empty() {
            context.checks.decided((working.generation, self.steps), place);
        }
        if let Some(place) = place {
            context.note(|| format!("a spare takes the place of worker {place}"));
            self.until.get_or_insert(context.now() + patience(context));
            return Go::Meet;
        }
        context.checks.begun(context.pid);
        self.steps += 1;
        let between = working.open_at(RUN, number);
        self.stage = Stage::InStep(0, Box::new(between));
        self.compute(working, context, 1);
        Go::On
    }

    fn compute(&self, working: &mut Working, context: &Context<'_>, call: u64) {
        let time = context.plan.script.compute(working.generation, working.world.worker(), self.steps, call);
        working.compute(context, time);
    }

    /// Makes a call of a step.
    fn call(&mut self, working: &mut Working, context: &mut Context<'_>) -> Go {
        let Stage::InStep(call, _) = &self.stage else { return Go::On };
        context.trigger(working.generation, self.steps, *call as u64 + 1);
        let (me, update) = (working.world.worker(), self.weights.made + 1);
        let brought = brought(working, context, me, update);
        let body = Bytes::from([update, brought].map(u64::to_le_bytes).concat());
        let timeout = context.plan.script.timeout;
        say(working, context, self.steps, Operation::AllReduce, "SUM", timeout, |_| body.clone());
        Go::On
    }

    /// Continues after all workers have made a call of the step: updates the weights if the call is an update, and
    /// begins to compute for the next call or, after the last one, for the next step.
    fn called(&mut self, working: &mut Working, context: &mut Context<'_>, bodies: &[Bytes]) -> Go {
        let stage = std::mem::take(&mut self.stage);
        let (Stage::InStep(call, between), Some(course)) = (stage, &context.plan.course) else {
            return Go::On;
        };
        if course.calls[call] {
            self.update(working, context, bodies);
        }
        if call + 1 < course.calls.len() {
            self.stage = Stage::InStep(call + 1, between);
            self.compute(working, context, call as u64 + 2);
            return Go::On;
        }
        let returned =
            |replica| ReplicaStatus { presence: Presence::Returned, ..ReplicaStatus::running(replica) };
        let left = working.protocol.leave(working.world.local_replicas().map(returned).collect());
        working.say(context, &left);
        self.updates.end();
        working.protocol = *between;
        self.between(working, context)
    }

    fn update(&mut self, working: &Working, context: &mut Context<'_>, bodies: &[Bytes]) {
        let (me, update) = (working.world.worker(), self.weights.made + 1);
        let mut sum = brought(working, context, me, update);
        for (from, body) in bodies.iter().enumerate().filter(|(from, _)| *from != me) {
            let [theirs, brought] = [0, 8].map(|at| {
                body.get(at..at + 8).and_then(|body| body.try_into().ok()).map_or(0, u64::from_le_bytes)
            });
            if theirs != update {
                context.broken(format!("makes update {update}, and worker {from} update {theirs}"));
            }
            sum = sum.wrapping_add(brought);
        }
        self.weights.update(sum);
        self.updates.record_update();
        context.note(|| format!("has made update {update}"));
        context.checks.updated();
        // INV-42
        if self.weights != Weights::after(&context.plan.script, update) {
            context.broken(format!("has another state after update {update} than without an interruption"));
        }
        if self.updates.count() != update {
            context.broken(format!("makes update {update} as number {}", self.updates.count()));
        }
    }

    /// Handles the result of a call.
    pub fn decided(
        &mut self,
        working: &mut Working,
        context: &mut Context<'_>,
        made: Result<Vec<Bytes>, Arc<Blame>>,
    ) -> Go {
        let mut bodies = match made {
            Ok(bodies) => bodies,
            Err(blame) => return self.lost(working, context, &blame),
        };
        let me = working.world.worker();
        for (from, body) in bodies.iter_mut().enumerate().filter(|(from, _)| *from != me) {
            // INV-34
            if body.len() < 8 || body.split_to(8) != working.generation.to_le_bytes()[..] {
                context.broken(format!("uses what worker {from} has sent in another generation"));
            }
        }
        let is_at_the_end = self.is_at_the_end(context);
        match &mut self.stage {
            Stage::Started => Go::On,
            Stage::Meeting(handover, _) => {
                handover.receive(bodies);
                self.hand_over(working, context)
            }
            Stage::Between if is_at_the_end => {
                context.checks.trained(self.weights);
                Go::End(Ending::Done)
            }
            Stage::Between => self.begun(working, context, &bodies),
            Stage::InStep(..) => self.called(working, context, &bodies),
        }
    }

    /// Handles a failed call: begins a rendezvous, or ends the program if the deadline or the recovery limit does not
    /// permit one.
    fn lost(&mut self, working: &Working, context: &mut Context<'_>, blame: &Blame) -> Go {
        context.note(|| format!("stops after step {}: {blame}", self.steps));
        if context.plan.elastic.is_some() && self.is_meeting() {
            // The cause may have been the workers that have come.
            self.until = None;
        }
        let until = *self.until.get_or_insert(context.now() + patience(context));
        if until <= context.now()
            || !self.recovery_limit.may_continue(blame, working.world, self.updates.count())
        {
            return Go::End(Ending::Failed(blame.to_string()));
        }
        if blame.fault == Fault::TimedOut && context.plan.certain == Certain::NobodyLate {
            context.broken(format!("takes one for late that is not: {blame}"));
        }
        context.checks.lost();
        Go::Meet
    }
}

fn patience(context: &Context<'_>) -> Duration {
    context.plan.course.as_ref().map_or(context.plan.join, |course| course.patience)
}

/// Returns this worker's contribution to an update.
fn brought(working: &Working, context: &Context<'_>, me: usize, update: u64) -> u64 {
    let script = &context.plan.script;
    if context.has(Planted::DealtAsBefore) {
        let place = working.places().get(me).copied().unwrap_or_default();
        return Weights::contribution(script, place, script.workers, update);
    }
    Weights::contribution(script, me, working.world.workers(), update)
}

/// Makes a call whose data begins with the generation.
fn say(
    working: &mut Working,
    context: &mut Context<'_>,
    step: u64,
    operation: Operation,
    what: &str,
    timeout: Duration,
    body: impl Fn(usize) -> Bytes,
) {
    context.note(|| format!("step {step}: {operation:?} {what}"));
    let generation = working.generation.to_le_bytes();
    let call = Fingerprint::new(operation, what, Location::caller());
    let body = |_: &Frame, to: usize| Bytes::from([&generation[..], &body(to)].concat());
    working.call(context, step, call, body, timeout);
}
