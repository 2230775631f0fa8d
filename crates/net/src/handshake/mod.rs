//! The handshake: the first messages on a connection, which show whether both sides belong to the same job. This module
//! contains only pure functions and values, without sockets and clocks.
//!
//! | module | contents |
//! |---|---|
//! | [`fields`] | numbers and texts as bytes |
//! | [`words`] | [`Words`]: the messages of the handshake |
//! | [`decoder`] | [`HandshakeDecoder`]: a decoder of received messages |
//! | [`names`] | [`Names`]: the names of workers |
//! | [`refusal`] | [`Refusal`]: the reason why one side refuses the other |
//! | [`caller`] | [`Caller`]: the side that has connected |
//! | [`host`] | [`Host`]: the side that was connected to |
//!
//! ```text
//! caller ─ Hello: magic, version, job, generation, rank, world, digest, nonce ─► host
//! caller ◄─ Challenge: nonce, machine, proof of the secret ──────────────────── host
//! caller ─ Proof, memory to share if both are on one machine ────────────────► host
//! caller ◄─ Welcome, or at any time Refusal ─────────────────────────────────── host
//! ```

pub mod caller;
pub mod decoder;
pub mod fields;
pub mod host;
pub mod names;
pub mod refusal;
pub mod words;

pub use caller::Caller;
pub use decoder::HandshakeDecoder;
pub use host::Host;
pub use names::Names;
pub use refusal::{Reason, Refusal};
pub use words::{Hello, Offer, Purpose, UnformedWorld, Words};

/// The version of the protocol, which must be the same on both sides.
pub const VERSION: u16 = 7;
