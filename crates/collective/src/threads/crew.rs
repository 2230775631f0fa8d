//! Threads that run a closure which borrows from its caller. The engine's only `unsafe`.

use crate::sync::{AtomicU64, Condvar, Mutex, Ordering, linger, lock, wait};
use distribute_cluster::Deadline;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

type Job = &'static (dyn Fn(usize) + Sync);

#[derive(Clone, Copy)]
enum Order {
    Work(Job),
    Dismiss,
}

/// A leader and members that serve it: the leader broadcasts a closure, every member runs it once.
///
/// Members come by calling [`Crew::serve`] on their own threads; they stay until dismissed.
pub struct Crew {
    members: usize,
    state: Mutex<State>,
    ordered: Condvar,
    finished: Condvar,
    /// `State::number` and `State::left`, to linger on without the lock.
    number: AtomicU64,
    left: AtomicU64,
}

struct State {
    order: Order,
    /// Counts orders: a member that has seen fewer has something to do.
    number: u64,
    /// Members that still work on the order.
    left: u64,
    /// The first panic of a member, for the leader.
    panic: Option<Box<dyn std::any::Any + Send>>,
}

impl Crew {
    /// A crew of a leader and `members` others.
    pub fn new(members: usize) -> Self {
        Self {
            members,
            state: Mutex::new(State { order: Order::Dismiss, number: 0, left: 0, panic: None }),
            ordered: Condvar::new(),
            finished: Condvar::new(),
            number: AtomicU64::new(0),
            left: AtomicU64::new(0),
        }
    }

    /// Runs `work(rank)` once on every thread: rank 0 here, the others on the members' threads. Returns when all
    /// have finished; a panic in one of them is then resumed here.
    ///
    /// This waits for the members as long as they work: they hold what `work` borrows. Every `patience` the members
    /// overrun, `overdue` is told.
    pub fn broadcast(&self, work: &(dyn Fn(usize) + Sync), patience: Duration, overdue: &dyn Fn()) {
        if self.members == 0 {
            return work(0);
        }
        // SAFETY: members use the reference only between the order and `left` reaching 0 for it. This function does
        // not return before that, nor unwind: the only code of others that it runs, `work(0)`, is caught, and
        // `overdue` runs under `finish`, which waits for the members even when unwinding.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(work) };
        self.order(Order::Work(job), self.members as u64);
        let finish = Finish { crew: self };
        let mine = catch_unwind(AssertUnwindSafe(|| work(0)));
        if !linger(|| self.left.load(Ordering::Acquire) == 0) {
            self.await_members(patience, overdue);
        }
        drop(finish);
        let theirs = lock(&self.state).panic.take();
        if let Some(panic) = mine.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Serves as member `rank` (from 1) until the leader dismisses the crew. `seen` counts the orders that this
    /// member has seen, from 0 in a new crew.
    pub fn serve(&self, rank: usize, seen: &mut u64) {
        loop {
            match self.next_order(seen) {
                Order::Dismiss => return,
                Order::Work(job) => {
                    let result = catch_unwind(AssertUnwindSafe(|| job(rank)));
                    let mut state = lock(&self.state);
                    if let Err(panic) = result {
                        state.panic.get_or_insert(panic);
                    }
                    state.left -= 1;
                    self.left.store(state.left, Ordering::Release);
                    if state.left == 0 {
                        self.finished.notify_all();
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
        state.order = order;
        state.left = left;
        state.number += 1;
        self.left.store(left, Ordering::Release);
        self.number.store(state.number, Ordering::Release);
        self.ordered.notify_all();
    }

    fn next_order(&self, seen: &mut u64) -> Order {
        linger(|| self.number.load(Ordering::Acquire) != *seen);
        let mut state = lock(&self.state);
        while state.number == *seen {
            // A member without an order has nothing to give up, hence no deadline of its own: it wakes when ordered
            // or dismissed, and a leader dismisses when it is dropped.
            state = wait(&self.ordered, state, &Deadline::after(Duration::from_secs(3600)));
        }
        *seen = state.number;
        state.order
    }

    fn await_members(&self, patience: Duration, overdue: &dyn Fn()) {
        let mut deadline = Deadline::after(patience);
        let mut state = lock(&self.state);
        while state.left > 0 {
            state = wait(&self.finished, state, &deadline);
            if state.left > 0 && deadline.has_passed() {
                drop(state);
                overdue();
                deadline = Deadline::after(patience);
                state = lock(&self.state);
            }
        }
    }
}

/// Waits for the members when dropped, so that no unwinding ends the loan early.
struct Finish<'a> {
    crew: &'a Crew,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.crew.await_members(Duration::from_secs(60), &|| ());
    }
}
