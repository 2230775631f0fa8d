//! The thread that moves bytes while nobody waits for them, sends heartbeats, and notices who has died.

use crate::link::Link;
use crate::mesh::Shared;
use crate::poll;
use crate::ready::{self, Ready};
use distribute_cluster::Deadline;
use rustix::event::PollFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often heartbeats and silences are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// How long this thread stays out of the way of those that drive.
const BACK_OFF: Duration = Duration::from_millis(1);

/// Who comes when the world is complete: they are told so.
pub(crate) trait Latecomers: Send {
    /// What to wait for.
    fn interests(&self) -> Vec<PollFd<'_>>;

    /// Talks to those who have come.
    fn attend(&mut self);
}

/// Moves bytes until all links are over, or the farewell has taken too long.
pub(crate) fn run(shared: &Shared, mut latecomers: Option<Box<dyn Latecomers>>) {
    let mut pulse = Pulse::new(shared);
    let mut farewell = None;
    let mut seen = shared.drives.load(Ordering::Acquire);
    // What came before the links were a mesh.
    move_bytes(shared);
    loop {
        // However busy the links are, those who come late are heard.
        if pulse.look(shared)
            && let Some(latecomers) = &mut latecomers
        {
            latecomers.attend();
        }
        let closed = shared.closed.load(Ordering::Acquire);
        if closed {
            let deadline = farewell.get_or_insert_with(|| Deadline::after(shared.settings.farewell));
            deadline.look();
            if deadline.has_passed() || shared.links.iter().all(Link::is_over) {
                break;
            }
        }
        let drives = shared.drives.load(Ordering::Acquire);
        if drives != seen || shared.driving.load(Ordering::Acquire) {
            seen = drives;
            let _ = poll::wait(&mut [], BACK_OFF);
            continue;
        }
        match wait(shared, latecomers.as_deref()) {
            Woken::Latecomers => {
                if let Some(latecomers) = &mut latecomers {
                    latecomers.attend();
                }
            }
            // Something waits to be written. Who sent it is about to drive, mostly.
            Woken::Asked if !closed => {
                let _ = poll::wait(&mut [], BACK_OFF);
                if shared.drives.load(Ordering::Acquire) == seen {
                    move_bytes(shared);
                }
            }
            Woken::Asked | Woken::Link => move_bytes(shared),
            Woken::Nothing => {}
        }
    }
    shared.links.iter().for_each(Link::end);
}

enum Woken {
    Link,
    Asked,
    Latecomers,
    Nothing,
}

fn wait(shared: &Shared, latecomers: Option<&dyn Latecomers>) -> Woken {
    let mut others = vec![shared.to_background.interest()];
    others.extend(latecomers.map(Latecomers::interests).unwrap_or_default());
    let patience = LOOK.min(shared.settings.heartbeat / 2);
    let Ok(Ready { links, others }) = ready::wait(&shared.links, others, patience) else {
        let _ = poll::wait(&mut [], BACK_OFF);
        return Woken::Nothing;
    };
    let asked = others.first() == Some(&true);
    if asked {
        shared.to_background.drain();
    }
    if links.contains(&true) {
        Woken::Link
    } else if asked {
        Woken::Asked
    } else if others.contains(&true) {
        Woken::Latecomers
    } else {
        Woken::Nothing
    }
}

/// So many turns of all links are made before heartbeats are looked at again, however much comes.
const TURNS: usize = 64;

/// Moves what can be moved, until somebody else wants to.
fn move_bytes(shared: &Shared) {
    let Some(mut events) = shared.try_driver() else { return };
    for _ in 0..TURNS {
        let more = shared.pass(&mut events, |_| true);
        shared.deliver(&mut events);
        if !more || shared.wanted.load(Ordering::Acquire) > 0 {
            return;
        }
    }
}

/// Heartbeats, and how long others have been silent.
struct Pulse {
    look: Deadline,
    beat: Deadline,
    silences: Vec<Deadline>,
}

impl Pulse {
    fn new(shared: &Shared) -> Self {
        let silences = shared.links.iter().map(|_| Deadline::after(shared.settings.silence)).collect();
        let beat = Deadline::after(shared.settings.heartbeat);
        Self { look: Deadline::after(LOOK), beat, silences }
    }

    /// Looks if it is time to, and says whether it was.
    fn look(&mut self, shared: &Shared) -> bool {
        if !self.look.has_passed() {
            return false;
        }
        self.look = Deadline::after(LOOK.min(shared.settings.heartbeat / 2));
        self.beat.look();
        let beats = self.beat.has_passed();
        if beats {
            self.beat = Deadline::after(shared.settings.heartbeat);
            shared.arena.iter().for_each(|arena| arena.relax());
        }
        for (link, silence) in shared.links.iter().zip(&mut self.silences).filter(|(link, _)| !link.is_over())
        {
            if beats {
                link.beat();
            }
            silence.look();
            if link.was_heard() {
                *silence = Deadline::after(shared.settings.silence);
            } else if silence.has_passed() {
                let seconds = shared.settings.silence.as_secs_f64();
                link.doom(format!("it has sent nothing for {seconds:.1} s"));
                shared.wake();
            }
        }
        true
    }
}
