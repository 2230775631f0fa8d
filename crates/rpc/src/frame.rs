//! Calls and answers as messages. This module contains only pure functions and values.

use crate::fault::{Fault, FaultKind};
use bytes::Bytes;
use distribute_net::Message;
use distribute_net::handshake::fields::{Malformed, Reader, Writer};

/// The maximum length of a service's name, in bytes.
pub const LONGEST_NAME: usize = 255;

/// The maximum length of a fault's text, in bytes.
const LONGEST_TEXT: usize = 4096;

/// A message between a client and a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A call to a service.
    Call {
        /// The id of the call on this connection.
        id: u64,
        /// The name of the service.
        service: String,
        /// The request to the service.
        message: Message,
    },
    /// The answer to the call with this id.
    Answer(u64, Message),
    /// The call with this id has failed.
    Failed(u64, Fault),
}

impl Frame {
    /// Encodes the frame. Names and texts are truncated to their maximum lengths.
    pub fn encode(self) -> Message {
        let mut fields = Writer::default();
        let body = match self {
            Frame::Call { id, service, message } => {
                fields.fixed(&[1]);
                fields.u64(id);
                fields.text(&service[..service.floor_char_boundary(LONGEST_NAME)]);
                fields.fixed(&message.head);
                message.body
            }
            Frame::Answer(id, message) => {
                fields.fixed(&[2]);
                fields.u64(id);
                fields.fixed(&message.head);
                message.body
            }
            Frame::Failed(id, fault) => {
                fields.fixed(&[3]);
                fields.u64(id);
                fields.fixed(&[fault.kind.code()]);
                fields.text(&fault.text[..fault.text.floor_char_boundary(LONGEST_TEXT)]);
                Bytes::new()
            }
        };
        Message::new(fields.0, body)
    }

    /// Decodes a frame from a received message.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the message is not a valid frame.
    pub fn decode(message: Message) -> Result<Self, Malformed> {
        let Message { head, body } = message;
        let mut fields = Reader(&head);
        let [kind] = fields.fixed()?;
        let id = fields.u64()?;
        // The rest of the head, without a copy.
        let rest = |fields: Reader<'_>| head.slice(head.len() - fields.0.len()..);
        match kind {
            1 => {
                let service = fields.text(LONGEST_NAME)?.to_owned();
                let message = Message::new(rest(fields), body);
                Ok(Frame::Call { id, service, message })
            }
            2 => Ok(Frame::Answer(id, Message::new(rest(fields), body))),
            3 if body.is_empty() => {
                let [code] = fields.fixed()?;
                let fault = Fault::new(FaultKind::from_code(code), fields.text(LONGEST_TEXT)?);
                fields.end()?;
                Ok(Frame::Failed(id, fault))
            }
            _ => Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = Message> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..40);
        (bytes(), bytes()).prop_map(|(head, body)| Message::new(head, body))
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let kind = prop::sample::select(vec![
            FaultKind::Failed,
            FaultKind::Panicked,
            FaultKind::Dropped,
            FaultKind::NoSuchService,
            FaultKind::NotAllowed,
            FaultKind::NoRoom,
            FaultKind::Other,
        ]);
        prop_oneof![
            (any::<u64>(), ".{0,60}", message()).prop_map(|(id, service, message)| Frame::Call {
                id,
                service,
                message
            }),
            (any::<u64>(), message()).prop_map(|(id, message)| Frame::Answer(id, message)),
            (any::<u64>(), kind, ".{0,60}")
                .prop_map(|(id, kind, text)| Frame::Failed(id, Fault::new(kind, text))),
        ]
    }

    proptest! {
        #[test]
        fn frames_come_back_from_their_messages(frame in frame()) {
            prop_assert_eq!(Frame::decode(frame.clone().encode()), Ok(frame));
        }

        #[test]
        fn any_message_is_a_frame_or_an_error(
            kind in 0u8..5,
            head in prop::collection::vec(any::<u8>(), 0..40),
            body in prop::collection::vec(any::<u8>(), 0..4),
        ) {
            let _ = Frame::decode(Message::new([&[kind][..], &head].concat(), body));
        }

        #[test]
        fn a_frame_that_is_cut_off_is_an_error(frame in frame(), keep in 0usize..10) {
            let Message { head, body } = frame.encode();
            let cut = head.slice(..keep.min(8).min(head.len()));
            prop_assert_eq!(Frame::decode(Message::new(cut, body)), Err(Malformed));
        }
    }

    #[test]
    fn names_and_texts_end_at_their_limits() {
        let long = "é".repeat(5000);
        let call = Frame::Call { id: 1, service: long.clone(), message: Message::default() };
        let Ok(Frame::Call { service, .. }) = Frame::decode(call.encode()) else { panic!() };
        assert_eq!(service.len(), 254);
        let failed = Frame::Failed(1, Fault::new(FaultKind::Failed, long)).encode();
        let Ok(Frame::Failed(1, fault)) = Frame::decode(failed) else { panic!() };
        assert_eq!(fault.text.len(), 4096);
    }
}
