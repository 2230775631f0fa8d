//! The traffic with one other process.

use crate::envelope::{Assembly, messages};
use crate::library::{Library, Request};
use distribute_cluster::Deadline;
use distribute_net::wire::Frame;
use std::collections::VecDeque;
use std::time::Duration;

/// The status of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// The process is connected.
    Alive,
    /// The process has sent its final message: it sends nothing more, but still receives.
    Ended,
    /// The process is disconnected.
    Lost,
}

/// The traffic with one other process, in order.
pub(crate) struct Peer {
    rank: usize,
    life: Life,
    sending: VecDeque<Request>,
    receiving: Option<Request>,
    assembly: Assembly,
    /// The deadline for the next message.
    silence: Deadline,
    patience: Duration,
}

impl Peer {
    /// Creates the traffic with a connected process. The process is disconnected if it sends nothing for `patience`.
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

    /// Sets the status of a process that will send nothing more, to [`Life::Ended`] or [`Life::Lost`].
    pub fn end(&mut self, life: Life) {
        self.life = life;
    }

    /// Returns whether a message is being sent or received.
    pub fn is_busy(&self) -> bool {
        !self.sending.is_empty() || self.receiving.is_some()
    }

    /// Returns whether everything has been sent.
    pub fn has_sent(&self) -> bool {
        self.sending.is_empty()
    }

    /// Starts to send a frame. A process that has sent its final message is sent only a final message, for which it is
    /// waiting, and a lost process is sent nothing.
    ///
    /// # Errors
    /// Returns MPI's error, as the reason why the process is lost.
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

    /// Continues the running operations. Returns a frame if one has been received completely, and otherwise `None`.
    ///
    /// # Errors
    /// Returns the reason why the process is lost: an error of MPI, or a malformed message.
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

    /// Returns whether a connected process has been silent for too long, by the current time.
    pub fn is_silent(&mut self) -> bool {
        self.silence.look();
        self.life == Life::Alive && self.silence.has_passed()
    }
}
