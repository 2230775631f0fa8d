//! The state that a mesh shares with its background thread: the links, and the lock by which threads take turns to poll
//! them.

use super::late_joins::LateJoinHandler;
use crate::link::{Event, Link};
use crate::poll::Waker;
use crate::ready::{self, Ready};
use crate::shm::arena::Arena;
use crate::wire::Frame;
use crate::{PollOutcome, Receiver, Settings};
use distribute_cluster::{Address, Deadline, World};
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The time to spin for messages, or for the rest of one, before sleeping. Waking a thread takes about as long.
const SPIN: Duration = Duration::from_micros(50);

/// The number of times that a thread gives the links a turn before it reads the clock. Reading it takes as long as a
/// turn.
const TURNS_WITHOUT_CLOCK: usize = 32;

/// The maximum time to wait for the background thread to stop polling. It stops after its turn.
const YIELD_WAIT: Duration = Duration::from_millis(5);

/// The maximum number of sockets that are read directly to check whether anything was received. With more sockets, the
/// system's `poll` is called first.
const MAX_DIRECT_SOCKETS: usize = 3;

/// The links of a mesh, and the lock of the thread that polls them.
pub(crate) struct Shared {
    pub world: World,
    pub settings: Settings,
    pub links: Vec<Link>,
    /// The number of links that do not use shared memory.
    sockets: usize,
    /// Whether all other workers share memory with this one.
    pub(super) shares_memory: bool,
    /// The index in `links` of the link to each worker.
    at: Vec<Option<usize>>,
    /// The memory that other workers can read, if any of them can.
    pub arena: Option<Arc<Arena>>,
    receiver: Arc<dyn Receiver>,
    /// Events that were read and not yet delivered. The polling thread holds the lock.
    poller: Mutex<Vec<Event>>,
    /// The number of calls of [`poll`](Self::poll), by which the background thread notices that other threads poll.
    pub polls: AtomicU64,
    /// Whether a thread other than the background thread polls.
    pub is_polling: AtomicBool,
    /// The number of threads that wait for the background thread to stop polling.
    pub wanted: AtomicUsize,
    wake_poller: Waker,
    pub wake_background: Waker,
    pub closed: AtomicBool,
    /// The maximum duration of the shutdown wait, in milliseconds.
    shutdown_wait: AtomicU64,
    /// Whether the world accepts no replacements of failed workers.
    over: AtomicBool,
    pub(super) crowded: bool,
}

/// The result of a rendezvous for one worker, from which its mesh is created.
pub(crate) struct RendezvousResult {
    pub world: World,
    /// The position of each worker in the cluster.
    pub positions: Vec<usize>,
    /// The address of each worker, if known.
    pub addresses: Vec<Address>,
    /// The generation of the world.
    pub generation: u64,
    pub links: Vec<Link>,
    /// The events that were received during the rendezvous.
    pub early: Vec<Event>,
    pub settings: Settings,
    /// Whether more threads than cores wait on this machine, so that spinning would slow down the others.
    pub crowded: bool,
}

impl RendezvousResult {
    /// Creates the result of a first rendezvous without addresses, in which positions equal ranks.
    pub fn new(world: World, links: Vec<Link>, settings: Settings) -> Self {
        let positions = (0..world.workers()).collect();
        let (addresses, early) = Default::default();
        Self { world, positions, addresses, generation: 1, links, early, settings, crowded: false }
    }
}

impl Shared {
    /// Closes the mesh, unless it is already closed: sends `last` to all other workers, after which the background
    /// thread begins the shutdown wait.
    pub fn close(&self, last: &Frame) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            for link in &self.links {
                link.send(last.clone());
            }
            self.wake();
        }
    }

    /// Increases the maximum duration of the shutdown wait to `patience`, unless it is already longer.
    pub fn extend_shutdown_wait(&self, patience: Duration) {
        let patience = millis(patience);
        if patience > self.shutdown_wait.load(Ordering::Relaxed) {
            self.shutdown_wait.fetch_max(patience, Ordering::Relaxed);
        }
    }

    /// Sets whether the world accepts no replacements of failed workers.
    pub fn set_finished(&self, finished: bool) {
        self.over.store(finished, Ordering::Relaxed);
    }

    /// Performs the handshakes of workers that connect after the world is complete.
    pub fn serve(&self, late_joins: &mut dyn LateJoinHandler) {
        late_joins.serve(&|worker| self.has_lost(worker), self.over.load(Ordering::Relaxed));
    }

    /// Creates the state that a mesh shares with its background thread.
    pub fn new(met: RendezvousResult, receiver: Arc<dyn Receiver>) -> io::Result<Self> {
        let RendezvousResult { world, links, early, settings, crowded, .. } = met;
        let mut at = vec![None; world.workers()];
        for (index, link) in links.iter().enumerate() {
            if let Some(at) = at.get_mut(link.peer()) {
                *at = Some(index);
            }
        }
        Ok(Self {
            world,
            settings,
            sockets: links.iter().filter(|link| link.pair().is_none()).count(),
            shares_memory: !links.is_empty()
                && links.len() + 1 == world.workers()
                && links.iter().all(|link| link.pair().is_some()),
            arena: links.iter().any(|link| link.pair().is_some()).then(Arc::default),
            links,
            at,
            receiver,
            poller: Mutex::new(early),
            polls: AtomicU64::default(),
            is_polling: AtomicBool::default(),
            wanted: AtomicUsize::default(),
            wake_poller: Waker::new()?,
            wake_background: Waker::new()?,
            closed: AtomicBool::default(),
            shutdown_wait: AtomicU64::new(millis(settings.max_shutdown_wait)),
            over: AtomicBool::default(),
            crowded: settings.crowded.unwrap_or(crowded),
        })
    }

    /// Returns the time after which the shutdown wait ends even if bytes are still being transferred.
    pub fn max_shutdown_wait(&self) -> Duration {
        Duration::from_millis(self.shutdown_wait.load(Ordering::Relaxed))
    }

    /// Returns whether a worker is disconnected, or has no link to this one.
    pub fn has_lost(&self, worker: usize) -> bool {
        self.link(worker).is_none_or(Link::loss_is_reported)
    }

    /// Returns the link to `worker`; `None` if `worker` is this worker or does not exist.
    pub fn link(&self, worker: usize) -> Option<&Link> {
        self.links.get(self.at.get(worker).copied().flatten()?)
    }

    /// Wakes the threads that wait for sockets, so that they check the links again.
    pub fn wake(&self) {
        if self.is_polling.load(Ordering::Acquire) {
            self.wake_poller.wake();
        }
        self.wake_background.wake();
    }

    /// Polls the links until something was delivered: see [`Transport::poll`].
    pub fn poll(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> PollOutcome {
        if self.links.iter().all(Link::loss_is_reported) {
            return PollOutcome::Never;
        }
        // This also counts if the background thread came first. It then makes way for waiting threads, which
        // it would otherwise have to wake for each message.
        self.polls.fetch_add(1, Ordering::Release);
        let Some(mut events) = self.become_poller() else { return PollOutcome::Elsewhere };
        if is_there() {
            return PollOutcome::Delivered;
        }
        self.is_polling.store(true, Ordering::Release);
        let outcome = self.poll_until_delivered(&mut events, patience);
        self.is_polling.store(false, Ordering::Release);
        drop(events);
        // This thread has consumed the byte that was to wake the background thread, and may have left work.
        let left = |link: &Link| link.pair().is_some_and(|pair| pair.sleepers() > 0) && link.has_work();
        if self.links.iter().any(left) {
            self.wake_background.wake();
        }
        outcome
    }

    fn poll_until_delivered(&self, events: &mut Vec<Event>, patience: Duration) -> PollOutcome {
        let is_long = self.crowded || self.sockets > MAX_DIRECT_SOCKETS;
        let turns = if is_long || patience.is_zero() { 0 } else { TURNS_WITHOUT_CLOCK };
        for _ in 0..turns {
            let more = self.give_turns(events);
            if self.deliver(events) {
                return PollOutcome::Delivered;
            }
            if !more {
                std::hint::spin_loop();
            }
        }
        let (mut deadline, mut spin) = (Deadline::after(patience), Deadline::after(SPIN));
        loop {
            let more = self.give_turns(events);
            if self.deliver(events) {
                return PollOutcome::Delivered;
            }
            let slice = deadline.look();
            if more && !slice.is_zero() {
                spin = Deadline::after(SPIN);
                continue;
            }
            if slice.is_zero() || self.links.iter().all(Link::loss_is_reported) {
                return PollOutcome::Nothing;
            }
            if !spin.has_passed() {
                if self.crowded { std::thread::yield_now() } else { std::hint::spin_loop() }
            } else {
                self.poll_ready_links(events, slice);
                if self.deliver(events) {
                    return PollOutcome::Delivered;
                }
            }
        }
    }

    /// Gives each link a turn if there are few sockets, and otherwise those that are ready. Returns `true` if there may
    /// be more to read or write.
    fn give_turns(&self, events: &mut Vec<Event>) -> bool {
        if self.sockets <= MAX_DIRECT_SOCKETS || !events.is_empty() {
            self.poll_links(events, |_| true)
        } else {
            self.poll_ready_links(events, Duration::ZERO)
        }
    }

    /// Becomes the thread that polls. If the background thread is polling, waits for at most [`YIELD_WAIT`] until it
    /// stops. Returns `None` if another thread continues to poll.
    fn become_poller(&self) -> Option<MutexGuard<'_, Vec<Event>>> {
        if let Some(events) = self.try_become_poller() {
            return Some(events);
        }
        if self.is_polling.load(Ordering::Acquire) {
            return None;
        }
        self.wanted.fetch_add(1, Ordering::AcqRel);
        let patience = Deadline::after(YIELD_WAIT);
        let events = loop {
            match self.try_become_poller() {
                None if patience.has_passed() || self.is_polling.load(Ordering::Acquire) => break None,
                None => std::thread::yield_now(),
                events => break events,
            }
        };
        self.wanted.fetch_sub(1, Ordering::AcqRel);
        events
    }

    /// Becomes the thread that polls, if no other thread polls.
    pub fn try_become_poller(&self) -> Option<MutexGuard<'_, Vec<Event>>> {
        self.poller.try_lock()
    }

    /// Gives each selected link a turn. Returns `true` if there may be more to read or write.
    pub fn poll_links(&self, events: &mut Vec<Event>, which: impl Fn(usize) -> bool) -> bool {
        let links = self.links.iter().enumerate().filter(|(at, _)| which(*at));
        links.fold(false, |more, (_, link)| link.poll(events) | more)
    }

    /// Waits for at most `patience` until a link needs a turn or this thread is woken. Gives the links that need one a
    /// turn. Returns `true` if there may be more to read or write.
    fn poll_ready_links(&self, events: &mut Vec<Event>, patience: Duration) -> bool {
        let wait = ready::wait(&self.links, vec![self.wake_poller.interest()], patience);
        let Ok(Ready { links, others }) = wait else { return false };
        if others.contains(&true) {
            self.wake_poller.drain();
        }
        self.poll_links(events, |at| links.get(at).is_some_and(|ready| *ready))
    }

    /// Delivers the events to the receiver, and clears them. Returns `true` if there were any.
    pub fn deliver(&self, events: &mut Vec<Event>) -> bool {
        let any = !events.is_empty();
        for event in events.drain(..) {
            match event {
                Event::Message(from, message) => self.receiver.deliver(from, message),
                Event::Lost(from, reason) => {
                    tracing::debug!(worker = from, reason, "a worker is lost");
                    self.receiver.mark_lost(from, reason);
                }
            }
        }
        any
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
