//! Coordinators: their programs, and the threads that follow their workers.

use super::calls::bytes;
use super::plan::{CANCEL, CLOSURE, ms};
use super::world::{Event, Who, Words, World};
use crate::network::{Arrival, Conn, Pid};
use crate::planted::Planted;
use bytes::Bytes;
use distribute_coordinator::dispatch::{Dispatch, Limits, Outcome, Task};
use distribute_coordinator::{
    Argument, Batch, Call, ClosureId, Done, Failure, FailureKind, FunctionId, Hello, ResourceId, Work,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time after which the coordinator connects to a lost worker again.
const RETRY: Duration = ms(200);

/// The time within which a worker must answer a connection attempt.
const ANSWERED: Duration = ms(5_000);

/// A process that is a coordinator.
#[derive(Debug)]
pub struct Chief {
    pub host: usize,
    pub job: u64,
    pub dispatch: Dispatch,
    pub follows: Vec<Follow>,
    /// Whether the program has finished.
    pub has_finished: bool,
    /// The closures that have not ended, with their indices in the program.
    pub open: BTreeMap<ClosureId, usize>,
    /// The resources, by their indices in the program; `None` if a resource does not exist.
    pub resources: Vec<Option<ResourceId>>,
    /// The first failure that has not been reported to the program.
    pub first: Option<Failure>,
    /// The position of each stream on each worker, according to the closures whose results were accepted.
    pub consumed: BTreeMap<(ResourceId, usize), u64>,
    /// The worker that is creating the variables of each resource, and whether they have been created.
    pub variables: BTreeMap<ResourceId, (Option<usize>, bool)>,
    /// The number of workers that were lost while each closure was the first of their closures.
    pub losses: BTreeMap<ClosureId, u32>,
    pid: Pid,
    pub is_gone: bool,
    /// The servers that have not registered this coordinator yet.
    pub beginning: BTreeSet<usize>,
    /// The index of the program's next act.
    pub next: usize,
    /// The index of the first act whose closure this coordinator schedules. An earlier coordinator has handled the
    /// others.
    pub skipped: usize,
    /// The current task of each worker, and the time at which it began.
    pub busy: Vec<Option<(Task, Duration)>>,
    sending: Vec<bool>,
    /// The number of times in a row that each worker's thread woke up for work and found none.
    pub idle: Vec<u32>,
    /// The time until which the program rests.
    pub rests: Duration,
}

/// The state of the connection to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    Away,
    Asked(Conn),
    Works { conn: Conn, session: u64 },
}

/// Creates a call to the closure or resource that has the index `number` in the program.
pub fn call(number: usize, resources: impl Iterator<Item = ResourceId>) -> Call {
    let function = FunctionId { name: "f".to_owned(), source: 0 };
    let number = Argument::Value(bytes(number as u64));
    Call { function, arguments: std::iter::once(number).chain(resources.map(Argument::Resource)).collect() }
}

impl Chief {
    /// Describes the state, for the error of a simulation that does not end.
    pub fn describe(&self) -> String {
        let Self { next, open, follows, busy, dispatch, .. } = self;
        let (queued, settling) = (dispatch.queued(), dispatch.is_cancelling());
        format!("at act {next}, {queued} queued, settling: {settling}, {open:?}, {follows:?}, busy: {busy:?}")
    }

    /// Updates the start time of the worker's current task: if the task has changed, it began `now`.
    fn look_at(&mut self, worker: usize, now: Duration) {
        let task = self.dispatch.running(worker).map(|(task, _)| task);
        if self.busy[worker].map(|(task, _)| task) != task {
            self.busy[worker] = task.map(|task| (task, now));
        }
    }
}

impl World {
    /// Starts another coordinator. It skips the closures before a randomly chosen act that the previous coordinator has
    /// reached, as if that coordinator had saved its state there.
    pub fn start_chief(&mut self) {
        let number = self.chiefs.len();
        let pid = self.pid(Who::Chief(number));
        let Limits { queue, window, .. } = self.plan.limits;
        let limits = match self.planted {
            Some(Planted::QueueUnbounded) => Limits { queue: 2 * queue, ..self.plan.limits },
            Some(Planted::WindowExceeded) => Limits { window: 2 * window, ..self.plan.limits },
            _ => self.plan.limits,
        };
        let workers = self.plan.workers;
        // It resumes from the state that the previous one saved.
        let skipped = self.chiefs.last().map_or(0, |before| {
            before.skipped + self.random.below(before.next.saturating_sub(before.skipped) + 1)
        });
        self.chiefs.push(Chief {
            host: workers + self.plan.servers + number,
            job: 1 + number as u64,
            dispatch: Dispatch::new(workers, limits),
            follows: vec![Follow::Away; workers],
            has_finished: false,
            open: BTreeMap::new(),
            resources: vec![None; self.plan.resources.len()],
            first: None,
            consumed: BTreeMap::new(),
            variables: BTreeMap::new(),
            losses: BTreeMap::new(),
            pid,
            is_gone: false,
            beginning: (0..self.plan.servers).collect(),
            next: 0,
            skipped,
            busy: vec![None; workers],
            sending: vec![false; workers],
            idle: vec![0; workers],
            rests: Duration::ZERO,
        });
        self.note(Who::Chief(number), || format!("starts, closures from act {skipped} on"));
        let now = self.agenda.now();
        for server in 0..self.plan.servers {
            self.agenda.at(now, Event::Begin { chief: number, server });
        }
    }

    /// Kills a coordinator's process.
    pub fn kill_chief(&mut self, chief: usize) {
        self.note(Who::Chief(chief), || "is gone".to_owned());
        let state = &mut self.chiefs[chief];
        state.is_gone = true;
        state.follows.fill(Follow::Away);
        let pid = state.pid;
        for conn in self.network.of(pid) {
            self.network.close(&mut self.agenda, pid, conn, "it was killed");
        }
    }

    /// Tries to register a coordinator on a server, and schedules the next try. Does nothing if the server has already
    /// responded, or if the coordinator has been killed. A server on which the coordinator is registered accepts only
    /// changes by its closures. The coordinator connects to workers after all servers have responded.
    pub fn begin_job(&mut self, chief: usize, server: usize) {
        let state = &self.chiefs[chief];
        if state.is_gone || !state.beginning.contains(&server) {
            return;
        }
        let (job, host) = (state.job, state.host);
        let now = self.agenda.now();
        let to = self.server_host(server);
        if self.down[server] <= now
            && self.way(host, to).is_some()
            && let Some(at) = self.way(to, host)
        {
            self.servers[server].begin(job);
            self.agenda.at(at, Event::Begun { chief, server });
        }
        self.agenda.at(now + ms(500), Event::Begin { chief, server });
    }

    /// Records that a server has registered the coordinator. After the last server, the coordinator begins its program
    /// and connects to the workers.
    pub fn job_begun(&mut self, chief: usize, server: usize) {
        let now = self.agenda.now();
        let state = &mut self.chiefs[chief];
        if state.beginning.remove(&server) && state.beginning.is_empty() {
            (0..self.plan.workers).for_each(|worker| self.agenda.at(now, Event::Connect { chief, worker }));
            self.agenda.at(now, Event::Act(chief));
        }
    }

    /// Begins to connect to a worker, unless the coordinator is already connected or connecting, or has been killed.
    pub fn connect(&mut self, chief: usize, worker: usize) {
        let Chief { is_gone, follows, pid, host, .. } = &mut self.chiefs[chief];
        if *is_gone || follows[worker] != Follow::Away {
            return;
        }
        let conn = self.network.connect(&mut self.agenda, *pid, *host, worker, 0);
        follows[worker] = Follow::Asked(conn);
        let at = self.agenda.now() + ANSWERED;
        self.agenda.at(at, Event::Unanswered { chief, worker, conn });
    }

    /// Marks a worker as lost if it has not answered the connection attempt.
    pub fn unanswered(&mut self, chief: usize, worker: usize, conn: Conn) {
        if self.chiefs[chief].follows[worker] == Follow::Asked(conn) {
            self.mark_lost(chief, worker, "it does not answer");
        }
    }

    /// Handles what arrives at a coordinator over a connection to a worker.
    pub fn chief_hears(&mut self, chief: usize, conn: Conn, what: Arrival<Words>) {
        let worker = self.network.leads_to(conn);
        let follow = self.chiefs[chief].follows[worker];
        if !matches!(follow, Follow::Asked(of) | Follow::Works { conn: of, .. } if of == conn) {
            return;
        }
        match what {
            Arrival::Made => {
                let state = &self.chiefs[chief];
                let hello = Hello {
                    job: state.job,
                    worker,
                    workers: self.plan.workers,
                    functions: Vec::new(),
                    settings: Bytes::new(),
                };
                self.ask(chief, conn, Words::Hello(hello));
            }
            Arrival::Message(Words::Welcome { session }) => {
                self.note(Who::Chief(chief), || format!("worker {worker} works"));
                let state = &mut self.chiefs[chief];
                state.follows[worker] = Follow::Works { conn, session };
                state.dispatch.worker_joined(worker);
                state.busy[worker] = None;
                self.ask(chief, conn, Words::Collect { session });
            }
            Arrival::Message(Words::Collected(done)) => {
                if let Follow::Works { session, .. } = follow {
                    self.collected(chief, worker, conn, done);
                    self.ask(chief, conn, Words::Collect { session });
                }
            }
            Arrival::Message(Words::Refused) => self.mark_lost(chief, worker, "it refuses"),
            Arrival::Message(Words::Over) => self.mark_lost(chief, worker, "the session is over"),
            Arrival::Closed(why) => self.mark_lost(chief, worker, &why),
            _ => {}
        }
        self.stir(chief);
    }

    /// Delivers results that have arrived over a closed connection to the latest coordinator, as soon as it has a
    /// session with the worker. This is the effect of a planted bug.
    pub fn late_words(&mut self, conn: Conn, what: Arrival<Words>) {
        let worker = self.network.leads_to(conn);
        let Arrival::Message(Words::Collected(done)) = what else { return };
        let chief = self.chiefs.len() - 1;
        if matches!(self.chiefs[chief].follows[worker], Follow::Works { .. }) {
            self.collected(chief, worker, conn, done);
            return self.stir(chief);
        }
        let (at, what) = (self.agenda.now() + ms(10), Arrival::Message(Words::Collected(done)));
        self.agenda.at(at, Event::Arrive { conn, side: 0, what });
    }

    fn ask(&mut self, chief: usize, conn: Conn, words: Words) {
        let pid = self.chiefs[chief].pid;
        self.network.send(&mut self.agenda, pid, conn, Arrival::Message(words));
    }

    fn collected(&mut self, chief: usize, worker: usize, conn: Conn, done: Vec<Done>) {
        self.note(Who::Chief(chief), || format!("from worker {worker}: {done:?}"));
        for done in done {
            self.check_done(chief, worker, conn, &done);
            let ended = match &done {
                Done::Called { closure, .. } if self.has(Planted::OutcomeTwice) => Some(*closure),
                _ => None,
            };
            let cancelled = self.chiefs[chief].dispatch.is_cancelling();
            self.chiefs[chief].dispatch.record_result(worker, done);
            self.take_outcomes(chief);
            if let Some(closure) = ended.filter(|_| cancelled) {
                let result = Err(Failure::new(FailureKind::Cancelled, "planted"));
                self.check_outcome(chief, &Outcome { closure, result });
            }
        }
        let now = self.agenda.now();
        self.chiefs[chief].look_at(worker, now);
        self.check_positions(chief, worker);
    }

    /// Disconnects from a worker, and schedules the next connection attempt. If the coordinator had a session with the
    /// worker, marks it as lost.
    fn mark_lost(&mut self, chief: usize, worker: usize, why: &str) {
        let now = self.agenda.now();
        let state = &mut self.chiefs[chief];
        let follow = std::mem::replace(&mut state.follows[worker], Follow::Away);
        if let Follow::Works { conn, .. } | Follow::Asked(conn) = follow {
            self.network.forget(state.pid, conn);
        }
        let had = state.dispatch.assigned(worker).next().map(|(id, _)| id);
        if matches!(follow, Follow::Works { .. }) && self.planted != Some(Planted::LossUntold) {
            if let Some(had) = had {
                *state.losses.entry(had).or_default() += 1;
            }
            state.dispatch.worker_lost(worker, why);
            state.busy[worker] = None;
            state.idle[worker] = 0;
            state.variables.values_mut().for_each(|(by, _)| _ = by.take_if(|by| *by == worker));
        }
        self.note(Who::Chief(chief), || format!("worker {worker} was lost: {why}"));
        self.agenda.at(now + RETRY, Event::Connect { chief, worker });
        self.take_outcomes(chief);
        self.stir(chief);
    }

    /// Does the regular checks of a coordinator: marks silent workers as lost, and ends the sessions of workers whose
    /// task has been running for too long. Then continues the program.
    pub fn look(&mut self, chief: usize) {
        let now = self.agenda.now();
        for worker in 0..self.plan.workers {
            let state = &self.chiefs[chief];
            if state.is_gone {
                return;
            }
            match state.follows[worker] {
                Follow::Away => {}
                Follow::Asked(conn) | Follow::Works { conn, .. } if self.is_silent(chief, worker, conn) => {
                    self.mark_lost(chief, worker, "it is silent");
                }
                Follow::Works { .. } => {
                    self.check_quiet(chief, worker);
                    let state = &self.chiefs[chief];
                    let Some((task, since)) = state.busy[worker] else { continue };
                    let is_cancelled = matches!(task, Task::Closure(_)) && state.dispatch.is_cancelling();
                    if now - since >= if is_cancelled { CANCEL } else { CLOSURE } {
                        self.give_up(chief, worker, task, is_cancelled);
                    }
                }
                Follow::Asked(_) => {}
            }
        }
        self.stir(chief);
    }

    fn give_up(&mut self, chief: usize, worker: usize, task: Task, is_cancelled: bool) {
        self.note(Who::Chief(chief), || format!("worker {worker} is given up for {task}"));
        self.check_late(chief, worker, task, is_cancelled);
        let state = &mut self.chiefs[chief];
        state
            .dispatch
            .worker_timed_out(worker, Failure::new(FailureKind::TimedOut, "it has not ended in time"));
        let follow = std::mem::replace(&mut state.follows[worker], Follow::Away);
        if let Follow::Works { conn, .. } = follow {
            self.network.forget(state.pid, conn);
        }
        state.busy[worker] = None;
        state.variables.values_mut().for_each(|(by, _)| _ = by.take_if(|by| *by == worker));
        let at = self.agenda.now() + RETRY;
        self.agenda.at(at, Event::Connect { chief, worker });
        self.take_outcomes(chief);
    }

    /// Checks the outcomes of the closures that have ended since the last call.
    pub fn take_outcomes(&mut self, chief: usize) {
        let outcomes: Vec<_> = self.chiefs[chief].dispatch.outcomes().collect();
        for outcome in outcomes {
            self.note(Who::Chief(chief), || format!("{outcome:?}"));
            self.check_outcome(chief, &outcome);
        }
    }

    /// Continues the program, and wakes the threads that have work to send.
    pub fn stir(&mut self, chief: usize) {
        self.proceed(chief);
        let now = self.agenda.now();
        for worker in 0..self.plan.workers {
            let state = &mut self.chiefs[chief];
            let works = matches!(state.follows[worker], Follow::Works { .. });
            if works && !state.sending[worker] && state.dispatch.has_work(worker) {
                state.sending[worker] = true;
                let after = Duration::from_micros(self.random.below(100) as u64);
                self.agenda.at(now + after, Event::Send { chief, worker });
            }
        }
    }

    /// Sends a worker its current work, if the coordinator has a session with it.
    pub fn send(&mut self, chief: usize, worker: usize) {
        let now = self.agenda.now();
        let state = &mut self.chiefs[chief];
        state.sending[worker] = false;
        let Follow::Works { conn, session } = state.follows[worker] else { return };
        let has_work = state.dispatch.has_work(worker);
        let mut work = state.dispatch.take(worker);
        state.look_at(worker, now);
        let mut floor = state.dispatch.floor();
        // Closures that cannot run on any worker have ended.
        let open = state.open.len();
        self.take_outcomes(chief);
        let state = &mut self.chiefs[chief];
        let is_idle = work.is_empty() && open == state.open.len();
        state.idle[worker] = if is_idle { state.idle[worker] + 1 } else { 0 };
        if !work.is_empty() {
            self.note(Who::Chief(chief), || format!("to worker {worker}: {work:?}, floor {floor}"));
        }
        match self.planted {
            Some(Planted::FloorHigh) => floor.0 += 1,
            Some(Planted::CancelUnsent) => work.retain(|work| !matches!(work, Work::Cancel(_))),
            Some(Planted::VariablesTwice) => {
                for work in &mut work {
                    if let Work::Create { creates_variables, .. } = work {
                        *creates_variables = true;
                    }
                }
            }
            Some(Planted::PositionForgotten) => {
                for work in &mut work {
                    if let Work::Create { position, .. } = work {
                        *position = None;
                    }
                }
            }
            Some(Planted::ResourceKept) => self.keep_made(chief, worker, &mut work),
            _ => {}
        }
        self.check_work(chief, worker, &work, has_work);
        if !work.is_empty() {
            self.ask(chief, conn, Words::Submit(Batch { session, floor, work }));
        }
        self.stir(chief);
    }

    /// Records resources as created if this worker has created them in an earlier session, and removes them from the
    /// work. This is the effect of a planted bug.
    fn keep_made(&mut self, chief: usize, worker: usize, work: &mut Vec<Work>) {
        let state = &mut self.chiefs[chief];
        let mut made = Vec::new();
        work.retain(|work| match work {
            Work::Create { resource, .. } if state.consumed.contains_key(&(*resource, worker)) => {
                made.push(*resource);
                false
            }
            _ => true,
        });
        for resource in made {
            state.dispatch.record_result(worker, Done::Created { resource, result: Ok(()) });
        }
    }
}
