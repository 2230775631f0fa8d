//! What happens to processes and the network, and how it is noticed.

use super::{Event, Simulation, name};
use crate::network::{Arrival, Conn, Pid, SILENCE};
use crate::plan::Fault;
use std::time::Duration;

/// How often those that work look whether others are silent.
const LOOK: Duration = Duration::from_millis(100);

impl Simulation {
    pub(super) fn kill(&mut self, pid: Pid) {
        if self.processes[pid].lives() {
            let waits =
                self.processes[pid].working().is_some_and(|working| working.waits_in_vain(self.agenda.now()));
            if waits && self.processes[pid].stopped.is_none() && self.plan.one_blame {
                self.checks
                    .broken(format!("{} waits for one that it has lost", name(pid, &self.processes[pid])));
            }
            self.history.note(self.agenda.now(), name(pid, &self.processes[pid]), || "is killed".to_owned());
            for conn in self.network.of(pid) {
                self.network.close(&mut self.agenda, pid, conn, "connection reset");
            }
            self.processes[pid].end(None);
            self.replace(pid);
        }
    }

    /// The process of a worker that was started last, if it lives.
    fn last_of(&self, rank: usize) -> Option<Pid> {
        self.processes.iter().rposition(|process| process.rank == rank && process.lives())
    }

    pub(super) fn fault(&mut self, number: usize) {
        let now = self.agenda.now();
        let fault = self.plan.faults[number].1.clone();
        self.history.note(now, "fault", || format!("{fault:?}"));
        match fault {
            Fault::Kill(rank) => {
                if let Some(pid) = self.last_of(rank) {
                    self.kill(pid);
                }
            }
            Fault::Vanish(rank) => {
                if let Some(pid) = self.last_of(rank) {
                    for conn in self.network.of(pid) {
                        self.network.forget(pid, conn);
                    }
                    self.processes[pid].end(Some(now));
                    self.begin_to_look();
                    self.replace(pid);
                }
            }
            Fault::Pause(rank, lasts) => {
                if let Some(pid) = self.last_of(rank)
                    && self.processes[pid].stopped.is_none()
                {
                    self.processes[pid].stopped = Some(now);
                    self.agenda.at(now + lasts, Event::Resume(pid));
                    self.begin_to_look();
                }
            }
            Fault::Cut { sides, one_way, lasts } => {
                for (from, a) in sides.iter().enumerate() {
                    for (to, b) in sides.iter().enumerate() {
                        if a != b && (!one_way || *a) {
                            self.network.cut(now, from, to, now + lasts);
                        }
                    }
                }
                self.begin_to_look();
            }
            Fault::Break(a, b) => {
                let Some(pid) = self.last_of(a) else { return };
                for conn in self.network.of(pid) {
                    if self.network.peer(conn, pid).is_some_and(|(_, host)| host == b) {
                        self.network.cut_off(&mut self.agenda, conn);
                    }
                }
            }
            Fault::Twin(rank) => self.start(rank, self.generation),
            Fault::Revenant(rank) => {
                if self.generation > 1 {
                    self.start(rank, self.generation - 1);
                }
            }
        }
    }

    fn begin_to_look(&mut self) {
        if !std::mem::replace(&mut self.looks, true) {
            self.agenda.at(self.agenda.now() + LOOK, Event::Look);
        }
    }

    /// Since when a process has heard nothing over a connection, because of what happens to the other end.
    fn silent_since(&self, pid: Pid, conn: Conn) -> Option<Duration> {
        let (there, host) = self.network.peer(conn, pid)?;
        let other = there.map(|there| &self.processes[there]);
        let gone = other.and_then(|other| other.vanished().or(other.stopped));
        let cut =
            self.network.is_cut(self.agenda.now(), host, self.processes[pid].rank).map(|(from, _)| from);
        [gone, cut].into_iter().flatten().min()
    }

    /// Those that work lose who is silent. Those that join don't look.
    pub(super) fn look(&mut self) {
        let now = self.agenda.now();
        let mut more = false;
        for pid in 0..self.processes.len() {
            let Some(working) = self.processes[pid].working() else {
                more |= self.processes[pid].lives();
                continue;
            };
            let (since, links) = (working.since, working.links().keys().copied().collect::<Vec<_>>());
            for conn in links {
                let Some(silent) = self.silent_since(pid, conn) else { continue };
                more = true;
                if self.processes[pid].stopped.is_some() || now < silent.max(since) + SILENCE {
                    continue;
                }
                let (process, mut context) = self.of(pid);
                let reason = Arrival::Closed("it has sent nothing for 3.0 s".to_owned());
                context.close(conn, "it closed its connection");
                let ending = process.take(&mut context, conn, reason).or_else(|| process.go_on(&mut context));
                self.after(pid, ending);
                if !self.processes[pid].lives() {
                    break;
                }
            }
        }
        self.looks = false;
        if more {
            self.begin_to_look();
        }
    }
}
