//! Faults of processes and the network, and their detection.

use super::Simulation;
use crate::context::Surroundings;
use crate::event::Event;
use crate::joining::address;
use crate::network::{Arrival, Conn, Pid, SILENCE};
use crate::plan::Fault;
use crate::process::Process;
use crate::working::Working;
use distribute_cluster::Address;
use distribute_net::Claim;
use distribute_net::rendezvous::note::Note;
use std::time::Duration;

/// The interval at which workers check for silence.
const LOOK: Duration = Duration::from_millis(100);

impl Simulation {
    fn kill(&mut self, pid: Pid) {
        let mut context = self.surroundings.of(self.processes[pid].name);
        context.note(|| "is killed".to_owned());
        context.close_all("connection reset");
        self.processes[pid].end(None);
        self.replace();
    }

    /// Returns the latest process of a worker that is running or stopped; `None` if there is none.
    fn last_of(&self, rank: usize) -> Option<Pid> {
        self.processes.iter().rposition(|process| process.name.rank == rank && process.lives())
    }

    pub(super) fn fault(&mut self, number: usize) {
        if std::mem::replace(&mut self.happened[number], true) {
            return;
        }
        let now = self.now();
        let fault = self.surroundings.plan.faults[number].1.clone();
        self.surroundings.history.note(now, "fault", || format!("{fault:?}"));
        match fault {
            Fault::Kill(rank) => {
                if let Some(pid) = self.last_of(rank) {
                    self.kill(pid);
                }
            }
            Fault::Remove(rank) => {
                self.removed[rank] = true;
                if let Some(pid) = self.last_of(rank) {
                    self.kill(pid);
                }
            }
            Fault::Leader(is_removed) => {
                let leader = self.surroundings.leader.filter(|pid| self.processes[*pid].lives());
                if let Some(pid) = leader {
                    self.removed[self.processes[pid].name.rank] |= is_removed;
                    self.kill(pid);
                }
            }
            Fault::Callers => {
                let waits = |process: &&Process| process.working().is_some_and(Working::is_in_call);
                let callers: Vec<_> =
                    self.processes.iter().filter(waits).map(|process| process.name.pid).collect();
                callers.into_iter().for_each(|pid| self.kill(pid));
            }
            Fault::Vanish(rank) => {
                if let Some(pid) = self.last_of(rank) {
                    for conn in self.surroundings.network.of(pid) {
                        self.surroundings.network.forget(pid, conn);
                    }
                    self.processes[pid].end(Some(now));
                    self.begin_to_look();
                    self.replace();
                }
            }
            Fault::Pause(rank, lasts) => {
                if let Some(pid) = self.last_of(rank)
                    && self.processes[pid].stopped.is_none()
                {
                    self.processes[pid].stopped = Some(now);
                    self.surroundings.agenda.at(now + lasts, Event::Resume(pid));
                    self.begin_to_look();
                }
            }
            Fault::Cut { sides, one_way, lasts } => {
                for (from, a) in sides.iter().enumerate() {
                    for (to, b) in sides.iter().enumerate() {
                        if a != b && (!one_way || *a) {
                            self.surroundings.network.cut(now, from, to, now + lasts);
                        }
                    }
                }
                self.begin_to_look();
            }
            Fault::Bridge { groups, lasts } => {
                for (from, a) in groups.iter().enumerate() {
                    for (to, b) in groups.iter().enumerate() {
                        if a != b && *a > 0 && *b > 0 {
                            self.surroundings.network.cut(now, from, to, now + lasts);
                        }
                    }
                }
                self.begin_to_look();
            }
            Fault::Break(a, b) => {
                let Some(pid) = self.last_of(a) else { return };
                let Surroundings { network, agenda, .. } = &mut self.surroundings;
                for conn in network.of(pid) {
                    if network.peer(conn, pid).is_some_and(|(_, host)| host == b) {
                        network.cut_off(agenda, conn);
                    }
                }
            }
            Fault::Twin(rank) => self.start(rank, Claim::default(), true),
            Fault::Revenant(rank) => {
                if self.made > 1 {
                    let told = self.table();
                    self.start(rank, Claim::after(self.made.saturating_sub(2)), true);
                    if let Some(last) = self.processes.len().checked_sub(1)
                        && self.processes[last].name.rank == rank
                        // The first worker has to hear from others besides the leader.
                        && rank > 1
                    {
                        let stale = Note::Table(self.made - 1, 0, told);
                        self.act(last, |process, context| process.is_told(context, &stale));
                    }
                }
            }
        }
    }

    /// Returns the rank of each worker and the address of its latest process. The port is 0 if there is no process.
    fn table(&self) -> Vec<(usize, Address)> {
        let at = |rank| self.last_of(rank).map_or(0, |pid| self.processes[pid].port);
        let all = (0..self.surroundings.plan.workers)
            .map(|rank| Some((rank, address(rank, at(rank)).parse().ok()?)));
        all.flatten().collect()
    }

    fn begin_to_look(&mut self) {
        if !std::mem::replace(&mut self.looks, true) {
            let at = self.now() + LOOK;
            self.surroundings.agenda.at(at, Event::Look);
        }
    }

    /// Returns the time since which a connection has been silent because of a fault in the network or at the other end;
    /// `None` if there is no fault.
    fn silent_since(&self, pid: Pid, conn: Conn) -> Option<Duration> {
        let (there, host) = self.surroundings.network.peer(conn, pid)?;
        let other = there.map(|there| &self.processes[there]);
        let gone = other.and_then(|other| other.vanished().or(other.stopped));
        let here = self.processes[pid].name.rank;
        let cut = self.surroundings.network.is_cut(self.now(), host, here).map(|(from, _)| from);
        [gone, cut].into_iter().flatten().min()
    }

    /// Closes the links whose other end has been silent for too long, unless the process at this end is stopped.
    /// Schedules the next check if it may find such a link.
    pub(super) fn look(&mut self) {
        let now = self.now();
        let mut more = false;
        for pid in 0..self.processes.len() {
            let Some((links, _, since)) = self.processes[pid].links() else { continue };
            more |= self.processes[pid].working().is_none();
            let spares = self.processes[pid].spares();
            for conn in links.keys().copied().chain(spares).collect::<Vec<_>>() {
                let Some(silent) = self.silent_since(pid, conn) else { continue };
                more = true;
                if self.processes[pid].stopped.is_some() || now < silent.max(since) + SILENCE {
                    continue;
                }
                self.act(pid, |process, context| {
                    let reason = Arrival::Closed("it has sent nothing for 3.0 s".to_owned());
                    context.close(conn, "it closed its connection");
                    process.take(context, conn, reason).or_else(|| process.go_on(context))
                });
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
