//! Frames as messages of MPI. This module contains only pure functions of bytes.
//!
//! The first message of a frame contains its header, its head and, if it is small, its body. A longer body follows in
//! pieces, which are sent without being copied. A body of one piece is also received without being copied.

use bytes::Bytes;
use distribute_net::Message;
use distribute_net::wire::{Frame, HEADER, Header, Kind, Limits, WireError};

/// The maximum length in bytes of a body that is sent together with its head. MPI libraries send messages of this
/// length immediately.
const SMALL: usize = 2 << 10;

/// The maximum length of a piece in bytes. It is limited because MPI counts bytes in 32 bits.
const PIECE: usize = 1 << 30;

/// An error in a received message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvelopeError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("a message of {0} bytes, which is not a header")]
    Short(usize),
    #[error("a message of {found} bytes, but {expected} were announced")]
    Length { found: usize, expected: usize },
}

/// Returns the messages of a frame, in order.
pub(crate) fn messages(frame: Frame) -> Vec<Bytes> {
    split(frame, PIECE)
}

fn split(frame: Frame, piece: usize) -> Vec<Bytes> {
    let (kind, Message { head, mut body }) = match frame {
        Frame::Data(message) => (Kind::Data, message),
        Frame::Reference(message) => (Kind::Reference, message),
        Frame::Heartbeat => (Kind::Heartbeat, Message::default()),
        Frame::Goodbye => (Kind::Goodbye, Message::default()),
        Frame::Leave => (Kind::Leave, Message::default()),
    };
    let header = Header { kind, head: head.len(), body: body.len() };
    let small = if body.len() <= SMALL { std::mem::take(&mut body) } else { Bytes::new() };
    let mut all = vec![[&header.encode(), &*head, &*small].concat().into()];
    while !body.is_empty() {
        all.push(body.split_to(piece.min(body.len())));
    }
    all
}

/// A decoder that assembles frames from messages.
#[derive(Debug, Default)]
pub(crate) struct Assembly(Option<Partial>);

#[derive(Debug)]
struct Partial {
    head: Bytes,
    pieces: Vec<Bytes>,
    missing: usize,
}

impl Assembly {
    /// Adds the next message. Returns the frame if this message completes it, and `None` if more must follow.
    ///
    /// # Errors
    /// Returns an [`EnvelopeError`] if the message cannot follow the earlier ones.
    pub fn add(&mut self, message: Bytes) -> Result<Option<Frame>, EnvelopeError> {
        let mut partial = match self.0.take() {
            Some(partial) if message.len() <= partial.missing && !message.is_empty() => {
                Partial { missing: partial.missing - message.len(), ..partial }
            }
            Some(Partial { missing, .. }) => {
                return Err(EnvelopeError::Length { found: message.len(), expected: missing });
            }
            None => return self.first(message),
        };
        partial.pieces.push(message);
        if partial.missing > 0 {
            self.0 = Some(partial);
            return Ok(None);
        }
        let only = partial.pieces.len() == 1;
        let body =
            if only { partial.pieces.pop().unwrap_or_default() } else { partial.pieces.concat().into() };
        Ok(Some(Frame::Data(Message { head: partial.head, body })))
    }

    fn first(&mut self, mut message: Bytes) -> Result<Option<Frame>, EnvelopeError> {
        let short = EnvelopeError::Short(message.len());
        let header = Header::decode(message.first_chunk::<HEADER>().ok_or(short)?, Limits::default())?;
        let (found, expected) = (message.len() - HEADER, header.head + header.body);
        let small = header.body <= SMALL;
        if found != if small { expected } else { header.head } {
            return Err(EnvelopeError::Length { found, expected });
        }
        let _ = message.split_to(HEADER);
        let head = message.split_to(header.head);
        match header.kind {
            Kind::Heartbeat => Ok(Some(Frame::Heartbeat)),
            Kind::Goodbye => Ok(Some(Frame::Goodbye)),
            // Only processes that share memory, or re-form the group, send these kinds.
            Kind::Reference | Kind::Leave => Err(WireError::Kind([header.kind as u8, 0, 0, 0]).into()),
            Kind::Data if small => Ok(Some(Frame::Data(Message { head, body: message }))),
            Kind::Data => {
                self.0 = Some(Partial { head, pieces: Vec::new(), missing: header.body });
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(head: usize, body: usize) -> Frame {
        let of = |len: usize| (0..len).map(|at| (at % 251) as u8).collect::<Vec<_>>();
        Frame::Data(Message::new(of(head), of(body)))
    }

    #[test]
    fn frames_come_back_from_their_messages() {
        let mut assembly = Assembly::default();
        for frame in [data(0, 0), data(30, 0), data(7, SMALL), data(7, SMALL + 1), data(0, 10_000)] {
            for piece in [100, 3_000, PIECE] {
                let mut messages = split(frame.clone(), piece);
                let last = messages.pop().unwrap();
                for message in messages {
                    assert_eq!(assembly.add(message), Ok(None));
                }
                assert_eq!(assembly.add(last), Ok(Some(frame.clone())));
            }
        }
        for frame in [Frame::Heartbeat, Frame::Goodbye] {
            let [only] = &*messages(frame.clone()) else { panic!("one message") };
            assert_eq!(assembly.add(only.clone()), Ok(Some(frame)));
        }
    }

    #[test]
    fn a_long_body_is_neither_copied_when_it_is_sent_nor_when_it_has_come() {
        let Frame::Data(message) = data(3, 5_000) else { panic!("data") };
        let messages = split(Frame::Data(message.clone()), PIECE);
        assert_eq!(messages[1].as_ptr(), message.body.as_ptr());
        let mut assembly = Assembly::default();
        assembly.add(messages[0].clone()).unwrap();
        let Some(Frame::Data(come)) = assembly.add(messages[1].clone()).unwrap() else { panic!("data") };
        assert_eq!(come.body.as_ptr(), message.body.as_ptr());
    }

    // INV-28
    #[test]
    fn an_invalid_frame_is_refused_with_the_reason() {
        let refused = |messages: &[Bytes]| {
            let mut assembly = Assembly::default();
            messages
                .iter()
                .find_map(|message| assembly.add(message.clone()).err())
                .map(|error| error.to_string())
        };
        let long = split(data(3, 5_000), PIECE);
        assert_eq!(
            refused(&[Bytes::from_static(b"short")]).unwrap(),
            "a message of 5 bytes, which is not a header"
        );
        let text = refused(&[long[0].clone(), Bytes::from(vec![0; 5_001])]).unwrap();
        assert_eq!(text, "a message of 5001 bytes, but 5000 were announced");
        assert!(refused(&[long[0].clone(), Bytes::new()]).is_some());
        assert!(refused(&[long[0].slice(..HEADER)]).is_some());
        assert!(refused(&[Bytes::from(vec![9; HEADER])]).unwrap().contains("not a frame of this protocol"));
        let mut huge = Header { kind: Kind::Data, head: 0, body: 65 << 30 }.encode().to_vec();
        assert!(refused(&[huge.clone().into()]).unwrap().contains("but the maximum is"));
        huge[0] = Kind::Reference as u8;
        assert!(refused(&[huge.into()]).is_some());
    }
}
