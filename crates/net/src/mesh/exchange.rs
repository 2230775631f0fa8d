//! Messages that all workers send to each other at the same time, through memory that they share.

use super::shared::Shared;
use crate::Message;
use crate::link::{Link, Next};
use bytes::Bytes;
use std::sync::atomic::Ordering;

/// The number of looks for the messages of other workers. They take some microseconds. A worker that is later than that
/// is awaited by [`Transport::poll`](crate::Transport::poll).
const LOOKS: usize = 256;

/// The number of looks before sleeping workers are woken. To find them, this thread has to wait until its own messages
/// have left its core, which they have by then. Mostly, the other workers have answered.
const LOOKS_BEFORE_WAKING: usize = 32;

impl Shared {
    /// Sends a message to each other worker, and receives theirs: see
    /// [`Transport::exchange`](crate::Transport::exchange).
    pub fn exchange(&self, head: &[u8], bodies: &mut [Option<Bytes>]) {
        for link in &self.links {
            let Some(body) = bodies.get_mut(link.peer()).and_then(Option::take) else { continue };
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
        let most = if self.crowded { 0 } else { LOOKS };
        let (mut looks, mut is_awake) = (0, false);
        let wake = || self.links.iter().for_each(Link::wake_peer);
        // What other threads have read was delivered before this one becomes the thread that polls.
        if let Some(events) = self.try_become_poller()
            && events.is_empty()
        {
            for link in &self.links {
                loop {
                    match link.take_short_with(head) {
                        Next::Taken(body) => {
                            if let Some(place) = bodies.get_mut(link.peer()) {
                                *place = Some(body);
                            }
                            break;
                        }
                        Next::Nothing if looks < most => looks += 1,
                        Next::Nothing | Next::Other => break,
                    }
                    if looks == LOOKS_BEFORE_WAKING {
                        is_awake = true;
                        wake();
                    }
                    std::hint::spin_loop();
                }
            }
        }
        if !is_awake {
            wake();
        }
    }
}
