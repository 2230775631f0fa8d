//! The background thread of a mesh. It polls the sockets while no other thread does, sends heartbeats, and detects
//! failed workers.

use super::late_joins::LateJoinHandler;
use super::shared::Shared;
use super::shutdown_wait::ShutdownWait;
use crate::link::Link;
use crate::poll;
use crate::ready::{self, Ready};
use distribute_cluster::Deadline;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The longest interval between checks of heartbeats and silences.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The time for which this thread does not use the sockets after another thread has polled.
const BACK_OFF: Duration = Duration::from_millis(1);

/// Polls the links while no other thread does, until the mesh is closed and its shutdown wait is over. Then closes the
/// connections.
pub(crate) fn run(shared: &Shared, mut late_joins: Option<Box<dyn LateJoinHandler>>) {
    let mut timers = HeartbeatTimers::new(shared);
    let mut shutdown_wait = None;
    let mut seen = shared.polls.load(Ordering::Acquire);
    // Some messages may have arrived before the mesh was created.
    move_bytes(shared);
    loop {
        // Latecomers are served even if the links are busy.
        if timers.look(shared)
            && let Some(late_joins) = &mut late_joins
        {
            shared.serve(&mut **late_joins);
        }
        let closed = shared.closed.load(Ordering::Acquire);
        if closed && shutdown_wait.get_or_insert_with(|| ShutdownWait::new(shared)).is_over(shared) {
            break;
        }
        let polls = shared.polls.load(Ordering::Acquire);
        if polls != seen || shared.is_polling.load(Ordering::Acquire) {
            seen = polls;
            let _ = poll::wait(&mut [], BACK_OFF);
            continue;
        }
        match wait(shared, late_joins.as_deref()) {
            Woken::LateJoins => {
                if let Some(late_joins) = &mut late_joins {
                    shared.serve(&mut **late_joins);
                }
            }
            // Data is queued for writing. The thread that has sent it usually polls next.
            Woken::Asked if !closed => {
                let _ = poll::wait(&mut [], BACK_OFF);
                if shared.polls.load(Ordering::Acquire) == seen {
                    move_bytes(shared);
                }
            }
            Woken::Asked | Woken::Link => move_bytes(shared),
            Woken::Nothing => {}
        }
    }
    if let Some(late_joins) = &mut late_joins {
        // Spares that are not notified of the end would wait for another process at this address.
        shared.serve(&mut **late_joins);
    }
    shared.links.iter().for_each(Link::end);
}

enum Woken {
    Link,
    Asked,
    LateJoins,
    Nothing,
}

fn wait(shared: &Shared, late_joins: Option<&dyn LateJoinHandler>) -> Woken {
    let mut others = vec![shared.wake_background.interest()];
    others.extend(late_joins.map(LateJoinHandler::interests).unwrap_or_default());
    let patience = CHECK_INTERVAL.min(shared.settings.heartbeat / 2);
    let Ok(Ready { links, others }) = ready::wait(&shared.links, others, patience) else {
        let _ = poll::wait(&mut [], BACK_OFF);
        return Woken::Nothing;
    };
    let asked = others.first() == Some(&true);
    if asked {
        shared.wake_background.drain();
    }
    if links.contains(&true) {
        Woken::Link
    } else if asked {
        Woken::Asked
    } else if others.contains(&true) {
        Woken::LateJoins
    } else {
        Woken::Nothing
    }
}

/// The maximum number of turns of all links before the next check of heartbeats, even if more is received.
const TURNS: usize = 64;

/// Gives all links turns without blocking, until there is nothing more to read or write or another thread wants to
/// poll. Stops after [`TURNS`] turns, and does nothing if another thread is polling.
fn move_bytes(shared: &Shared) {
    let Some(mut events) = shared.try_become_poller() else { return };
    let _span = tracing::trace_span!("network").entered();
    for _ in 0..TURNS {
        let more = shared.poll_links(&mut events, |_| true);
        shared.deliver(&mut events);
        if !more || shared.wanted.load(Ordering::Acquire) > 0 {
            return;
        }
    }
}

/// The timers for sending heartbeats and for detecting silence.
struct HeartbeatTimers {
    look: Deadline,
    beat: Deadline,
    silences: Vec<Deadline>,
}

impl HeartbeatTimers {
    fn new(shared: &Shared) -> Self {
        let silences = shared.links.iter().map(|_| Deadline::after(shared.settings.silence)).collect();
        let beat = Deadline::after(shared.settings.heartbeat);
        Self { look: Deadline::after(CHECK_INTERVAL), beat, silences }
    }

    /// Checks the timers if a check is due: sends the heartbeats that are due, and fails links that have been silent
    /// for too long. Returns `true` if the timers were checked.
    fn look(&mut self, shared: &Shared) -> bool {
        if !self.look.has_passed() {
            return false;
        }
        self.look = Deadline::after(CHECK_INTERVAL.min(shared.settings.heartbeat / 2));
        self.beat.look();
        let beats = self.beat.has_passed();
        if beats {
            self.beat = Deadline::after(shared.settings.heartbeat);
            shared.arena.iter().for_each(|arena| arena.trim());
        }
        for (link, silence) in
            shared.links.iter().zip(&mut self.silences).filter(|(link, _)| !link.loss_is_reported())
        {
            if beats && link.send_heartbeat() {
                shared.wake();
            }
            silence.look();
            if link.take_received() {
                *silence = Deadline::after(shared.settings.silence);
            } else if silence.has_passed() {
                let seconds = shared.settings.silence.as_secs_f64();
                link.fail(format!("it has sent nothing for {seconds:.1} s"));
                shared.wake();
            }
        }
        true
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::super::shared::RendezvousResult;
    use super::*;
    use crate::shm::played::tests::{link, say};
    use crate::wire::Frame;
    use crate::{Message, PollOutcome, Receiver, Settings};
    use distribute_cluster::World;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    const LONG: Duration = Duration::from_secs(20);

    /// A receiver that counts messages.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Receiver for Count {
        fn deliver(&self, _from: usize, _message: Message) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }

        fn mark_lost(&self, _from: usize, _reason: String) {}
    }

    /// Returns whether the background thread has been woken since the last query.
    fn is_woken(shared: &Shared) -> bool {
        let mut sockets = [shared.wake_background.interest()];
        poll::wait(&mut sockets, Duration::ZERO).unwrap();
        let is_woken = poll::is_ready(&sockets[0]);
        shared.wake_background.drain();
        is_woken
    }

    // Both threads sleep. The byte from the other side wakes the polling thread, which consumes it.
    #[test]
    fn who_drives_and_leaves_something_in_a_ring_wakes_the_thread_in_the_background() {
        let ((link, theirs, _socket), count) = (link(), Arc::<Count>::default());
        let mine = link.pair().unwrap().clone();
        let world = World::new(2, 0, 1).unwrap();
        let met = RendezvousResult::new(world, vec![link], Settings::default());
        let shared = Shared::new(met, count.clone()).unwrap();
        // This is the background thread.
        mine.begin_sleep();
        say(&theirs, Frame::Data(Message::new("first", "")));
        // The message is longer than one read.
        say(&theirs, Frame::Data(Message::new("second", vec![0; 100 << 10])));
        assert_eq!(shared.poll(LONG, &|| false), PollOutcome::Delivered);
        assert_eq!(count.0.load(Ordering::Acquire), 1);
        assert!(is_woken(&shared), "the second message is in the ring, and nobody knows");
        // The next thread receives everything.
        assert_eq!(shared.poll(LONG, &|| false), PollOutcome::Delivered);
        assert_eq!(shared.poll(Duration::ZERO, &|| false), PollOutcome::Nothing);
        is_woken(&shared);
        assert_eq!(shared.poll(Duration::ZERO, &|| false), PollOutcome::Nothing);
        assert_eq!((count.0.load(Ordering::Acquire), is_woken(&shared)), (2, false));
        mine.wake();
    }
}
