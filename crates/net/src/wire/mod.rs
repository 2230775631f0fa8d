//! Messages as bytes of a stream. Pure: no socket.
//!
//! | module | what it is |
//! |---|---|
//! | [`header`] | the 16 bytes in front of each frame, and its limits |
//! | [`decoder`] | [`Decoder`]: frames out of received bytes |
//! | [`queue`] | [`Queue`]: frames that have not been written yet |

pub mod decoder;
pub mod header;
pub mod queue;

pub use decoder::Decoder;
pub use header::{Frame, HEADER, Header, Kind, Limits, WireError};
pub use queue::Queue;
