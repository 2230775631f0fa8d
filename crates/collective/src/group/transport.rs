//! What moves frames between workers.

use super::Frame;
use std::fmt::Debug;

/// Moves frames from this worker to others, and puts frames received from them into this worker's
/// [`Inbox`](super::Inbox).
///
/// A transport keeps the order of frames from one worker to another and loses none. A broken connection is reported to the
/// inbox ([`Inbox::lose`](super::Inbox::lose)), once for each worker that has become unreachable.
pub trait Transport: Debug + Send + Sync {
    /// Sends a frame without waiting for its receiver, so that two workers can send each other large frames without a
    /// deadlock. An unreachable worker is reported to the inbox, not here.
    fn send(&self, to: usize, frame: Frame);

    /// Tells all other workers that this one has ended: what it has sent still arrives, and nothing comes after it.
    fn close(&self);
}
