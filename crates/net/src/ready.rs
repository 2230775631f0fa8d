//! Waits until links need a turn.

use crate::link::Link;
use crate::poll;
use crate::shm::pair::Pair;
use rustix::event::PollFd;
use std::io;
use std::time::Duration;

/// The links and sockets that became ready during a wait.
#[derive(Debug)]
pub(crate) struct Ready {
    /// Whether each link needs a turn.
    pub links: Vec<bool>,
    /// Whether each of the other sockets is ready.
    pub others: Vec<bool>,
}

/// A guard that marks this thread as sleeping, so that the other side of the link wakes the thread.
struct Asleep<'a>(&'a Pair);

impl<'a> Asleep<'a> {
    fn new(pair: &'a Pair) -> Self {
        pair.begin_sleep();
        Self(pair)
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// Waits until one of the links needs a turn or one of the other sockets is ready, for at most `patience`.
pub(crate) fn wait<'a>(links: &'a [Link], others: Vec<PollFd<'a>>, patience: Duration) -> io::Result<Ready> {
    let alive = || links.iter().enumerate().filter(|(_, link)| !link.loss_is_reported());
    let asleep: Vec<_> = if patience.is_zero() {
        Vec::new()
    } else {
        alive().filter_map(|(_, link)| link.pair()).map(|pair| Asleep::new(pair)).collect()
    };
    // Changes made before the other side saw that this thread sleeps are visible here.
    let mut ready: Vec<_> = links.iter().map(Link::has_work).collect();
    let patience = if ready.contains(&true) { Duration::ZERO } else { patience };
    let (mut sockets, waited): (_, Vec<_>) = (others, alive().collect());
    let before = sockets.len();
    sockets.extend(waited.iter().map(|(_, link)| link.interest()));
    poll::wait(&mut sockets, patience)?;
    drop(asleep);
    let mut happened: Vec<_> = sockets.iter().map(poll::is_ready).collect();
    let at_links = happened.split_off(before);
    for ((at, link), happened) in waited.into_iter().zip(at_links) {
        if happened && let Some(pair) = link.pair() {
            pair.mark_socket_event();
        }
        ready[at] |= happened || link.has_work();
    }
    Ok(Ready { links: ready, others: happened })
}
