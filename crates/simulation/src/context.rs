//! The context of a process while it handles an event.

use crate::agenda::Agenda;
use crate::checks::Checks;
use crate::course::Saved;
use crate::event::Event;
use crate::history::History;
use crate::network::{Arrival, Conn, Network, Pid};
use crate::plan::Plan;
use crate::planted::Planted;
use std::fmt;
use std::time::Duration;

/// The parts of the simulation to which every process has access.
#[derive(Debug)]
pub struct Surroundings {
    pub agenda: Agenda<Event>,
    pub network: Network,
    pub history: History,
    pub checks: Checks,
    pub plan: Plan,
    pub planted: Option<Planted>,
    /// The process that has led the latest world.
    pub leader: Option<Pid>,
    /// The latest checkpoint, which all processes can read.
    pub saved: Option<Saved>,
}

/// The name of a process in the history: its id, and the rank of its worker.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    pub pid: Pid,
    pub rank: usize,
}

/// The surroundings of one process while it handles an event.
pub struct Context<'a> {
    /// The id of the process.
    pub pid: Pid,
    name: Name,
    pub agenda: &'a mut Agenda<Event>,
    pub network: &'a mut Network,
    history: &'a mut History,
    pub checks: &'a mut Checks,
    pub plan: &'a Plan,
    pub planted: Option<Planted>,
    leader: &'a mut Option<Pid>,
    /// The latest checkpoint.
    pub saved: &'a mut Option<Saved>,
}

impl Surroundings {
    /// Returns the context of the process `name`.
    pub fn of(&mut self, name: Name) -> Context<'_> {
        let Self { agenda, network, history, checks, plan, planted, leader, saved } = self;
        let planted = *planted;
        Context { pid: name.pid, name, agenda, network, history, checks, plan, planted, leader, saved }
    }
}

impl Context<'_> {
    /// Returns the current virtual time.
    pub fn now(&self) -> Duration {
        self.agenda.now()
    }

    /// Returns `true` if the bug `planted` is planted in this simulation.
    pub fn has(&self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }

    /// Sends a message over a connection.
    pub fn send(&mut self, conn: Conn, what: Arrival) {
        self.network.send(self.agenda, self.pid, conn, what);
    }

    /// Closes a connection.
    pub fn close(&mut self, conn: Conn, reason: &str) {
        self.network.close(self.agenda, self.pid, conn, reason);
    }

    /// Closes all connections of the process.
    pub fn close_all(&mut self, reason: &str) {
        for conn in self.network.of(self.pid) {
            self.close(conn, reason);
        }
    }

    /// Records that this process has broken a rule.
    pub fn broken(&mut self, what: impl fmt::Display) {
        self.checks.broken(format!("{} {what}", self.name));
    }

    /// Adds a line to the history.
    pub fn note(&mut self, what: impl FnOnce() -> String) {
        self.history.note(self.agenda.now(), self.name, what);
    }

    /// Records that this process leads a world that it has completed, and schedules the faults that follow.
    pub fn leads(&mut self, generation: u64) {
        *self.leader = Some(self.pid);
        for (number, after) in self.plan.triggered_by_world(generation) {
            self.agenda.at(self.agenda.now() + after, Event::Fault(number));
        }
    }

    /// Schedules the faults of the plan that follow this call.
    pub fn trigger(&mut self, generation: u64, step: u64, call: u64) {
        for (number, after) in self.plan.triggered(generation, self.name.rank, step, call) {
            self.agenda.at(self.agenda.now() + after, Event::Fault(number));
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {} (process {})", self.rank, self.pid)
    }
}
