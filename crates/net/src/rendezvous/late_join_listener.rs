//! The listener for processes that connect after the world is complete.

use super::late_join_replies::LateJoinReplies;
use super::reception::{Accepted, Reception};
use super::spare_links::SpareLinks;
use super::waiting::WaitingProcesses;
use crate::mesh::{self, WaitingWorkers};
use distribute_cluster::Stopwatch;
use parking_lot::{Mutex, MutexGuard};
use rustix::event::PollFd;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The listener of a complete world. It accepts spares and rejects all other processes with a reason. It also records
/// the processes that wait for the next world.
#[derive(Debug)]
pub(super) struct LateJoinListener {
    reception: Reception,
    late_join_replies: LateJoinReplies,
    spares: SpareLinks,
    waiting: Arc<WaitingRoom>,
}

impl LateJoinListener {
    /// Creates the listener of a complete world. `waiting` records the processes that wait for the next world.
    pub fn new(
        reception: Reception,
        late_join_replies: LateJoinReplies,
        spares: SpareLinks,
        waiting: Arc<WaitingRoom>,
    ) -> Self {
        let listener = Self { reception, late_join_replies, spares, waiting };
        listener.record_spares();
        listener
    }

    /// Records the positions of all spares, including those whose acceptance is still being sent.
    fn record_spares(&self) {
        let spares = self.spares.positions().into_iter().chain(self.reception.welcoming()).collect();
        self.waiting.change(|waiting_processes, _| waiting_processes.set_spares(spares));
    }
}

impl mesh::LateJoinHandler for LateJoinListener {
    fn interests(&self) -> Vec<PollFd<'_>> {
        self.reception.interests().into_iter().chain(self.spares.interests()).collect()
    }

    fn serve(&mut self, lost: &dyn Fn(usize) -> bool, over: bool) {
        let Self { reception, late_join_replies, spares, waiting } = self;
        if waiting.count() > 0 {
            waiting.change(|waiting_processes, now| waiting_processes.look(now));
        }
        let accepted = reception.advance(&mut |hello, _| {
            waiting.change(|waiting_processes, now| {
                late_join_replies.answer(hello, lost, over, waiting_processes, now)
            })
        });
        for Accepted { hello, stream, .. } in accepted {
            spares.add(hello.rank, stream);
        }
        spares.raise(waiting.waiting_processes().raised(0));
        spares.serve(over);
        self.record_spares();
    }
}

/// A record, shared by threads, of the processes that wait for the next world.
#[derive(Debug)]
pub(crate) struct WaitingRoom {
    waiting_processes: Mutex<WaitingProcesses>,
    count: AtomicUsize,
    began: Stopwatch,
}

impl Default for WaitingRoom {
    fn default() -> Self {
        Self { waiting_processes: Mutex::default(), count: AtomicUsize::new(0), began: Stopwatch::start() }
    }
}

impl WaitingRoom {
    fn change<R>(&self, change: impl FnOnce(&mut WaitingProcesses, std::time::Duration) -> R) -> R {
        let mut waiting_processes = self.waiting_processes();
        let changed = change(&mut waiting_processes, self.began.elapsed());
        self.count.store(waiting_processes.count(), Ordering::Release);
        changed
    }

    fn waiting_processes(&self) -> MutexGuard<'_, WaitingProcesses> {
        self.waiting_processes.lock()
    }
}

impl WaitingWorkers for WaitingRoom {
    fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    fn positions(&self) -> BTreeSet<usize> {
        self.waiting_processes().positions()
    }

    fn supplants(&self, generation: u64) -> bool {
        self.waiting_processes().supplant(generation)
    }

    fn raise(&self, generation: u64) {
        self.waiting_processes().raise(generation);
    }
}
