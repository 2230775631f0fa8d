//! Workers: their sessions with coordinators, and the tasks that they run in a session.

use super::calls::{Doing, bytes, number, which};
use super::plan::{End, Resource, Step, ms};
use super::server::Change;
use super::world::{Event, Push, Who, Words, World};
use crate::network::{Arrival, Conn, Pid};
use crate::planted::Planted;
use distribute_coordinator::dispatch::Task;
use distribute_coordinator::queue::{self, Queue};
use distribute_coordinator::{Cancellation, Done, Failure, FailureKind, Hello, Origin, ResourceId, Work};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time between two checks for cancellation.
const SLICE: Duration = ms(100);

/// The time without a response after which a change is sent again.
const AGAIN: Duration = ms(400);

/// The time without a response after which a server is considered failed.
const PATIENCE: Duration = ms(3_000);

/// The maximum size in bytes of the results in one message. It is enough for two results.
const BYTES: usize = 20;

/// A process that is a worker.
#[derive(Debug)]
pub struct Worker {
    /// The index of the worker.
    pub number: usize,
    pub pid: Pid,
    /// The time at which the process was killed; `None` if it has not been.
    pub gone: Option<Duration>,
    /// The times at which the process was last stopped and at which it resumes; `None` if it has never been stopped.
    pub stopped: Option<(Duration, Duration)>,
    job: u64,
    /// The coordinator of the last session.
    served: u64,
    sessions: u64,
    session: Option<usize>,
}

/// A session: the work for one coordinator since it connected.
#[derive(Debug)]
pub struct Session {
    /// The sequence number of the session on its worker.
    id: u64,
    pub process: usize,
    pub job: u64,
    pub conn: Conn,
    queue: Queue,
    collector: bool,
    is_over: bool,
    running: Option<usize>,
    /// The resources that have been created in the session.
    made: BTreeMap<ResourceId, Stream>,
    /// The tasks that have begun, including those that have ended. Only these may time out.
    pub begun: BTreeSet<Task>,
}

/// The position of a stream, and the position that was last reported.
#[derive(Clone, Copy, Debug)]
struct Stream {
    at: u64,
    told: u64,
}

/// An attempt at a task.
#[derive(Debug)]
pub struct Execution {
    pub session: usize,
    pub task: Doing,
    cancellation: Cancellation,
    began: Duration,
    /// The index of the next step.
    step: usize,
    /// The time already spent computing in this step.
    computed: Duration,
    is_waiting: bool,
    /// The number of changes that have been sent.
    pushed: u64,
    /// The changes without a response, with the times at which they were first sent.
    unanswered: BTreeMap<u64, (Push, Duration)>,
    /// The elements that were taken. Each entry contains the resource, the position of the first element, and the
    /// position after the last.
    pub took: Vec<(ResourceId, u64, u64)>,
    pub is_over: bool,
}

impl World {
    /// Returns the running process of the worker with the given index; `None` if there is none.
    pub fn present(&self, number: usize) -> Option<usize> {
        self.workers.iter().rposition(|worker| worker.number == number && worker.gone.is_none())
    }

    /// Starts a process of a worker, unless one is already running.
    pub fn start_worker(&mut self, number: usize) {
        if self.present(number).is_some() {
            return;
        }
        let process = self.workers.len();
        let pid = self.pid(Who::Worker(process));
        let (gone, stopped, session) = (None, None, None);
        self.workers.push(Worker { number, pid, gone, stopped, job: 0, served: 0, sessions: 0, session });
        self.note(Who::Worker(process), || format!("starts as worker {number}"));
    }

    /// Handles a message from a coordinator at a worker.
    pub fn worker_hears(&mut self, process: usize, conn: Conn, words: Words) {
        match words {
            Words::Hello(hello) => self.hello(process, conn, &hello),
            Words::Submit(batch) => {
                if self.has(Planted::RunningReturned) {
                    self.give_back_running(process, &batch.work);
                }
                if let Some(session) = self.session(process, batch.session) {
                    self.sessions[session].queue.add(batch);
                    self.tell(session);
                    self.begin_next(session);
                }
            }
            Words::Collect { session } => match self.session(process, session) {
                Some(session) => {
                    self.sessions[session].collector = true;
                    self.tell(session);
                }
                None => self.say(process, conn, Words::Over),
            },
            _ => {}
        }
    }

    /// Returns the session with this sequence number, unless it is over.
    fn session(&self, process: usize, id: u64) -> Option<usize> {
        let session = self.workers[process].session;
        session.filter(|session| self.sessions[*session].id == id || self.has(Planted::AnySession))
    }

    fn say(&mut self, process: usize, conn: Conn, words: Words) {
        let pid = self.workers[process].pid;
        self.network.send(&mut self.agenda, pid, conn, Arrival::Message(words));
    }

    fn hello(&mut self, process: usize, conn: Conn, hello: &Hello) {
        let worker = &mut self.workers[process];
        if hello.job < worker.job && self.planted != Some(Planted::OldJob) {
            return self.say(process, conn, Words::Refused);
        }
        worker.job = hello.job;
        worker.sessions += 1;
        let (id, before) = (worker.sessions, worker.session.take());
        if let Some(before) = before
            && !self.has(Planted::SessionLives)
        {
            self.end_session(before);
        }
        // The program may wait for servers.
        let takes = ms(self.random.of(&[0, 0, 3, 1_500]));
        let at = self.agenda.now() + takes;
        self.agenda.at(at, Event::Started { process, id, conn, job: hello.job });
    }

    /// Begins a session, after the executor of the coordinator's calls has started. Rejects the coordinator if it or
    /// another one has connected to the worker in the meantime.
    pub fn started(&mut self, process: usize, id: u64, conn: Conn, job: u64) {
        if self.workers[process].sessions != id {
            return self.say(process, conn, Words::Refused);
        }
        if job < self.workers[process].job.max(self.workers[process].served) {
            self.checks.breaks(format!("a worker of coordinator {} works for an earlier one", job));
        }
        self.workers[process].served = job;
        let session = self.sessions.len();
        self.workers[process].session = Some(session);
        self.sessions.push(Session {
            id,
            process,
            job,
            conn,
            queue: Queue::new(job),
            collector: false,
            is_over: false,
            running: None,
            made: BTreeMap::new(),
            begun: BTreeSet::new(),
        });
        self.say(process, conn, Words::Welcome { session: id });
    }

    fn end_session(&mut self, session: usize) {
        let session = &mut self.sessions[session];
        session.is_over = true;
        session.queue.clear();
        let (process, conn) = (session.process, session.conn);
        if std::mem::take(&mut session.collector) {
            self.say(process, conn, Words::Over);
        }
    }

    fn tell(&mut self, session: usize) {
        let state = &mut self.sessions[session];
        if state.is_over || !state.collector || !state.queue.has_done() {
            return;
        }
        state.collector = false;
        let done = state.queue.take_done(BYTES);
        let (process, conn) = (state.process, state.conn);
        self.say(process, conn, Words::Collected(done));
    }

    fn begin_next(&mut self, session: usize) {
        let two = self.has(Planted::TwoAtOnce);
        loop {
            let state = &mut self.sessions[session];
            if state.is_over || state.running.is_some() && !two {
                return;
            }
            let Some((task, cancellation)) = state.queue.next() else { return };
            let doing = match task {
                queue::Task::Forget(resource) => {
                    state.made.remove(&resource);
                    state.queue.finish(None);
                    continue;
                }
                queue::Task::Create { resource, call, creates_variables: _, position } => {
                    self.checks.uses_made(&self.sessions[session], &call);
                    let position = position.as_ref().map_or(0, number);
                    Doing::Resource { id: resource, which: which(&call), position }
                }
                queue::Task::Call { origin, call } => {
                    self.checks.uses_made(&self.sessions[session], &call);
                    self.check_begun(session, origin);
                    Doing::Closure { origin, which: which(&call), resources: call.resources().collect() }
                }
            };
            self.begin(session, doing, cancellation);
        }
    }

    fn begin(&mut self, session: usize, task: Doing, cancellation: Cancellation) {
        let execution = self.executions.len();
        let process = self.sessions[session].process;
        self.note(Who::Worker(process), || format!("session {session} begins {task:?} as {execution}"));
        self.sessions[session].running = Some(execution);
        self.sessions[session].begun.insert(task.task());
        self.executions.push(Execution {
            session,
            task,
            cancellation,
            began: self.agenda.now(),
            step: 0,
            computed: Duration::ZERO,
            is_waiting: false,
            pushed: 0,
            unanswered: BTreeMap::new(),
            took: Vec::new(),
            is_over: false,
        });
        // Each begins shortly after it was taken, as in its own thread.
        let at = self.agenda.now() + Duration::from_micros(self.random.below(20) as u64);
        self.agenda.at(at, Event::Go(execution));
    }

    /// Continues an execution.
    pub fn go(&mut self, execution: usize) {
        match self.executions[execution].task.clone() {
            Doing::Resource { id, which, position } => self.go_on_making(execution, id, which, position),
            Doing::Closure { origin, which, resources } => {
                self.go_on(execution, origin, which, &resources);
            }
        }
    }

    fn go_on_making(&mut self, execution: usize, id: ResourceId, which: usize, position: u64) {
        let Resource { takes, end, .. } = self.plan.resources[which];
        if self.executions[execution].step == 0 {
            self.executions[execution].step = 1;
            let at = self.agenda.now() + takes;
            return self.agenda.at(at, Event::Go(execution));
        }
        let result = match end {
            End::Hangs => return,
            End::Fails => Err(failure(FailureKind::Function)),
            End::Panics => Err(failure(FailureKind::Panicked)),
            End::Well | End::Kills if self.random.below(1_000) < self.plan.unanswered => {
                Err(failure(FailureKind::Server))
            }
            End::Well | End::Kills => {
                let session = self.executions[execution].session;
                self.sessions[session].made.insert(id, Stream { at: position, told: position });
                Ok(())
            }
        };
        self.finish(execution, Done::Created { resource: id, result });
    }

    fn go_on(&mut self, execution: usize, origin: Origin, which: usize, resources: &[ResourceId]) {
        let closure = self.plan.closures[which].clone();
        loop {
            let now = self.agenda.now();
            let state = &mut self.executions[execution];
            if state.is_over {
                return;
            }
            if !closure.deaf && state.cancellation.is_cancelled() {
                return self.ended(execution, Err(failure(FailureKind::Cancelled)));
            }
            match closure.steps.get(state.step) {
                Some(Step::Compute(time)) => {
                    let left = time.saturating_sub(state.computed);
                    if !left.is_zero() {
                        let slice = left.min(SLICE);
                        state.computed += slice;
                        return self.agenda.at(now + slice, Event::Go(execution));
                    }
                    state.computed = Duration::ZERO;
                }
                Some(Step::Take { argument, count }) => {
                    let (session, id) = (state.session, resources[*argument]);
                    let Some(stream) = self.sessions[session].made.get_mut(&id) else { return };
                    state.took.push((id, stream.at, stream.at + count));
                    stream.at += count;
                }
                Some(Step::Push { server }) => {
                    let push = Push { execution, server: *server, origin, number: state.pushed };
                    state.pushed += 1;
                    if self.random.below(1_000) < self.plan.unanswered {
                        // The change may have reached the server nevertheless.
                        self.push(push);
                        return self.ended(execution, Err(failure(FailureKind::Server)));
                    }
                    state.unanswered.insert(push.number, (push, now));
                    self.push(push);
                    self.agenda.at(now + AGAIN, Event::Again(push));
                }
                Some(Step::Wait) | None if !state.unanswered.is_empty() => {
                    state.is_waiting = true;
                    return;
                }
                Some(Step::Wait) => {}
                None => match closure.end {
                    End::Well => return self.ended(execution, Ok(())),
                    End::Fails => return self.ended(execution, Err(failure(FailureKind::Function))),
                    End::Panics => return self.ended(execution, Err(failure(FailureKind::Panicked))),
                    // It hangs, and does not check.
                    End::Hangs => return,
                    End::Kills => {
                        let process = self.sessions[self.executions[execution].session].process;
                        return self.kill(self.workers[process].number, false);
                    }
                },
            }
            self.executions[execution].step += 1;
        }
    }

    /// Sends a change to its server.
    fn push(&mut self, push: Push) {
        let host = self.worker_host(push.execution);
        let server = self.server_host(push.server);
        if let Some(at) = self.way(host, server) {
            self.agenda.at(at, Event::Push(push));
        }
    }

    /// Handles the arrival of a change at its server. A server that does not respond at the moment ignores the change.
    pub fn pushed(&mut self, push: Push) {
        let now = self.agenda.now();
        if self.down[push.server] > now {
            return;
        }
        let change = match self.servers[push.server].change(push.origin, push.number) {
            Change::Known if self.has(Planted::NoLedger) => Change::Made,
            change => change,
        };
        self.check_change(push, change);
        let (from, to) = (self.server_host(push.server), self.worker_host(push.execution));
        if let Some(at) = self.way(from, to) {
            self.agenda.at(at, Event::Answer(push, change));
        }
    }

    /// Handles a server's response to a change. If the change was refused, the closure fails. Otherwise continues the
    /// closure if it was only waiting for this response.
    pub fn answered(&mut self, push: Push, change: Change) {
        let state = &mut self.executions[push.execution];
        if state.is_over || state.unanswered.remove(&push.number).is_none() {
            return;
        }
        if change == Change::Refused {
            return self.ended(push.execution, Err(failure(FailureKind::Function)));
        }
        if state.is_waiting && state.unanswered.is_empty() {
            state.is_waiting = false;
            self.go(push.execution);
        }
    }

    /// Sends a change again if the server has not responded. If the server has taken too long, the closure fails
    /// instead.
    pub fn push_again(&mut self, push: Push) {
        let now = self.agenda.now();
        let state = &mut self.executions[push.execution];
        let Some((_, since)) = state.unanswered.get(&push.number).filter(|_| !state.is_over) else { return };
        if now >= *since + PATIENCE {
            return self.ended(push.execution, Err(failure(FailureKind::Server)));
        }
        self.push(push);
        self.agenda.at(now + AGAIN, Event::Again(push));
    }

    /// Ends the execution of a closure with the result of its code, and reports the new positions of the streams from
    /// which it has taken elements. If a server has failed, returns the streams to their last reported positions
    /// instead.
    fn ended(&mut self, execution: usize, result: Result<(), Failure>) {
        let state = &self.executions[execution];
        let Doing::Closure { origin, .. } = state.task else { return };
        let micros = (self.agenda.now() - state.began).as_micros() as u64;
        let goes_back = matches!(&result, Err(failure) if failure.kind == FailureKind::Server);
        let goes_back = goes_back && !self.has(Planted::AttemptMoves);
        let mut positions = Vec::new();
        for (id, stream) in &mut self.sessions[state.session].made {
            if goes_back {
                stream.at = stream.told;
            } else if stream.at != stream.told {
                stream.told = stream.at;
                positions.push((*id, bytes(stream.at)));
            }
        }
        let result = result.map(|()| bytes(execution as u64));
        self.finish(execution, Done::Called { closure: origin.closure, result, micros, positions });
    }

    fn finish(&mut self, execution: usize, done: Done) {
        let session = self.executions[execution].session;
        self.executions[execution].is_over = true;
        let process = self.sessions[session].process;
        self.note(Who::Worker(process), || format!("session {session}, {execution} ends: {done:?}"));
        let state = &mut self.sessions[session];
        if state.is_over {
            return;
        }
        state.queue.finish(Some(done));
        state.running = None;
        self.tell(session);
        self.begin_next(session);
    }

    /// Returns the process in which an execution runs.
    pub fn process(&self, execution: usize) -> usize {
        self.sessions[self.executions[execution].session].process
    }

    /// Returns `true` if a session is the current session of its process.
    pub fn is_present(&self, process: usize, session: usize) -> bool {
        self.workers[process].session == Some(session)
    }

    fn worker_host(&self, execution: usize) -> usize {
        self.workers[self.process(execution)].number
    }

    /// Returns a closure to the coordinator that asks for it, although the closure is running. This is the effect of a
    /// planted bug.
    fn give_back_running(&mut self, process: usize, work: &[Work]) {
        let Some(session) = self.workers[process].session else { return };
        let Session { running: Some(execution), conn, .. } = self.sessions[session] else { return };
        if let Task::Closure(closure) = self.executions[execution].task.task()
            && work.contains(&Work::Return(closure))
        {
            self.say(process, conn, Words::Collected(vec![Done::Returned(closure)]));
        }
    }
}

impl Session {
    /// Returns `true` if a resource has been created in this session.
    pub fn has_made(&self, id: ResourceId) -> bool {
        self.made.contains_key(&id)
    }

    /// Returns the execution that is running; `None` if there is none.
    pub fn running(&self) -> Option<usize> {
        self.running
    }

    /// Returns `true` if the session is over.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

fn failure(kind: FailureKind) -> Failure {
    Failure::new(kind, "as planned")
}
