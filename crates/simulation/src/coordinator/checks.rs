//! The rules that must hold in a coordinator's cluster.

use super::calls::{Doing, number};
use super::chief::Follow;
use super::plan::{End, Step};
use super::server::Change;
use super::worker::Session;
use super::world::{Push, World};
use crate::network::Conn;
use distribute_coordinator::dispatch::{Outcome, Task};
use distribute_coordinator::{Call, ClosureId, Done, Failure, FailureKind, Origin, Work};
use std::collections::BTreeSet;

/// The maximum number of times in a row that a worker's thread may wake up for work and find none.
const IDLE: u32 = 64;

/// The counts of a coordinator's cluster, and the rules that were broken.
#[derive(Debug, Default)]
pub struct Checks {
    /// The rules that were broken.
    pub broken: Vec<String>,
    /// The number of closures that have succeeded.
    pub well: usize,
    /// The number of closures that have failed.
    pub otherwise: usize,
    /// The changes that servers have made. Each entry contains the server, the coordinator, the closure and the
    /// change's number.
    made: BTreeSet<(usize, u64, ClosureId, u64)>,
}

impl Checks {
    pub fn breaks(&mut self, what: String) {
        self.broken.push(what);
    }

    /// Checks that the resources which a call uses have been created in its session.
    pub fn uses_made(&mut self, session: &Session, call: &Call) {
        if let Some(missing) = call.resources().find(|id| !session.has_made(*id)) {
            self.breaks(format!("{missing} has not been made"));
        }
    }
}

impl World {
    /// Returns the coordinator of a session; `None` if the coordinator has been killed or no longer uses the session's
    /// connection.
    fn lives(&self, session: usize) -> Option<usize> {
        let Session { job, conn, process, .. } = self.sessions[session];
        let chief = job as usize - 1;
        let follow = self.chiefs[chief].follows[self.workers[process].number];
        let lives = matches!(follow, Follow::Works { conn: of, .. } if of == conn);
        (lives && !self.chiefs[chief].is_gone).then_some(chief)
    }

    /// Returns the last session that was opened over a connection; `None` if there was none.
    fn session_over(&self, conn: Conn) -> Option<usize> {
        self.sessions.iter().rposition(|session| session.conn == conn)
    }

    /// Returns the last attempt at a task in the last session over a connection; `None` if there was none.
    fn execution(&self, conn: Conn, task: Task) -> Option<usize> {
        let session = self.session_over(conn)?;
        let is_it = |of: usize, doing: &Doing| of == session && doing.task() == task;
        self.executions.iter().rposition(|execution| is_it(execution.session, &execution.task))
    }

    // INV-60: a worker runs one closure at a time, and no other running worker runs the same closure.
    pub fn check_begun(&mut self, session: usize, origin: Origin) {
        let closure = origin.closure;
        if origin.floor > closure {
            self.checks.breaks(format!("{closure} begins, and before {} all have ended", origin.floor));
        }
        let process = self.sessions[session].process;
        if self.sessions[session].running().is_some() {
            self.checks.breaks(format!("{closure} begins while another one runs"));
        }
        if !self.is_present(process, session) {
            self.checks.breaks(format!("{closure} begins in a session that is over"));
        }
        let Some(chief) = self.lives(session) else { return };
        let worker = self.workers[process].number;
        if !self.chiefs[chief].dispatch.assigned(worker).any(|(id, _)| id == closure) {
            self.checks.breaks(format!("worker {worker} begins {closure}, which it was not given"));
        }
        let twice = self.executions.iter().any(|execution| {
            !execution.is_over
                && execution.session != session
                && execution.task.task() == Task::Closure(closure)
                && !self.sessions[execution.session].is_over()
                && self.workers[self.sessions[execution.session].process].gone.is_none()
                && self.lives(execution.session) == Some(chief)
        });
        if twice {
            self.checks.breaks(format!("{closure} begins while it runs elsewhere"));
        }
    }

    // INV-59: each change of a closure is made once. The changes of a closure that has not ended are not refused.
    pub fn check_change(&mut self, push: Push, change: Change) {
        let Push { execution, server, origin, number } = push;
        let what = || format!("change {number} of {} on server {server}", origin.closure);
        match change {
            Change::Known => {}
            Change::Made => {
                if !self.checks.made.insert((server, origin.job, origin.closure, number)) {
                    self.checks.breaks(format!("{} is made twice", what()));
                }
            }
            Change::Refused => {
                let session = self.executions[execution].session;
                let worker = self.workers[self.sessions[session].process].number;
                let is_given = |chief: usize| {
                    self.chiefs[chief].dispatch.assigned(worker).any(|(id, _)| id == origin.closure)
                };
                let chief = self.lives(session).filter(|chief| chief + 1 == self.chiefs.len());
                if chief.is_some_and(is_given) {
                    self.checks.breaks(format!("{} is refused", what()));
                }
            }
        }
    }

    // INV-61: each element is taken once, by a closure whose result counts.
    pub fn check_done(&mut self, chief: usize, worker: usize, conn: Conn, done: &Done) {
        let lives =
            matches!(self.chiefs[chief].follows[worker], Follow::Works { conn: of, .. } if of == conn);
        match done {
            Done::Returned(_) => {}
            Done::Created { resource, result } => {
                let position = self.execution(conn, Task::Resource(*resource));
                let position = position.map(|execution| match self.executions[execution].task {
                    Doing::Resource { position, .. } => position,
                    Doing::Closure { .. } => u64::MAX,
                });
                let state = &mut self.chiefs[chief];
                if let Some((by, made)) = state.variables.get_mut(resource)
                    && *by == Some(worker)
                {
                    (*by, *made) = (None, result.is_ok());
                }
                if result.is_ok() {
                    let at = *state.consumed.entry((*resource, worker)).or_default();
                    if position != Some(at) {
                        self.checks.breaks(format!("{resource} is made at {position:?}, and not at {at}"));
                    }
                }
            }
            Done::Called { closure, result, .. } => {
                if !self.chiefs[chief].dispatch.assigned(worker).any(|(id, _)| id == *closure) {
                    return;
                }
                if !lives {
                    self.checks.breaks(format!("a result of {closure} counts that is of a lost session"));
                }
                let Some(execution) = self.execution(conn, Task::Closure(*closure)) else {
                    if !matches!(result, Err(failure) if failure.kind == FailureKind::Cancelled) {
                        self.checks.breaks(format!("{closure} has a result, and never began"));
                    }
                    return;
                };
                if matches!(result, Err(failure) if failure.kind == FailureKind::Server) {
                    return;
                }
                for (id, from, to) in self.executions[execution].took.clone() {
                    let at = self.chiefs[chief].consumed.entry((id, worker)).or_default();
                    if *at != from {
                        let text =
                            format!("{closure} took {from}..{to} of {id} on worker {worker}, next was {at}");
                        self.checks.breaks(text);
                    }
                    *at = to;
                }
            }
        }
    }

    pub fn check_positions(&mut self, chief: usize, worker: usize) {
        let state = &self.chiefs[chief];
        for id in state.resources.iter().flatten() {
            let is = state.dispatch.positions(*id).and_then(|all| all[worker].as_ref().map(number));
            let ought = state.consumed.get(&(*id, worker)).copied().unwrap_or(0);
            if is.unwrap_or(0) != ought {
                self.checks.breaks(format!("{id} on worker {worker} is at {is:?}, and not at {ought}"));
            }
        }
    }

    // INV-60: a closure has one outcome.
    pub fn check_outcome(&mut self, chief: usize, outcome: &Outcome) {
        let Outcome { closure, result } = outcome;
        let is_last = chief + 1 == self.chiefs.len();
        let state = &mut self.chiefs[chief];
        let Some(which) = state.open.remove(closure) else {
            return self.checks.breaks(format!("{closure} ends twice"));
        };
        let asked = &self.plan.closures[which];
        match result {
            Ok(bytes) => {
                self.checks.well += 1;
                let execution = &self.executions[number(bytes) as usize];
                if asked.end != End::Well || execution.task.task() != Task::Closure(*closure) {
                    self.checks.breaks(format!("{closure} ends well, and did not"));
                }
                let servers = asked.steps.iter().filter_map(|step| match step {
                    Step::Push { server } => Some(*server),
                    _ => None,
                });
                for (number, server) in servers.enumerate() {
                    if !self.checks.made.contains(&(server, state.job, *closure, number as u64)) {
                        let text =
                            format!("{closure} ends well, and server {server} has not made change {number}");
                        self.checks.broken.push(text);
                    }
                }
            }
            Err(failure) => {
                self.checks.otherwise += 1;
                state.first.get_or_insert_with(|| failure.clone());
                let losses = state.losses.get(closure).copied().unwrap_or(0);
                let is_right = match failure.kind {
                    FailureKind::Function => asked.end == End::Fails || !is_last,
                    FailureKind::Panicked => asked.end == End::Panics,
                    FailureKind::Cancelled => state.dispatch.is_cancelling(),
                    FailureKind::WorkersLost => losses > self.plan.limits.losses,
                    FailureKind::Resource => !asked.uses.is_empty(),
                    _ => true,
                };
                if !is_right {
                    self.checks.breaks(format!("{closure} ends with {failure:?}"));
                }
            }
        }
    }

    // INV-60: the first failure is reported, once.
    pub fn check_told(&mut self, chief: usize, failure: &Failure) {
        let state = &mut self.chiefs[chief];
        if state.first.take().as_ref() != Some(failure) {
            self.checks.breaks(format!("{failure} is told, and was not the first"));
        }
        if !state.open.is_empty() {
            self.checks.breaks(format!("{failure} is told before {:?} have ended", state.open));
        }
    }

    pub fn check_work(&mut self, chief: usize, worker: usize, work: &[Work], has_work: bool) {
        let state = &mut self.chiefs[chief];
        if !has_work && !work.is_empty() {
            self.checks.breaks(format!("worker {worker} seems to have nothing to do, and has {work:?}"));
        }
        if state.idle[worker] > IDLE {
            self.checks.breaks(format!("worker {worker} seems to have something to do, and has nothing"));
        }
        let had = state.dispatch.assigned(worker).count();
        if had > self.plan.limits.window {
            self.checks.breaks(format!("worker {worker} has {had} closures"));
        }
        for work in work {
            let Work::Create { resource, creates_variables, .. } = work else { continue };
            let Some((by, made)) = state.variables.get_mut(resource) else { continue };
            if *creates_variables == *made || by.is_some() {
                let text = format!(
                    "{resource} on worker {worker}: makes variables {creates_variables}; {by:?}, {made}"
                );
                self.checks.breaks(text);
            }
            if *creates_variables {
                *by = Some(worker);
            }
        }
    }

    /// Checks that a worker which seems to have no work really has none.
    pub fn check_quiet(&mut self, chief: usize, worker: usize) {
        let state = &mut self.chiefs[chief];
        if !state.dispatch.has_work(worker) {
            let work = state.dispatch.take(worker);
            self.check_work(chief, worker, &work, false);
        }
    }

    /// Checks that a task which times out has begun, and either hangs or is a closure that never checks for its
    /// cancellation.
    pub fn check_late(&mut self, chief: usize, worker: usize, task: Task, is_cancelled: bool) {
        let Follow::Works { conn, .. } = self.chiefs[chief].follows[worker] else { return };
        let begun =
            self.session_over(conn).is_some_and(|session| self.sessions[session].begun.contains(&task));
        let hangs =
            self.execution(conn, task).is_some_and(|execution| match self.executions[execution].task {
                Doing::Resource { which, .. } => self.plan.resources[which].end == End::Hangs,
                Doing::Closure { which, .. } => {
                    let closure = &self.plan.closures[which];
                    closure.end == End::Hangs || closure.deaf && is_cancelled
                }
            });
        if !begun || !hangs {
            self.checks.breaks(format!("{task} on worker {worker} is late: begun {begun}, hangs {hangs}"));
        }
    }
}
