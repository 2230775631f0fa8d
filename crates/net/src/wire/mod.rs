//! Messages as bytes of a stream. This module contains only pure functions and values, without sockets.
//!
//! | module | contents |
//! |---|---|
//! | [`header`] | the 16 bytes before each frame, and the limits of its lengths |
//! | [`decoder`] | [`Decoder`]: decodes frames from received bytes |
//! | [`queue`] | [`Queue`]: frames that were not written yet |

pub mod decoder;
pub mod header;
pub mod queue;

pub use decoder::Decoder;
pub use header::{Frame, HEADER, Header, Kind, Limits, WireError};
pub use queue::Queue;

#[cfg(test)]
mod tests;
