//! Frames out of received bytes.

use super::header::{HEADER, Header};
use super::{Frame, Kind, Limits, WireError};
use crate::{Arriving, Message};
use bytes::Bytes;
use std::mem::take;

/// How much is received before it is known where it belongs. Small frames are copied out of this, several of them out of one
/// read; what is longer is read to where it stays.
const STAGED: usize = 16 << 10;

/// How much of a part is made ready for the next read: few reads, and still in the cache when it is written.
const STEP: usize = 256 << 10;

/// What is allocated for a part before any of it has come.
const FIRST: usize = 64 << 10;

/// Bodies from here on are received into memory of an earlier one, where the receiver has dropped that: new memory would have
/// to be cleared by the system first, page by page, which takes as long as receiving.
const REUSED: std::ops::RangeInclusive<usize> = 64 << 10..=64 << 20;

/// How many such bodies are kept: those of a step's gradients, while those of the step before are still in use.
const SPARE: usize = 32;

/// How many bytes of them are kept, at least the latest two.
const SPARE_BYTES: usize = 128 << 20;

/// Takes bytes as they come and gives the frames in them. Read into [`buffer`](Self::buffer), tell how much came by
/// [`advance`](Self::advance), and take frames by [`next_frame`](Self::next_frame) until there is none.
///
/// Lengths are compared with the limits before anything is allocated. Never more than twice of what has been received of
/// a frame is allocated for it, and a small constant; a large one may reuse what an earlier one has filled.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    staged: Box<[u8]>,
    /// The bytes of `staged` that have been received and not yet taken.
    from: usize,
    to: usize,
    header: Option<Header>,
    head: Part,
    body: Part,
    /// The last large bodies, the latest first, some of which may still be in use while the next ones come.
    spare: Vec<Bytes>,
    /// Whether there was one since this was last asked.
    is_used: bool,
}

/// A part of a frame: `bytes` has been made ready, of which `filled` have been received, of `length` in all.
#[derive(Debug, Default)]
struct Part {
    bytes: Vec<u8>,
    filled: usize,
    length: usize,
}

impl Decoder {
    /// A decoder at the beginning of a stream.
    pub fn new(limits: Limits) -> Self {
        let staged = vec![0; STAGED].into_boxed_slice();
        let (head, body) = (Part::default(), Part::default());
        Self { limits, staged, from: 0, to: 0, header: None, head, body, spare: Vec::new(), is_used: false }
    }

    /// How long the parts of a frame may be.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Where to read to; never empty, once [`next_frame`](Self::next_frame) has given all frames.
    pub fn buffer(&mut self) -> &mut [u8] {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
            let part = if self.head.is_whole() { &mut self.body } else { &mut self.head };
            if self.header.is_some() && part.missing() >= STAGED {
                return part.room();
            }
        } else if self.to == STAGED {
            self.staged.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        &mut self.staged[self.to..]
    }

    /// So many bytes have been read into the buffer.
    pub fn advance(&mut self, read: usize) {
        // As in `buffer`, which has just been called: nothing is staged where a part is read to where it stays.
        if self.to == 0 && self.header.is_some() {
            let part = if self.head.is_whole() { &mut self.body } else { &mut self.head };
            if part.missing() >= STAGED {
                part.filled = part.bytes.len().min(part.filled + read);
                return;
            }
        }
        self.to = STAGED.min(self.to + read);
    }

    /// The next frame, if all of it has come.
    ///
    /// # Errors
    /// [`WireError`] if what came is no frame. The stream can't be read on then.
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
            if !part.is_whole() {
                part.make_room()?;
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

    /// The memory of an earlier large body that nobody uses any more, for one of this length.
    fn reusable(&mut self, length: usize) -> Vec<u8> {
        let fits = |spare: &Bytes| (length..=4 * length).contains(&spare.len()) && spare.is_unique();
        match self.spare.iter().position(fits) {
            Some(at) if REUSED.contains(&length) => {
                // All of it is ready to be read into: nothing is made 0 again.
                let mut bytes = Vec::from(self.spare.remove(at));
                bytes.truncate(length);
                bytes
            }
            _ => Vec::new(),
        }
    }

    /// Gives back memory that is kept for the next large body, if there was none since the last call.
    pub fn relax(&mut self) {
        if !std::mem::take(&mut self.is_used) {
            self.spare = Vec::new();
        }
    }

    /// Whether the stream could end here: no part of a frame has come.
    pub fn is_between_frames(&self) -> bool {
        self.header.is_none() && self.from == self.to
    }

    /// The message of which a part has come, if there is one.
    pub fn arriving(&self) -> Option<Arriving> {
        let header = self.header.filter(|header| header.kind == Kind::Data)?;
        let (received, length) = (self.head.filled + self.body.filled, header.head + header.body);
        Some(Arriving { received: received as u64, length: length as u64 })
    }

    /// How much memory is held for the frame that is being received.
    pub fn allocated(&self) -> usize {
        STAGED + self.head.bytes.capacity() + self.body.bytes.capacity()
    }
}

impl Part {
    fn is_whole(&self) -> bool {
        self.filled == self.length
    }

    fn missing(&self) -> usize {
        self.length - self.filled
    }

    /// What has been made ready and not received; not empty after [`make_room`](Self::make_room).
    fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Copies what belongs to this part, and says how much that is.
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

    /// Makes the next step ready to be read into.
    fn make_room(&mut self) -> Result<(), WireError> {
        if self.filled == self.bytes.len() && self.missing() >= STAGED {
            self.reserve(self.filled + 1)?;
            let ready = self.bytes.capacity().min(self.length).min(self.filled + STEP);
            self.bytes.resize(ready, 0);
        }
        Ok(())
    }

    /// Makes sure that there is memory for `needed` bytes: twice of what has come, as long as it is not the whole.
    fn reserve(&mut self, needed: usize) -> Result<(), WireError> {
        if needed > self.bytes.capacity() {
            let capacity = self.length.min(needed.max(2 * self.filled).max(FIRST));
            let more = capacity - self.bytes.len();
            self.bytes.try_reserve_exact(more).map_err(|_| WireError::Memory(capacity))?;
        }
        Ok(())
    }
}
