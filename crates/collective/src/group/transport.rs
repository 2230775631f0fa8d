//! What moves frames between workers.

use super::Frame;
use std::fmt::Debug;

/// Moves frames from this worker to others. What comes from them it puts into this worker's [`Inbox`](super::Inbox).
///
/// A transport keeps the order of the frames from one worker to another, and loses none: a connection that breaks is
/// told to the inbox ([`Inbox::lose`](super::Inbox::lose)), once for each worker that can't be reached any more.
pub trait Transport: Debug + Send + Sync {
    /// Sends a frame, without waiting for its receiver: two workers that send each other large frames don't wait for
    /// each other. A worker that can't be reached is told to the inbox, not here.
    fn send(&self, to: usize, frame: Frame);
}
