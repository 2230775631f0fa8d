//! Threads that run a closure which borrows from its caller. The only `unsafe` of `threads`.

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Signal, linger, lock};
use distribute_cluster::Deadline;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

type Job = &'static (dyn Fn(usize) + Sync);

#[derive(Clone, Copy)]
enum Order {
    Work(Job),
    Dismiss,
}

/// A leader and the members that serve it: the leader broadcasts a closure, and every member runs it once.
///
/// Members join by calling [`Crew::serve`] on their own threads, and stay until dismissed. A closure is used only while
/// its broadcast lasts, whatever the caller does: a second leader is refused, and each member runs an order once.
pub struct Crew {
    members: usize,
    state: Mutex<State>,
    ordered: Signal,
    finished: Signal,
    /// Copies of `State::number` and `State::left`, so that threads can spin without the lock.
    number: AtomicU64,
    left: AtomicU64,
    /// The number of orders each member has seen, locked by the thread that serves as that member.
    seats: Vec<Mutex<u64>>,
}

struct State {
    order: Order,
    /// Whether a broadcast is running, with its closure on loan.
    leading: bool,
    /// The number of orders so far. A member that has seen fewer has work to do.
    number: u64,
    /// The number of members that still work on the order.
    left: u64,
    /// The first panic of a member, for the leader.
    panic: Option<Box<dyn std::any::Any + Send>>,
}

impl Crew {
    /// A crew of a leader and `members` others.
    pub fn new(members: usize) -> Self {
        Self {
            members,
            state: Mutex::new(State {
                order: Order::Dismiss,
                leading: false,
                number: 0,
                left: 0,
                panic: None,
            }),
            ordered: Signal::new(),
            finished: Signal::new(),
            number: AtomicU64::new(0),
            left: AtomicU64::new(0),
            seats: (0..members).map(|_| Mutex::new(0)).collect(),
        }
    }

    /// Runs `work(rank)` once on every thread: rank 0 here, the others on the members' threads. Returns when all
    /// have finished; a panic in one of them is then resumed here.
    ///
    /// This waits for the members without a deadline, because they hold what `work` borrows. `overdue` is called after
    /// `patience`, and again at growing intervals.
    ///
    /// # Panics
    /// If `work` panics, or if a broadcast of this crew is already running.
    pub fn broadcast(&self, work: &(dyn Fn(usize) + Sync), patience: Duration, overdue: &dyn Fn()) {
        if self.members == 0 {
            return work(0);
        }
        // SAFETY: members use the reference only between the order and `left` reaching 0 for it. This function does
        // not return before that, nor unwind: the only foreign code that it runs, `work(0)`, is caught, and
        // `overdue` runs under `finish`, which waits for the members even when unwinding. `left` cannot reach 0 early:
        // `order` refuses another order while this one lasts, and a seat runs an order once, whichever thread holds it.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(work) };
        self.order(Order::Work(job), self.members as u64);
        let finish = Finish { crew: self };
        let mine = catch_unwind(AssertUnwindSafe(|| work(0)));
        let waiting = tracing::trace_span!("waiting").entered();
        if !linger(|| self.left.load(Ordering::Acquire) == 0) {
            drop(self.await_members(patience, overdue));
        }
        drop(finish);
        drop(waiting);
        let theirs = lock(&self.state).panic.take();
        if let Some(panic) = mine.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Serves as member `rank` (from 1) until the leader dismisses the crew, which may have happened before this call.
    pub fn serve(&self, rank: usize) {
        self.serve_watching(rank, Duration::MAX, &|| ());
    }

    /// Like [`Crew::serve`], but calls `overdue` when no order has come for `patience`, and again at growing intervals.
    pub fn serve_watching(&self, rank: usize, patience: Duration, overdue: &dyn Fn()) {
        // The leader counts on this member, even if a report panics.
        let overdue = || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(overdue)) {
                std::mem::forget(panic);
            }
        };
        let mut seen = lock(&self.seats[rank - 1]);
        loop {
            match self.next_order(&mut seen, patience, &overdue) {
                Order::Dismiss => return,
                Order::Work(job) => {
                    let result = catch_unwind(AssertUnwindSafe(|| job(rank)));
                    let mut state = lock(&self.state);
                    match result {
                        Err(panic) if state.panic.is_none() => state.panic = Some(panic),
                        // Only one can be resumed. Dropping another would run foreign code, which might panic again.
                        Err(panic) => std::mem::forget(panic),
                        Ok(()) => {}
                    }
                    state.left -= 1;
                    self.left.store(state.left, Ordering::Release);
                    if state.left == 0 {
                        self.finished.notify(&mut *state);
                    }
                }
            }
        }
    }

    /// Lets all members go. It does not wait for them.
    pub fn dismiss(&self) {
        self.order(Order::Dismiss, 0);
    }

    fn order(&self, order: Order, left: u64) {
        let mut state = lock(&self.state);
        assert!(
            !state.leading,
            "a crew takes one order after the other: it is called from inside of its own broadcast"
        );
        state.leading = matches!(order, Order::Work(_));
        state.order = order;
        state.left = left;
        state.number += 1;
        self.left.store(left, Ordering::Release);
        self.number.store(state.number, Ordering::Release);
        self.ordered.notify(&mut *state);
    }

    fn next_order(&self, seen: &mut u64, patience: Duration, overdue: &dyn Fn()) -> Order {
        linger(|| self.number.load(Ordering::Acquire) != *seen);
        // A member without an order has nothing to give up, hence no deadline of its own: it wakes when ordered or
        // dismissed, and a leader dismisses when it is dropped.
        let state = self.wait_until(&self.ordered, |state| state.number != *seen, patience, overdue);
        *seen = state.number;
        state.order
    }

    fn await_members(&self, patience: Duration, overdue: &dyn Fn()) -> MutexGuard<'_, State> {
        self.wait_until(&self.finished, |state| state.left == 0, patience, overdue)
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

/// Ends a broadcast when dropped: waits for the members, so that no unwinding ends the loan early.
struct Finish<'a> {
    crew: &'a Crew,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let mut state = self.crew.await_members(Duration::from_secs(60), &|| ());
        state.leading = false;
        // Every member has seen the order; clear the reference, so that nothing keeps it beyond the loan.
        state.order = Order::Dismiss;
    }
}
