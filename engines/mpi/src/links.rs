//! The transport of groups over MPI.

use crate::library::Request;
use crate::state::State;
use bytes::Bytes;
use distribute_cluster::{Deadline, Stopwatch};
use distribute_net::wire::Frame;
use distribute_net::{Message, NativeSum, Number, PollOutcome, Transport};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The time for which a waiting thread polls without pauses. MPI sends no notifications, so waiting means polling.
const SPIN: Duration = Duration::from_micros(50);

/// The time after which a waiting thread no longer yields its core between polls, but sleeps, for an eighth of the time
/// that it has waited.
const YIELD: Duration = Duration::from_micros(500);

/// The maximum time for which a waiting thread sleeps between polls, and the pause of the background thread while an
/// operation is running or another thread is polling.
const NAP: Duration = Duration::from_millis(1);

/// The pause of the background thread between polls while no operation is running.
const QUIET: Duration = Duration::from_millis(5);

/// A transport that uses MPI for messages and sums.
///
/// All calls are made under one lock, by the threads that wait for something. At other times, a background thread makes
/// them.
pub(crate) struct Links {
    state: Mutex<State>,
    /// Notified after a message was delivered, or after a process has left or was disconnected.
    delivered: Condvar,
    /// Whether a thread is in [`poll`](Transport::poll) and makes the MPI calls, so that the background thread need
    /// not.
    driving: AtomicBool,
    /// The number of threads that wait for the lock.
    wanted: AtomicUsize,
    /// Whether a sum has failed on this process. No more sums use MPI then, because the processes may disagree on which
    /// sum is next.
    broken: AtomicBool,
    rank: usize,
    workers: usize,
}

impl Links {
    pub fn new(state: State, rank: usize, workers: usize) -> Self {
        Self {
            state: Mutex::new(state),
            delivered: Condvar::new(),
            driving: AtomicBool::new(false),
            wanted: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            rank,
            workers,
        }
    }

    /// Locks the state. The thread that holds the lock may call MPI.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Does one turn of the background thread's work, unless another thread is polling, and then pauses. Returns the
    /// result of `look`, which is called before the pause.
    pub fn turn_in_the_background<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let away = self.driving.load(Ordering::Relaxed);
        if !away && state.turn() {
            self.delivered.notify_all();
        }
        let looked = look(&mut state);
        let pause = if away || state.is_busy() { NAP } else { QUIET };
        drop(state);
        std::thread::park_timeout(pause);
        looked
    }

    /// Sends and receives until `check` returns a value. Returns `None` after `patience`. `check` is called after each
    /// turn. Its second argument is `true` if the turn has delivered a message, or reported a process that has left or
    /// was disconnected.
    fn until<T>(
        &self,
        patience: Duration,
        mut check: impl FnMut(&mut State, bool) -> Option<T>,
    ) -> Option<T> {
        let (watch, mut deadline) = (Stopwatch::start(), Deadline::after(patience));
        loop {
            let mut state = self.state();
            let any = state.turn();
            if any {
                self.delivered.notify_all();
            }
            if let Some(found) = check(&mut state, any) {
                return Some(found);
            }
            let slice = deadline.look();
            if slice.is_zero() {
                return None;
            }
            let waited = watch.elapsed();
            if waited > YIELD {
                drop(self.delivered.wait_timeout(state, (waited / 8).min(NAP).min(slice)));
                continue;
            }
            drop(state);
            // A mutex is not fair: a thread that wants to send would not get it if another thread locks it again at
            // once.
            if waited > SPIN || self.wanted.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn begin_sum(&self, vector: Bytes, number: Number) -> Result<Request, String> {
        let mut state = self.state();
        let library = state.library().ok_or("MPI has been finalized")?;
        library.sum(vector, number).map_err(|error| error.to_string())
    }
}

impl Transport for Links {
    fn send(&self, to: usize, message: Message) {
        self.state().send(to, Frame::Data(message));
    }

    fn poll(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> PollOutcome {
        if self.driving.swap(true, Ordering::Acquire) {
            return PollOutcome::Elsewhere;
        }
        let poll = {
            let state = self.state();
            let (hears, is_there) = (state.hears(), is_there());
            drop(state);
            match (hears, is_there) {
                (false, _) => PollOutcome::Never,
                (true, true) => PollOutcome::Delivered,
                (true, false) => match self.until(patience, |_, any| any.then_some(())) {
                    Some(()) => PollOutcome::Delivered,
                    None => PollOutcome::Nothing,
                },
            }
        };
        self.driving.store(false, Ordering::Release);
        poll
    }

    fn native_sum(&self) -> Option<&dyn NativeSum> {
        Some(self)
    }

    fn close(&self) {
        self.state().close();
    }
}

impl NativeSum for Links {
    fn name(&self) -> &'static str {
        "MPI"
    }

    fn supports(&self, bytes: usize) -> bool {
        !self.broken.load(Ordering::Relaxed) && i32::try_from(bytes).is_ok()
    }

    fn sum(&self, vector: Bytes, number: Number, patience: Duration) -> Result<Bytes, String> {
        let mut request = self.begin_sum(vector, number)?;
        let ended = self.until(patience, |state, _| {
            let Some(library) = state.library() else { return Some(Err("MPI has been finalized".into())) };
            match library.test(&mut request) {
                Ok(true) => Some(Ok(())),
                Ok(false) => state.lost().map(|worker| Err(format!("worker {worker} was lost"))),
                Err(error) => Some(Err(error.to_string())),
            }
        });
        let late = || Err(format!("not all workers have arrived within {:.1} s", patience.as_secs_f64()));
        let ended = ended.unwrap_or_else(late);
        let sum = ended.and_then(|()| request.received().ok_or_else(|| "the sum has not ended".to_owned()));
        self.broken.fetch_or(sum.is_err(), Ordering::Relaxed);
        sum
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mpi({} of {})", self.rank, self.workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;
    use crate::library::Library;
    use crate::support::on_ranks;
    use distribute_net::{ENDED, Receiver};
    use std::sync::Arc;

    const PATIENCE: Duration = Duration::from_secs(40);

    /// A receiver that stores the received messages in order, and the lost workers with the reasons.
    #[derive(Default)]
    struct Kept {
        messages: Mutex<Vec<(usize, Message)>>,
        lost: Mutex<Vec<(usize, String)>>,
    }

    impl Receiver for Kept {
        fn deliver(&self, from: usize, message: Message) {
            self.messages.lock().unwrap().push((from, message));
        }
        fn mark_lost(&self, from: usize, reason: String) {
            self.lost.lock().unwrap().push((from, reason));
        }
    }

    impl Kept {
        fn count(&self) -> usize {
            self.messages.lock().unwrap().len()
        }
    }

    /// Links this process to the others, and closes the links gracefully after `body` has returned.
    fn linked(body: impl FnOnce(&Links, &Kept)) {
        let library = Library::start().unwrap();
        let (rank, workers) = (library.rank(), library.workers());
        let kept = Arc::new(Kept::default());
        let settings = Settings { silence: Duration::from_secs(30), ..Settings::default() };
        let links = Links::new(State::new(library, kept.clone(), settings), rank, workers);
        body(&links, &kept);
        links.close();
        links.close();
        links.send(usize::from(rank == 0), Message::new("never", ""));
        links.until(PATIENCE, |state, _| state.is_over().then_some(())).unwrap();
        let mut lost = kept.lost.lock().unwrap().clone();
        lost.sort();
        let others = (0..workers).filter(|other| *other != rank);
        // INV-29
        assert_eq!(lost, others.map(|other| (other, ENDED.to_owned())).collect::<Vec<_>>());
        assert!(kept.messages.lock().unwrap().iter().all(|(_, message)| message.head != "never"));
        links.state().take_library().unwrap().finalize();
    }

    fn message(from: usize, number: usize, length: usize) -> Message {
        let body: Vec<u8> = (0..length).map(|at| (at.wrapping_mul(167) % 251) as u8).collect();
        Message::new(format!("{from} {number}"), body)
    }

    #[test]
    fn messages_of_each_pair_arrive_complete_and_in_order() {
        const COUNT: usize = 40;
        let length = |number: usize| [0, 1, 2_000, 2_048, 2_049, 70_000, 300_000][number % 7];
        on_ranks("links::tests::messages_of_each_pair_arrive_complete_and_in_order", &[2, 3], || {
            linked(|links, kept| {
                let others: Vec<_> = (0..links.workers).filter(|other| *other != links.rank).collect();
                for number in 0..COUNT {
                    others.iter().for_each(|to| links.send(*to, message(links.rank, number, length(number))));
                }
                let all = || kept.count() == COUNT * others.len();
                while !all() {
                    assert_ne!(links.poll(PATIENCE, &all), PollOutcome::Never);
                }
                for from in others {
                    let messages = kept.messages.lock().unwrap();
                    let come = messages.iter().filter(|(worker, _)| *worker == from);
                    for (number, (_, come)) in come.enumerate() {
                        assert_eq!(*come, message(from, number, length(number)));
                    }
                }
            });
        });
    }

    #[test]
    fn large_messages_are_sent_both_ways_at_once_without_a_driver() {
        on_ranks("links::tests::large_messages_are_sent_both_ways_at_once_without_a_driver", &[2], || {
            linked(|links, kept| {
                let other = 1 - links.rank;
                links.send(other, message(links.rank, 1, 64 << 20));
                let deadline = Deadline::after(PATIENCE);
                while kept.count() < 1 {
                    links.turn_in_the_background(|_| assert!(!deadline.has_passed()));
                }
                assert!(kept.messages.lock().unwrap()[0].1 == message(other, 1, 64 << 20));
            });
        });
    }

    #[test]
    fn several_threads_may_send_and_poll_at_once() {
        on_ranks("links::tests::several_threads_may_send_and_poll_at_once", &[2], || {
            linked(|links, kept| {
                let (threads, count) = (3, 40);
                let all = || kept.count() == threads * count;
                std::thread::scope(|scope| {
                    for thread in 0..threads {
                        scope.spawn(move || {
                            for number in 0..count {
                                links.send(1 - links.rank, message(thread, number, number * 500));
                            }
                            while !all() {
                                if links.poll(PATIENCE, &all) == PollOutcome::Elsewhere {
                                    std::thread::yield_now();
                                }
                            }
                        });
                    }
                });
                for thread in 0..threads {
                    let messages = kept.messages.lock().unwrap();
                    let of = messages.iter().map(|(_, message)| &message.head);
                    let of = of.filter(|head| head.starts_with(format!("{thread} ").as_bytes()));
                    assert!(of.eq(
                        (0..count).map(|number| format!("{thread} {number}")).collect::<Vec<_>>().iter()
                    ));
                }
            });
        });
    }

    #[test]
    fn sums_of_mpi_have_a_deadline_and_are_not_used_after_one_has_failed() {
        on_ranks(
            "links::tests::sums_of_mpi_have_a_deadline_and_are_not_used_after_one_has_failed",
            &[3],
            || {
                linked(|links, kept| {
                    let numbers = |of: &[f64]| Bytes::copy_from_slice(bytemuck::cast_slice(of));
                    let mine = numbers(&[1., links.rank as f64]);
                    let sum = |patience| links.sum(mine.clone(), Number::F64, patience);
                    assert_eq!(sum(PATIENCE).unwrap(), numbers(&[3., 3.]));
                    assert!(links.supports(8) && !links.supports(1 << 31));
                    if links.rank == 1 {
                        // This worker times out: it waits until both others have given up.
                        while kept.count() < 2 {
                            links.poll(PATIENCE, &|| kept.count() == 2);
                        }
                        assert!(sum(PATIENCE).is_ok());
                    } else {
                        let reason = sum(Duration::from_millis(300)).unwrap_err();
                        assert_eq!(reason, "not all workers have arrived within 0.3 s");
                        assert!(!links.supports(8));
                        links.send(1, Message::new("given up", ""));
                    }
                });
            },
        );
    }
}
