//! The state that a mesh shares with its background thread: the links, and the turns to move their bytes.

use super::latecomers::Latecomers;
use crate::link::{Event, Link};
use crate::poll::Waker;
use crate::ready::{self, Ready};
use crate::shm::arena::Arena;
use crate::wire::Frame;
use crate::{Drive, Receiver, Settings};
use distribute_cluster::{Address, Deadline, World};
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The time to spin for messages, or for the rest of one, before sleeping. About as long as it takes to wake
/// a thread.
const SPIN: Duration = Duration::from_micros(50);

/// The maximum wait until the background thread makes way, which it does after each turn.
const MAKE_WAY: Duration = Duration::from_millis(5);

/// The maximum number of sockets that are read directly to see whether anything was received. With more, the
/// system is asked.
const FEW: usize = 3;

/// The links of a mesh, and the lock of the thread that polls them.
pub(crate) struct Shared {
    pub world: World,
    pub settings: Settings,
    pub links: Vec<Link>,
    /// The number of links without shared memory.
    sockets: usize,
    /// The index of the link to each worker.
    at: Vec<Option<usize>>,
    /// Memory that others can read, if any of them can.
    pub arena: Option<Arc<Arena>>,
    receiver: Arc<dyn Receiver>,
    /// The events that were read and not yet delivered. The thread that polls holds the lock.
    driver: Mutex<Vec<Event>>,
    /// The number of calls that poll, by which the background thread notices them.
    pub drives: AtomicU64,
    /// Whether a thread other than the background thread polls.
    pub driving: AtomicBool,
    /// The number of threads that wait for the background thread to make way.
    pub wanted: AtomicUsize,
    to_driver: Waker,
    pub to_background: Waker,
    pub closed: AtomicBool,
    /// The longest farewell, in milliseconds.
    stay: AtomicU64,
    /// Whether the world takes no replacements of failed workers.
    over: AtomicBool,
    crowded: bool,
}

/// The result of a rendezvous, from which a mesh is made, as seen by one worker.
pub(crate) struct Met {
    pub world: World,
    /// The position of each worker in the cluster.
    pub places: Vec<usize>,
    /// The address of each worker, if known.
    pub addresses: Vec<Address>,
    /// The number of times that the world was made, including this time.
    pub generation: u64,
    pub links: Vec<Link>,
    /// The events that were already received.
    pub early: Vec<Event>,
    pub settings: Settings,
    /// Whether more threads than cores wait on this machine.
    pub crowded: bool,
}

impl Met {
    /// Creates the result for a worker with these links.
    pub fn new(world: World, links: Vec<Link>, settings: Settings) -> Self {
        let places = (0..world.workers()).collect();
        let (addresses, early) = Default::default();
        Self { world, places, addresses, generation: 1, links, early, settings, crowded: false }
    }
}

impl Shared {
    /// Sends this last frame to all others, unless the mesh is already closed.
    pub fn close(&self, last: &Frame) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            for link in &self.links {
                link.send(last.clone());
            }
            self.wake();
        }
    }

    /// Sets the longest farewell, unless it is already longer.
    pub fn stay(&self, patience: Duration) {
        let patience = millis(patience);
        if patience > self.stay.load(Ordering::Relaxed) {
            self.stay.fetch_max(patience, Ordering::Relaxed);
        }
    }

    /// Sets whether the world takes no replacements of failed workers.
    pub fn set_over(&self, over: bool) {
        self.over.store(over, Ordering::Relaxed);
    }

    /// Runs the handshakes of workers that connect after the world is complete.
    pub fn attend(&self, latecomers: &mut dyn Latecomers) {
        latecomers.attend(&|worker| self.has_lost(worker), self.over.load(Ordering::Relaxed));
    }

    /// Creates the shared state of a mesh and its background thread.
    pub fn new(met: Met, receiver: Arc<dyn Receiver>) -> io::Result<Self> {
        let Met { world, links, early, settings, crowded, .. } = met;
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
            arena: links.iter().any(|link| link.pair().is_some()).then(Arc::default),
            links,
            at,
            receiver,
            driver: Mutex::new(early),
            drives: AtomicU64::default(),
            driving: AtomicBool::default(),
            wanted: AtomicUsize::default(),
            to_driver: Waker::new()?,
            to_background: Waker::new()?,
            closed: AtomicBool::default(),
            stay: AtomicU64::new(millis(settings.longest_farewell)),
            over: AtomicBool::default(),
            crowded: settings.crowded.unwrap_or(crowded),
        })
    }

    /// Returns the time after which the end stops waiting even if bytes still move.
    pub fn longest_farewell(&self) -> Duration {
        Duration::from_millis(self.stay.load(Ordering::Relaxed))
    }

    /// Whether a worker is disconnected.
    pub fn has_lost(&self, worker: usize) -> bool {
        self.link(worker).is_none_or(Link::is_over)
    }

    /// Returns the link to this worker.
    pub fn link(&self, worker: usize) -> Option<&Link> {
        self.links.get(self.at.get(worker).copied().flatten()?)
    }

    /// Makes the threads that wait for sockets check the links again.
    pub fn wake(&self) {
        if self.driving.load(Ordering::Acquire) {
            self.to_driver.wake();
        }
        self.to_background.wake();
    }

    /// Moves bytes until some were delivered: see [`Transport::drive`].
    pub fn drive(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> Drive {
        if self.links.iter().all(Link::is_over) {
            return Drive::Never;
        }
        let mut deadline = Deadline::after(patience);
        // This also counts if the background thread came first. It then makes way for waiting threads, which
        // it would otherwise have to wake for each message.
        self.drives.fetch_add(1, Ordering::Release);
        let Some(mut events) = self.take_over() else { return Drive::Elsewhere };
        if is_there() {
            return Drive::Delivered;
        }
        self.driving.store(true, Ordering::Release);
        let drive = self.until_delivered(&mut events, &mut deadline);
        self.driving.store(false, Ordering::Release);
        drop(events);
        // This thread has consumed the byte that was to wake the background thread, and may have left work.
        let left = |link: &Link| link.pair().is_some_and(|pair| pair.sleepers() > 0) && link.has_work();
        if self.links.iter().any(left) {
            self.to_background.wake();
        }
        drive
    }

    fn until_delivered(&self, events: &mut Vec<Event>, deadline: &mut Deadline) -> Drive {
        let mut spin = Deadline::after(SPIN);
        loop {
            let more = if self.sockets <= FEW || !events.is_empty() {
                self.pass(events, |_| true)
            } else {
                self.pass_ready(events, Duration::ZERO)
            };
            if self.deliver(events) {
                return Drive::Delivered;
            }
            let slice = deadline.look();
            if more && !slice.is_zero() {
                spin = Deadline::after(SPIN);
                continue;
            }
            if slice.is_zero() || self.links.iter().all(Link::is_over) {
                return Drive::Nothing;
            }
            if !spin.has_passed() {
                if self.crowded { std::thread::yield_now() } else { std::hint::spin_loop() }
            } else {
                self.pass_ready(events, slice);
                if self.deliver(events) {
                    return Drive::Delivered;
                }
            }
        }
    }

    /// Becomes the thread that polls, unless another caller's thread is. The background thread makes way
    /// soon.
    fn take_over(&self) -> Option<MutexGuard<'_, Vec<Event>>> {
        if let Some(events) = self.try_driver() {
            return Some(events);
        }
        if self.driving.load(Ordering::Acquire) {
            return None;
        }
        self.wanted.fetch_add(1, Ordering::AcqRel);
        let patience = Deadline::after(MAKE_WAY);
        let events = loop {
            match self.try_driver() {
                None if patience.has_passed() || self.driving.load(Ordering::Acquire) => break None,
                None => std::thread::yield_now(),
                events => break events,
            }
        };
        self.wanted.fetch_sub(1, Ordering::AcqRel);
        events
    }

    /// Becomes the thread that polls, if there is none.
    pub fn try_driver(&self) -> Option<MutexGuard<'_, Vec<Event>>> {
        self.driver.try_lock()
    }

    /// Gives each selected link a turn. Returns `true` if there may be more.
    pub fn pass(&self, events: &mut Vec<Event>, which: impl Fn(usize) -> bool) -> bool {
        let links = self.links.iter().enumerate().filter(|(at, _)| which(*at));
        links.fold(false, |more, (_, link)| link.turn(events) | more)
    }

    /// Waits until a link can be read or written, and gives the ready links a turn.
    fn pass_ready(&self, events: &mut Vec<Event>, patience: Duration) -> bool {
        let wait = ready::wait(&self.links, vec![self.to_driver.interest()], patience);
        let Ok(Ready { links, others }) = wait else { return false };
        if others.contains(&true) {
            self.to_driver.drain();
        }
        self.pass(events, |at| links.get(at).is_some_and(|ready| *ready))
    }

    /// Delivers what was read to the receiver. Returns `true` if there was anything.
    pub fn deliver(&self, events: &mut Vec<Event>) -> bool {
        let any = !events.is_empty();
        for event in events.drain(..) {
            match event {
                Event::Message(from, message) => self.receiver.deliver(from, message),
                Event::Lost(from, reason) => {
                    tracing::debug!(worker = from, reason, "a worker is lost");
                    self.receiver.lose(from, reason);
                }
            }
        }
        any
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
