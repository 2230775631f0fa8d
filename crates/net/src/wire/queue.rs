//! The frames that a link has not written yet.

use super::Frame;
use super::header::{HEADER, Header, Kind};
use std::collections::VecDeque;
use std::io::IoSlice;

/// The maximum number of frames in one write.
const AT_ONCE: usize = 16;

/// The maximum number of slices in one write.
const SLICES: usize = 3 * AT_ONCE;

/// The frames that a link has not written yet, in order. Their data is not copied.
#[derive(Debug, Default)]
pub struct Queue {
    frames: VecDeque<([u8; HEADER], Frame)>,
    /// The number of bytes of the first frame that have been written.
    written: usize,
}

fn parts((header, frame): &([u8; HEADER], Frame)) -> [&[u8]; 3] {
    match frame {
        Frame::Data(message) | Frame::Reference(message) => [header, &message.head, &message.body],
        Frame::Heartbeat | Frame::Goodbye | Frame::Leave => [header, &[], &[]],
    }
}

impl Queue {
    /// Adds a frame at the end.
    pub fn push(&mut self, frame: Frame) {
        let (kind, head, body) = match &frame {
            Frame::Data(message) => (Kind::Data, message.head.len(), message.body.len()),
            Frame::Reference(message) => (Kind::Reference, message.head.len(), message.body.len()),
            Frame::Heartbeat => (Kind::Heartbeat, 0, 0),
            Frame::Goodbye => (Kind::Goodbye, 0, 0),
            Frame::Leave => (Kind::Leave, 0, 0),
        };
        self.frames.push_back((Header { kind, head, body }.encode(), frame));
    }

    /// Returns whether everything was written.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Discards everything that was not written.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Passes the next bytes to `write`, which returns the number of bytes that it has written, and removes these
    /// bytes. Returns their number.
    ///
    /// # Errors
    /// Returns the error of `write`.
    pub fn write<E>(&mut self, write: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, E>) -> Result<usize, E> {
        // Mostly there is one frame, for which clearing the longer list would take longer than filling it.
        if self.frames.len() == 1 {
            self.write_first::<3, E>(write)
        } else {
            self.write_first::<SLICES, E>(write)
        }
    }

    /// Passes the next bytes to `write` as at most `MOST` slices. `MOST` must be a multiple of the number of a frame's
    /// parts.
    fn write_first<const MOST: usize, E>(
        &mut self,
        write: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let mut slices = [IoSlice::new(&[]); MOST];
        let (mut used, mut skip) = (0, self.written);
        for part in self.frames.iter().take(MOST / 3).flat_map(parts) {
            let skipped = skip.min(part.len());
            skip -= skipped;
            if skipped < part.len() {
                slices[used] = IoSlice::new(&part[skipped..]);
                used += 1;
            }
        }
        let written = write(&slices[..used])?;
        self.advance(written);
        Ok(written)
    }

    fn advance(&mut self, written: usize) {
        self.written += written;
        while let Some(front) = self.frames.front() {
            let length: usize = parts(front).iter().map(|part| part.len()).sum();
            if self.written < length {
                return;
            }
            self.written -= length;
            self.frames.pop_front();
        }
    }
}
