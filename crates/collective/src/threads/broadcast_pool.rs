//! Threads that run a closure that borrows from its caller. This is the only `unsafe` code of `threads`.

// - **INV-4** A borrowed closure is never used after `broadcast` returns or unwinds. Tests:
//   `collective/tests/team.rs`.

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Signal, linger, lock};
use distribute_cluster::Deadline;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

type Job = &'static (dyn Fn(usize) + Sync);

#[derive(Clone, Copy)]
enum Command {
    Work(Job),
    Dismiss,
}

/// A leader and its members. The leader broadcasts a closure, and every member runs it once.
///
/// Members join by calling [`BroadcastPool::serve`] on their own threads, and stay until they are dismissed. A closure
/// is used only during its broadcast. A second leader at the same time panics.
pub struct BroadcastPool {
    members: usize,
    state: Mutex<State>,
    commanded: Signal,
    finished: Signal,
    /// A copy of `State::commands`, which threads read without the lock while they spin.
    commands: AtomicU64,
    /// A copy of `State::unfinished`, for the same purpose.
    unfinished: AtomicU64,
    /// The number of commands that each member has seen. The thread that serves as a member holds that member's lock.
    commands_seen: Vec<Mutex<u64>>,
}

struct State {
    command: Command,
    /// Whether a broadcast is running, so that members may use its closure.
    broadcasting: bool,
    /// The number of commands so far. A member that has seen fewer commands has work to do.
    commands: u64,
    /// The number of members that have not finished the latest command.
    unfinished: u64,
    /// The first panic of a member, which the leader resumes.
    panic: Option<Box<dyn std::any::Any + Send>>,
}

impl BroadcastPool {
    /// Creates a pool of a leader and `members` other threads.
    pub fn new(members: usize) -> Self {
        Self {
            members,
            state: Mutex::new(State {
                command: Command::Dismiss,
                broadcasting: false,
                commands: 0,
                unfinished: 0,
                panic: None,
            }),
            commanded: Signal::new(),
            finished: Signal::new(),
            commands: AtomicU64::new(0),
            unfinished: AtomicU64::new(0),
            commands_seen: (0..members).map(|_| Mutex::new(0)).collect(),
        }
    }

    /// Runs `work(rank)` once on every thread: rank 0 on this thread, and the other ranks on the members' threads.
    /// Returns when all have finished. If a member panicked, this thread then resumes the panic.
    ///
    /// The wait for the members has no deadline, because they use data that `work` borrows. `overdue` is called after
    /// `patience`, and then repeatedly at increasing intervals.
    ///
    /// # Panics
    /// Panics if `work` panics, or if a broadcast of this pool is already running.
    pub fn broadcast(&self, work: &(dyn Fn(usize) + Sync), patience: Duration, overdue: &dyn Fn()) {
        if self.members == 0 {
            return work(0);
        }
        // SAFETY: members use the reference only between the command and `unfinished` reaching 0 for it. This function
        // does not return before that, nor unwind: the only foreign code that it runs, `work(0)`, is caught, and
        // `overdue` runs under `wait_on_drop`, which waits for the members even when unwinding. `unfinished` cannot
        // reach 0 early: `issue` refuses another command while this one lasts, and each member runs a command once,
        // whichever thread serves as it.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(work) };
        self.issue(Command::Work(job), self.members as u64);
        let wait_on_drop = WaitForMembers { broadcast_pool: self };
        let mine = catch_unwind(AssertUnwindSafe(|| work(0)));
        let waiting = tracing::trace_span!("waiting").entered();
        if !linger(|| self.unfinished.load(Ordering::Acquire) == 0) {
            drop(self.await_members(patience, overdue));
        }
        drop(wait_on_drop);
        drop(waiting);
        let theirs = lock(&self.state).panic.take();
        if let Some(panic) = mine.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Serves as member `rank`, which is at least 1, until the leader dismisses the pool. Returns immediately if the
    /// pool has been dismissed since this member last served.
    pub fn serve(&self, rank: usize) {
        self.serve_with_watchdog(rank, Duration::MAX, &|| ());
    }

    /// Equivalent to [`serve`](Self::serve), except that `overdue` is called if no command has arrived for `patience`,
    /// and then repeatedly at increasing intervals.
    pub fn serve_with_watchdog(&self, rank: usize, patience: Duration, overdue: &dyn Fn()) {
        // The leader counts on this member, even if a report panics.
        let overdue = || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(overdue)) {
                std::mem::forget(panic);
            }
        };
        let mut seen = lock(&self.commands_seen[rank - 1]);
        loop {
            match self.next_command(&mut seen, patience, &overdue) {
                Command::Dismiss => return,
                Command::Work(job) => {
                    let result = catch_unwind(AssertUnwindSafe(|| job(rank)));
                    let mut state = lock(&self.state);
                    match result {
                        Err(panic) if state.panic.is_none() => state.panic = Some(panic),
                        // Only one can be resumed. Dropping another would run foreign code, which might panic again.
                        Err(panic) => std::mem::forget(panic),
                        Ok(()) => {}
                    }
                    state.unfinished -= 1;
                    self.unfinished.store(state.unfinished, Ordering::Release);
                    if state.unfinished == 0 {
                        self.finished.notify(&mut *state);
                    }
                }
            }
        }
    }

    /// Dismisses all members, which then return from [`serve`](Self::serve). Does not wait for them.
    ///
    /// # Panics
    /// Panics if a broadcast of this pool is running.
    pub fn dismiss(&self) {
        self.issue(Command::Dismiss, 0);
    }

    fn issue(&self, command: Command, unfinished: u64) {
        let mut state = lock(&self.state);
        assert!(!state.broadcasting, "a broadcast was started inside another broadcast of the same pool");
        state.broadcasting = matches!(command, Command::Work(_));
        state.command = command;
        state.unfinished = unfinished;
        state.commands += 1;
        self.unfinished.store(unfinished, Ordering::Release);
        self.commands.store(state.commands, Ordering::Release);
        self.commanded.notify(&mut *state);
    }

    fn next_command(&self, seen: &mut u64, patience: Duration, overdue: &dyn Fn()) -> Command {
        linger(|| self.commands.load(Ordering::Acquire) != *seen);
        // A member without a command has nothing to give up, hence no deadline of its own: it wakes for a command or
        // when dismissed, and a leader dismisses when it is dropped.
        let state = self.wait_until(&self.commanded, |state| state.commands != *seen, patience, overdue);
        *seen = state.commands;
        state.command
    }

    fn await_members(&self, patience: Duration, overdue: &dyn Fn()) -> MutexGuard<'_, State> {
        self.wait_until(&self.finished, |state| state.unfinished == 0, patience, overdue)
    }

    fn wait_until(
        &self,
        signal: &Signal,
        ready: impl Fn(&State) -> bool,
        patience: Duration,
        overdue: &dyn Fn(),
    ) -> MutexGuard<'_, State> {
        // Without this floor, a patience of zero would report in a busy loop.
        let mut patience = patience.max(Duration::from_millis(10));
        let mut deadline = Deadline::after(patience);
        let mut state = lock(&self.state);
        while !ready(&state) {
            state = signal.wait(state, &mut deadline);
            if !ready(&state) && deadline.has_passed() {
                drop(state);
                overdue();
                patience = patience.saturating_mul(2);
                deadline = Deadline::after(patience);
                state = lock(&self.state);
            }
        }
        state
    }
}

/// A guard that waits for the members when it is dropped, so that even a panic ends the broadcast before the borrow.
struct WaitForMembers<'a> {
    broadcast_pool: &'a BroadcastPool,
}

impl Drop for WaitForMembers<'_> {
    fn drop(&mut self) {
        let mut state = self.broadcast_pool.await_members(Duration::from_secs(60), &|| ());
        state.broadcasting = false;
        // Every member has seen the command; clear the reference, so that nothing keeps it beyond the borrow.
        state.command = Command::Dismiss;
    }
}
