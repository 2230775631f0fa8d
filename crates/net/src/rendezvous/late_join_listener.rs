//! Processes that connect over sockets after the world is complete.

use super::late_join_replies::LateJoinReplies;
use super::reception::Reception;
use super::waiting::WaitingProcesses;
use crate::handshake::Names;
use crate::mesh::{self, WaitingWorkers};
use distribute_cluster::Stopwatch;
use parking_lot::{Mutex, MutexGuard};
use rustix::event::PollFd;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The listener of a complete world. It rejects every process that connects, with the reason, and records the processes
/// that wait for the next world.
#[derive(Debug)]
pub(super) struct LateJoinListener {
    reception: Reception,
    late_join_replies: LateJoinReplies,
    waiting: Arc<WaitingRoom>,
}

impl LateJoinListener {
    /// Creates the listener of a world whose members have the given positions. `waiting` records the processes that
    /// wait for the next world.
    pub fn new(reception: Reception, names: Names, members: Vec<usize>, waiting: Arc<WaitingRoom>) -> Self {
        let late_join_replies = LateJoinReplies::new(reception.mine().rank, names, members);
        Self { reception, late_join_replies, waiting }
    }
}

impl mesh::LateJoinHandler for LateJoinListener {
    fn interests(&self) -> Vec<PollFd<'_>> {
        self.reception.interests()
    }

    fn serve(&mut self, lost: &dyn Fn(usize) -> bool, over: bool) {
        let Self { reception, late_join_replies, waiting } = self;
        if waiting.count() > 0 {
            waiting.change(|waiting_processes, now| waiting_processes.look(now));
        }
        let _ = reception.advance(&mut |hello, _| {
            Err(waiting.change(|waiting_processes, now| {
                late_join_replies.refuse(hello, lost, over, waiting_processes, now)
            }))
        });
    }
}

/// The processes that wait for the next world. Several threads can access this value.
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
}
