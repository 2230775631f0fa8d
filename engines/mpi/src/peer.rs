//! What goes to and comes from one other process.

use crate::envelope::{Assembly, messages};
use crate::library::{Library, Request};
use distribute_cluster::Deadline;
use distribute_net::wire::Frame;
use std::collections::VecDeque;
use std::time::Duration;

/// How it stands with a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It is there.
    Alive,
    /// It has ended in order, and still receives.
    Ended,
    /// It can't be reached any more.
    Lost,
}

/// What goes to and comes from one other process, in order.
pub(crate) struct Peer {
    rank: usize,
    life: Life,
    sending: VecDeque<Request>,
    receiving: Option<Request>,
    assembly: Assembly,
    /// When it has been silent for too long.
    silence: Deadline,
    patience: Duration,
}

impl Peer {
    /// A process that is there, and may be silent for so long.
    pub fn new(rank: usize, patience: Duration) -> Self {
        Self {
            rank,
            life: Life::Alive,
            sending: VecDeque::new(),
            receiving: None,
            assembly: Assembly::default(),
            silence: Deadline::after(patience),
            patience,
        }
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn life(&self) -> Life {
        self.life
    }

    /// Nothing comes from it any more, and nothing is sent to it.
    pub fn end(&mut self, life: Life) {
        self.life = life;
    }

    /// Whether something has been begun and not ended.
    pub fn is_busy(&self) -> bool {
        !self.sending.is_empty() || self.receiving.is_some()
    }

    /// Whether everything has been sent.
    pub fn has_sent(&self) -> bool {
        self.sending.is_empty()
    }

    /// Begins to send a frame, unless it goes nowhere. Who has ended still waits for the end of this process.
    pub fn send(&mut self, library: &mut Library, frame: Frame) -> Result<(), String> {
        let hears = match self.life {
            Life::Alive => true,
            Life::Ended => matches!(frame, Frame::Goodbye | Frame::Leave),
            Life::Lost => false,
        };
        if hears {
            for message in messages(frame) {
                self.sending.push_back(library.send(self.rank, message).map_err(|error| error.to_string())?);
            }
        }
        Ok(())
    }

    /// Goes on with what has been begun. Gives a frame that has come.
    pub fn turn(&mut self, library: &mut Library) -> Result<Option<Frame>, String> {
        let told = |error: crate::CallError| error.to_string();
        if self.life == Life::Lost {
            return Ok(None);
        }
        while let Some(first) = self.sending.front_mut() {
            if !library.test(first).map_err(told)? {
                break;
            }
            self.sending.pop_front();
        }
        if self.life != Life::Alive {
            return Ok(None);
        }
        if self.receiving.is_none() {
            self.receiving = library.receive(self.rank).map_err(told)?;
        }
        let Some(receiving) = &mut self.receiving else { return Ok(None) };
        if !library.test(receiving).map_err(told)? {
            return Ok(None);
        }
        self.silence = Deadline::after(self.patience);
        let Some(message) = self.receiving.take().and_then(Request::received) else { return Ok(None) };
        self.assembly.add(message).map_err(|error| format!("it has sent {error}"))
    }

    /// Looks at the clock. Says whether it has been silent for too long.
    pub fn is_silent(&mut self) -> bool {
        self.silence.look();
        self.life == Life::Alive && self.silence.has_passed()
    }
}
