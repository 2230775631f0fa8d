//! The connections to spares, which the leader of a complete world holds.

// - INV-3: a spare waits as long as the leader holds the connection, whose silence has a deadline on both sides.
// - INV-28: there is at most one connection for each position in the cluster, and a spare that sends a message is
//   disconnected.

use super::note::Note;
use crate::handshake::{Reason, Refusal};
use crate::link::{Event, Link};
use crate::stream::Stream;
use crate::wire::{Decoder, Frame};
use crate::{Message, Settings};
use distribute_cluster::{Address, Deadline};
use rustix::event::PollFd;
use std::collections::BTreeSet;

/// The spares of a world, each with its connection.
///
/// The leader sends a note to each new spare, heartbeats while the leader is running, and a note when the training has
/// ended. If the connection ends without that note, the group re-forms.
#[derive(Debug)]
pub(super) struct SpareLinks {
    generation: u64,
    /// The id of the world's table.
    table: u64,
    /// The position and address of each worker of the world, if leaders are elected.
    world: Vec<(usize, Address)>,
    settings: Settings,
    all: Vec<SpareLink>,
    beat: Deadline,
}

#[derive(Debug)]
struct SpareLink {
    link: Link,
    silence: Deadline,
    /// Whether the spare was notified that the training has ended.
    is_dismissed: bool,
}

impl SpareLinks {
    /// Creates the links to the spares that have taken part in the rendezvous of the world of this generation and
    /// table. `world` are the position and address of each of its workers, if leaders are elected, and otherwise empty.
    pub fn new(
        (generation, table): (u64, u64),
        world: Vec<(usize, Address)>,
        settings: Settings,
        links: Vec<Link>,
    ) -> Self {
        let beat = Deadline::after(settings.heartbeat);
        let mut spares = Self { generation, table, world, settings, all: Vec::new(), beat };
        links.into_iter().for_each(|link| spares.hold(link));
        spares
    }

    /// Adds a spare that was accepted after the rendezvous.
    pub fn add(&mut self, position: usize, stream: Stream) {
        self.hold(Link::new(position, stream, Decoder::new(self.settings.limits)));
    }

    /// Sends all spares the generation that the members of the world claim, if it is later than the world's.
    pub fn raise(&mut self, generation: u64) {
        if generation > self.generation {
            self.generation = generation;
            self.all.iter().for_each(|spare| send(&spare.link, &self.note()));
        }
    }

    fn note(&self) -> Note {
        Note::Spare(self.generation, self.table, self.world.clone())
    }

    fn hold(&mut self, link: Link) {
        send(&link, &self.note());
        let silence = Deadline::after(self.settings.silence);
        self.all.push(SpareLink { link, silence, is_dismissed: false });
    }

    /// Returns the positions of the spares in the cluster.
    pub fn positions(&self) -> BTreeSet<usize> {
        self.all.iter().map(|spare| spare.link.peer()).collect()
    }

    /// Returns the socket events for which to wait.
    pub fn interests(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.all.iter().map(|spare| spare.link.interest())
    }

    /// Sends heartbeats that are due, and removes spares that have disconnected or are silent. If `over` is `true`,
    /// notifies each spare that the training has ended.
    pub fn serve(&mut self, over: bool) {
        self.beat.look();
        let beats = self.beat.has_passed();
        if beats {
            self.beat = Deadline::after(self.settings.heartbeat);
        }
        let mut events = Vec::new();
        for SpareLink { link, silence, is_dismissed } in &mut self.all {
            if over && !std::mem::replace(is_dismissed, true) {
                let text = "the training has ended on all workers, and no spare is needed";
                let refusal = Refusal::new(Reason::Ended, text);
                send(link, &Note::Refused(link.peer(), String::new(), refusal));
            }
            if beats {
                link.send_heartbeat();
            }
            silence.look();
            if link.take_received() {
                *silence = Deadline::after(self.settings.silence);
            } else if silence.has_passed() {
                link.fail(format!("it has sent nothing for {} s", self.settings.silence.as_secs_f32()));
            }
            link.poll(&mut events);
        }
        for event in events {
            let (position, reason) = match event {
                Event::Message(position, _) => (position, "it has sent a message".to_owned()),
                Event::Lost(position, reason) => (position, reason),
            };
            tracing::debug!(position, reason, "a spare is disconnected");
            self.all.retain(|spare| spare.link.peer() != position);
        }
    }
}

fn send(link: &Link, note: &Note) {
    link.send(Frame::Data(Message::new("", note.encode())));
}
