//! The state that a mesh shares with its thread in the background: the links, and the turn to move their bytes.

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

/// How long to look for messages, or for the rest of one, before sleeping until something comes: about as long as it takes to
/// wake a thread.
const SPIN: Duration = Duration::from_micros(50);

/// How long the thread in the background takes at most to make way, which it does after each turn.
const MAKE_WAY: Duration = Duration::from_millis(5);

/// Up to so many sockets are read to see whether something has come; of more, the system is asked.
const FEW: usize = 3;

/// The links of a mesh, and who moves their bytes.
pub(crate) struct Shared {
    pub world: World,
    pub settings: Settings,
    pub links: Vec<Link>,
    /// How many of them have nothing but a socket.
    sockets: usize,
    /// Which link leads to which worker.
    at: Vec<Option<usize>>,
    /// Memory that others can read, where there are others that can.
    pub arena: Option<Arc<Arena>>,
    receiver: Arc<dyn Receiver>,
    /// Held by the thread that drives. What has been read and not yet delivered.
    driver: Mutex<Vec<Event>>,
    /// How often a thread has driven, to notice that one does.
    pub drives: AtomicU64,
    /// Whether a thread drives that is not the background's.
    pub driving: AtomicBool,
    /// How many threads wait for the background's to let them drive.
    pub wanted: AtomicUsize,
    to_driver: Waker,
    pub to_background: Waker,
    pub closed: AtomicBool,
    /// The longest farewell, in milliseconds.
    stay: AtomicU64,
    /// Whether the world takes nobody in the place of one that was lost.
    over: AtomicBool,
    crowded: bool,
}

/// What a mesh is made of: the workers that have met, as one of them sees them.
pub(crate) struct Met {
    pub world: World,
    /// The place of each worker in the cluster.
    pub places: Vec<usize>,
    /// Where each is, if that is known.
    pub addresses: Vec<Address>,
    /// How often the world has been made, this time included.
    pub generation: u64,
    pub links: Vec<Link>,
    /// What has come over them already.
    pub early: Vec<Event>,
    pub settings: Settings,
    /// Whether more threads than cores wait on this machine.
    pub crowded: bool,
}

impl Met {
    /// A worker that is linked to these.
    pub fn new(world: World, links: Vec<Link>, settings: Settings) -> Self {
        let places = (0..world.workers()).collect();
        let (addresses, early) = Default::default();
        Self { world, places, addresses, generation: 1, links, early, settings, crowded: false }
    }
}

impl Shared {
    /// Says this last word to all others, unless another has been said.
    pub fn close(&self, last: &Frame) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            for link in &self.links {
                link.send(last.clone());
            }
            self.wake();
        }
    }

    /// Sets the longest farewell, unless it is longer.
    pub fn stay(&self, patience: Duration) {
        let patience = millis(patience);
        if patience > self.stay.load(Ordering::Relaxed) {
            self.stay.fetch_max(patience, Ordering::Relaxed);
        }
    }

    /// Sets whether the world takes nobody in the place of one that was lost.
    pub fn set_over(&self, over: bool) {
        self.over.store(over, Ordering::Relaxed);
    }

    /// Talks to those who have come when the world was complete.
    pub fn attend(&self, latecomers: &mut dyn Latecomers) {
        latecomers.attend(&|worker| self.has_lost(worker), self.over.load(Ordering::Relaxed));
    }

    /// What a mesh and its thread in the background have in common.
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

    /// The time after which the end no longer waits even if bytes still move.
    pub fn longest_farewell(&self) -> Duration {
        Duration::from_millis(self.stay.load(Ordering::Relaxed))
    }

    /// Whether a worker is lost.
    pub fn has_lost(&self, worker: usize) -> bool {
        self.link(worker).is_none_or(Link::is_over)
    }

    /// The link to this worker.
    pub fn link(&self, worker: usize) -> Option<&Link> {
        self.links.get(self.at.get(worker).copied().flatten()?)
    }

    /// Lets the thread that waits for sockets look at them anew.
    pub fn wake(&self) {
        if self.driving.load(Ordering::Acquire) {
            self.to_driver.wake();
        }
        self.to_background.wake();
    }

    /// Moves bytes until some have been delivered, as [`Transport::drive`] says.
    pub fn drive(&self, patience: Duration, is_there: &dyn Fn() -> bool) -> Drive {
        if self.links.iter().all(Link::is_over) {
            return Drive::Never;
        }
        let mut deadline = Deadline::after(patience);
        // Also where the thread in the background has been first: it makes way for those who wait, who would otherwise be woken
        // by it for each message from here on.
        self.drives.fetch_add(1, Ordering::Release);
        let Some(mut events) = self.take_over() else { return Drive::Elsewhere };
        if is_there() {
            return Drive::Delivered;
        }
        self.driving.store(true, Ordering::Release);
        let drive = self.until_delivered(&mut events, &mut deadline);
        self.driving.store(false, Ordering::Release);
        drop(events);
        // This thread has taken the byte that was to wake the one in the background, and may have left something.
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

    /// Becomes the thread that drives, unless another thread of a caller is. That of the background makes way soon.
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

    /// Becomes the thread that drives, if none does.
    pub fn try_driver(&self) -> Option<MutexGuard<'_, Vec<Event>>> {
        self.driver.try_lock()
    }

    /// Gives each of these links a turn. Says whether there may be more.
    pub fn pass(&self, events: &mut Vec<Event>, which: impl Fn(usize) -> bool) -> bool {
        let links = self.links.iter().enumerate().filter(|(at, _)| which(*at));
        links.fold(false, |more, (_, link)| link.turn(events) | more)
    }

    /// Waits until something can be read or written, and gives those links a turn.
    fn pass_ready(&self, events: &mut Vec<Event>, patience: Duration) -> bool {
        let wait = ready::wait(&self.links, vec![self.to_driver.interest()], patience);
        let Ok(Ready { links, others }) = wait else { return false };
        if others.contains(&true) {
            self.to_driver.drain();
        }
        self.pass(events, |at| links.get(at).is_some_and(|ready| *ready))
    }

    /// Gives the receiver what has been read. Says whether there was anything.
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
