//! The first words on a connection: whether both sides belong to the same job. Pure: no socket, no clock.
//!
//! | module | what it is |
//! |---|---|
//! | [`fields`] | numbers and texts as bytes |
//! | [`words`] | [`Words`]: what the two sides say |
//! | [`hearing`] | [`Hearing`]: words out of received bytes |
//! | [`names`] | [`Names`]: what workers are called |
//! | [`refusal`] | [`Refusal`]: why one does not let the other in |
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
pub mod fields;
pub mod hearing;
pub mod host;
pub mod names;
pub mod refusal;
pub mod words;

pub use caller::Caller;
pub use hearing::Hearing;
pub use host::Host;
pub use names::Names;
pub use refusal::{Reason, Refusal};
pub use words::{Hello, Offer, Purpose, Words};

/// The version of the protocol. Both sides need the same.
pub const VERSION: u16 = 6;
