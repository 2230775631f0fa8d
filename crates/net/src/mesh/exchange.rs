//! Messages that all workers send to each other at the same time, through memory that they share.

use super::shared::Shared;
use crate::Message;
use crate::link::{Link, ShortReceipt};
use bytes::Bytes;
use std::sync::atomic::Ordering;

/// The maximum number of checks for the messages of other workers. They take some microseconds.
/// [`Transport::poll`](crate::Transport::poll) waits for stragglers.
const SPIN_CHECKS: usize = 256;

/// The number of checks before sleeping workers are woken. To find them, this thread has to wait until its own messages
/// have left its core, which they have by then. Mostly, the other workers have answered. If this thread is preempted
/// before that, a sleeping worker is woken later, by a time slice.
const CHECKS_BEFORE_WAKING: usize = 32;

impl Shared {
    /// Sends a message to each other worker, and receives theirs: see
    /// [`Transport::exchange`](crate::Transport::exchange).
    pub fn exchange(&self, head: &[u8], bodies: &mut [Option<Bytes>]) -> Option<usize> {
        for (worker, body) in bodies.iter_mut().enumerate() {
            // Taken even if there is no link: only received bodies may be left.
            let (Some(body), Some(link)) = (body.take(), self.link(worker)) else { continue };
            if !link.send_short(head, &body, self.arena.as_ref()) {
                let message = Message { head: Bytes::copy_from_slice(head), body };
                if link.send_message(message, self.arena.as_ref()) {
                    self.wake();
                }
            }
        }
        // Another thread may count at the same time. The background thread only notices that the number has changed.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        // Spinning would keep the other workers from their cores if there are too few.
        let most = if self.crowded { 0 } else { SPIN_CHECKS };
        let (mut checks, mut is_awake, mut last) = (0, false, None);
        let wake = || self.links.iter().for_each(Link::wake_peer);
        // What other threads have read was delivered before this one becomes the thread that polls.
        if let Some(events) = self.try_become_poller()
            && events.is_empty()
        {
            for link in &self.links {
                let before = checks;
                loop {
                    match link.take_short_with(head) {
                        ShortReceipt::Received(body) => {
                            if let Some(place) = bodies.get_mut(link.peer()) {
                                *place = Some(body);
                            }
                            break;
                        }
                        ShortReceipt::Nothing if checks < most => checks += 1,
                        ShortReceipt::Nothing | ShortReceipt::Other => break,
                    }
                    if checks == CHECKS_BEFORE_WAKING {
                        is_awake = true;
                        wake();
                    }
                    std::hint::spin_loop();
                }
                if checks > before {
                    last = Some(link.peer());
                }
            }
        }
        if !is_awake {
            wake();
        }
        last
    }
}
