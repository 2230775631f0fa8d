//! What a process has of the world while it handles an event.

use crate::agenda::Agenda;
use crate::checks::Checks;
use crate::history::History;
use crate::network::{Arrival, Conn, Network, Pid};
use crate::plan::Plan;
use crate::planted::Planted;
use crate::world::Event;
use std::time::Duration;

/// The world, as one process can act on it.
pub struct Context<'a> {
    /// The process.
    pub pid: Pid,
    /// What it is called in the history.
    pub name: String,
    pub agenda: &'a mut Agenda<Event>,
    pub network: &'a mut Network,
    pub history: &'a mut History,
    pub checks: &'a mut Checks,
    pub plan: &'a Plan,
    pub planted: Option<Planted>,
}

impl Context<'_> {
    /// The time since the beginning.
    pub fn now(&self) -> Duration {
        self.agenda.now()
    }

    /// Whether this bug is planted.
    pub fn has(&self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }

    /// Sends something over a connection.
    pub fn send(&mut self, conn: Conn, what: Arrival) {
        self.network.send(self.agenda, self.pid, conn, what);
    }

    /// Closes a connection.
    pub fn close(&mut self, conn: Conn, reason: &str) {
        self.network.close(self.agenda, self.pid, conn, reason);
    }

    /// Writes a line of the history.
    pub fn note(&mut self, what: impl FnOnce() -> String) {
        self.history.note(self.agenda.now(), &self.name, what);
    }
}
