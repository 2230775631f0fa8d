//! A decoder of frames.

use super::header::{HEADER, Header};
use super::{Frame, Kind, Limits, WireError};
use crate::{Message, PartialMessage};
use bytes::Bytes;
use std::mem::take;

/// The size in bytes of the buffer for bytes whose destination is not known yet. Small frames are copied out of it,
/// several per read. Longer parts are read directly into their destination.
const STAGED: usize = 16 << 10;

/// The number of bytes to prepare for one read. More bytes need fewer reads, but too many would no longer be in the
/// cache when they are received.
const STEP: usize = 256 << 10;

/// The number of bytes to allocate for a part of a frame before any of it was received.
const FIRST: usize = 64 << 10;

/// The lengths of bodies that reuse the memory of an earlier body that the receiver has dropped. New memory would have
/// to be cleared by the system page by page, which takes as long as receiving.
const REUSED: std::ops::RangeInclusive<usize> = 64 << 10..=64 << 20;

/// The maximum number of large bodies to keep, so that their memory can be reused. It suffices for the gradients of a
/// step while those of the previous step are still in use.
const SPARE: usize = 32;

/// The maximum number of bytes of the large bodies that are kept. Two bodies of the maximum length fit.
const SPARE_BYTES: usize = 128 << 20;

/// An incremental decoder of frames. Read bytes into [`buffer`](Self::buffer), report their number to
/// [`advance`](Self::advance), and call [`next_frame`](Self::next_frame) until it returns `None`.
///
/// Lengths are compared with the limits before memory is allocated. The memory allocated for a frame is at most twice
/// the number of bytes received of it, plus a small constant. A large frame may reuse the memory of an earlier one.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    staged: Box<[u8]>,
    /// The start of the bytes in `staged` that were received and not taken yet.
    from: usize,
    /// The end of these bytes.
    to: usize,
    header: Option<Header>,
    head: Part,
    body: Part,
    /// The latest large bodies, newest first. Some may still be in use while the next ones are received.
    spare: Vec<Bytes>,
    /// Whether there was a large body since the last [`trim`](Decoder::trim).
    is_used: bool,
}

/// The head or the body of a frame. It has `length` bytes. `bytes` is the memory prepared so far, and its first
/// `filled` bytes were received.
#[derive(Debug, Default)]
struct Part {
    bytes: Vec<u8>,
    filled: usize,
    length: usize,
}

impl Decoder {
    /// Creates a decoder at the beginning of a stream.
    pub fn new(limits: Limits) -> Self {
        let staged = vec![0; STAGED].into_boxed_slice();
        let (head, body) = (Part::default(), Part::default());
        Self { limits, staged, from: 0, to: 0, header: None, head, body, spare: Vec::new(), is_used: false }
    }

    /// Returns the maximum lengths of a frame's head and body.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the buffer to read into. It is never empty once [`next_frame`](Self::next_frame) has returned
    /// all frames.
    pub fn buffer(&mut self) -> &mut [u8] {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
            let part = if self.head.is_complete() { &mut self.body } else { &mut self.head };
            if self.header.is_some() && part.missing() >= STAGED {
                return part.unfilled();
            }
        } else if self.to == STAGED {
            self.staged.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        &mut self.staged[self.to..]
    }

    /// Records that `read` bytes were read into the buffer.
    pub fn advance(&mut self, read: usize) {
        // Same as in `buffer`, which was just called: the staging buffer is empty if a part is read to its
        // destination.
        if self.to == 0 && self.header.is_some() {
            let part = if self.head.is_complete() { &mut self.body } else { &mut self.head };
            if part.missing() >= STAGED {
                part.filled = part.bytes.len().min(part.filled + read);
                return;
            }
        }
        self.to = STAGED.min(self.to + read);
    }

    /// Returns the next frame, if it is complete.
    ///
    /// # Errors
    /// Returns a [`WireError`] if the bytes are not a valid frame, or if there is not enough memory for it. The stream
    /// cannot be read any further.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, WireError> {
        let header = match self.header {
            Some(header) => header,
            None => {
                let Some(bytes) = self.staged[self.from..self.to].first_chunk::<HEADER>() else {
                    return Ok(None);
                };
                let header = Header::decode(bytes, self.limits)?;
                self.from += HEADER;
                self.head = Part { length: header.head, ..Part::default() };
                self.body =
                    Part { bytes: self.reusable(header.body), length: header.body, ..Part::default() };
                self.header = Some(header);
                header
            }
        };
        for part in [&mut self.head, &mut self.body] {
            self.from += part.take(&self.staged[self.from..self.to])?;
            if !part.is_complete() {
                part.grow()?;
                return Ok(None);
            }
        }
        self.header = None;
        let (head, body) = (take(&mut self.head), take(&mut self.body));
        Ok(Some(match header.kind {
            Kind::Heartbeat => Frame::Heartbeat,
            Kind::Goodbye => Frame::Goodbye,
            Kind::Leave => Frame::Leave,
            Kind::Reference => Frame::Reference(Message::new(head.bytes, body.bytes)),
            Kind::Data => {
                let (head, body) = (Bytes::from(head.bytes), Bytes::from(body.bytes));
                if REUSED.contains(&body.len()) {
                    self.is_used = true;
                    self.keep(body.clone());
                }
                Frame::Data(Message { head, body })
            }
        }))
    }

    fn keep(&mut self, body: Bytes) {
        self.spare.truncate(SPARE - 1);
        self.spare.insert(0, body);
        let mut size = 0;
        self.spare.retain(|body| {
            size += body.len();
            size <= SPARE_BYTES
        });
    }

    /// Returns the memory of an earlier large body that is no longer used, shortened to `length` bytes. Returns an
    /// empty vector if none fits, or if `length` is not in [`REUSED`].
    fn reusable(&mut self, length: usize) -> Vec<u8> {
        let fits = |spare: &Bytes| (length..=4 * length).contains(&spare.len()) && spare.is_unique();
        match self.spare.iter().position(fits) {
            Some(at) if REUSED.contains(&length) => {
                // All of it is initialised, so no byte is cleared again.
                let mut bytes = Vec::from(self.spare.remove(at));
                bytes.truncate(length);
                bytes
            }
            _ => Vec::new(),
        }
    }

    /// Frees the memory that is kept for the next large body, if there was no large body since the last call.
    pub fn trim(&mut self) {
        if !std::mem::take(&mut self.is_used) {
            self.spare = Vec::new();
        }
    }

    /// Returns whether the stream could end here, because no frame was received in part.
    #[cfg(test)]
    pub(super) fn is_between_frames(&self) -> bool {
        self.header.is_none() && self.from == self.to
    }

    /// Returns the message that was received in part, if there is one.
    pub fn partial_message(&self) -> Option<PartialMessage> {
        let header = self.header.filter(|header| header.kind == Kind::Data)?;
        let (received, length) = (self.head.filled + self.body.filled, header.head + header.body);
        Some(PartialMessage { received: received as u64, length: length as u64 })
    }

    /// Returns the number of bytes allocated for the frame that is being received, including the fixed buffer of the
    /// decoder.
    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        STAGED + self.head.bytes.capacity() + self.body.bytes.capacity()
    }
}

impl Part {
    fn is_complete(&self) -> bool {
        self.filled == self.length
    }

    fn missing(&self) -> usize {
        self.length - self.filled
    }

    /// Returns the memory into which the next bytes are read. It is not empty after a call of [`grow`](Self::grow),
    /// provided that at least [`STAGED`] bytes are missing.
    fn unfilled(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Copies the received bytes that belong to this part, and returns their number.
    ///
    /// # Errors
    /// Returns [`WireError::Memory`] if there is not enough memory.
    fn take(&mut self, staged: &[u8]) -> Result<usize, WireError> {
        let taken = staged.len().min(self.missing());
        let ready = taken.min(self.bytes.len() - self.filled);
        self.bytes[self.filled..self.filled + ready].copy_from_slice(&staged[..ready]);
        if ready < taken {
            self.reserve(self.filled + taken)?;
            self.bytes.extend_from_slice(&staged[ready..taken]);
        }
        self.filled += taken;
        Ok(taken)
    }

    /// Prepares memory for the next read, if the prepared memory is full and at least [`STAGED`] bytes are missing.
    ///
    /// # Errors
    /// Returns [`WireError::Memory`] if there is not enough memory.
    fn grow(&mut self) -> Result<(), WireError> {
        if self.filled == self.bytes.len() && self.missing() >= STAGED {
            self.reserve(self.filled + 1)?;
            let ready = self.bytes.capacity().min(self.length).min(self.filled + STEP);
            self.bytes.resize(ready, 0);
        }
        Ok(())
    }

    /// Reserves memory for at least `needed` bytes, or for twice the received bytes if that is more. Never reserves
    /// more than the complete part needs.
    ///
    /// # Errors
    /// Returns [`WireError::Memory`] if there is not enough memory.
    fn reserve(&mut self, needed: usize) -> Result<(), WireError> {
        if needed > self.bytes.capacity() {
            let capacity = self.length.min(needed.max(2 * self.filled).max(FIRST));
            let more = capacity - self.bytes.len();
            self.bytes.try_reserve_exact(more).map_err(|_| WireError::Memory(capacity))?;
        }
        Ok(())
    }
}
