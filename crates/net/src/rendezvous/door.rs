//! Processes that connect over sockets after the world is complete.

use super::latecomers::Latecomers;
use super::reception::Reception;
use super::waiting::Knocks;
use crate::handshake::Names;
use crate::mesh::{self, Waiting};
use distribute_cluster::Stopwatch;
use parking_lot::{Mutex, MutexGuard};
use rustix::event::PollFd;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The door of a complete world. It refuses every process that connects, with the reason, and records the
/// processes that wait for the next world.
#[derive(Debug)]
pub(super) struct Door {
    reception: Reception,
    latecomers: Latecomers,
    waiting: Arc<WaitingRoom>,
}

impl Door {
    /// Creates the door of a world whose members have these positions. `waiting` records the processes that
    /// wait for the next one.
    pub fn new(reception: Reception, names: Names, members: Vec<usize>, waiting: Arc<WaitingRoom>) -> Self {
        let latecomers = Latecomers::new(reception.mine().rank, names, members);
        Self { reception, latecomers, waiting }
    }
}

impl mesh::Latecomers for Door {
    fn interests(&self) -> Vec<PollFd<'_>> {
        self.reception.interests()
    }

    fn attend(&mut self, lost: &dyn Fn(usize) -> bool, over: bool) {
        let Self { reception, latecomers, waiting } = self;
        if waiting.count() > 0 {
            waiting.change(|knocks, now| knocks.look(now));
        }
        let _ = reception.attend(&mut |hello, _| {
            Err(waiting.change(|knocks, now| latecomers.refuse(hello, lost, over, knocks, now)))
        });
    }
}

/// The processes that wait for the next world, as several threads see them.
#[derive(Debug)]
pub(crate) struct WaitingRoom {
    knocks: Mutex<Knocks>,
    count: AtomicUsize,
    began: Stopwatch,
}

impl Default for WaitingRoom {
    fn default() -> Self {
        Self { knocks: Mutex::default(), count: AtomicUsize::new(0), began: Stopwatch::start() }
    }
}

impl WaitingRoom {
    fn change<R>(&self, change: impl FnOnce(&mut Knocks, std::time::Duration) -> R) -> R {
        let mut knocks = self.knocks();
        let changed = change(&mut knocks, self.began.elapsed());
        self.count.store(knocks.count(), Ordering::Release);
        changed
    }

    fn knocks(&self) -> MutexGuard<'_, Knocks> {
        self.knocks.lock()
    }
}

impl Waiting for WaitingRoom {
    fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    fn places(&self) -> BTreeSet<usize> {
        self.knocks().places()
    }

    fn supplants(&self, generation: u64) -> bool {
        self.knocks().supplant(generation)
    }
}
