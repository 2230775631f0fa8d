//! Packs of a replica that are sent to the other workers while backward still fills others.

use super::Layout;
use bytes::Bytes;
use distribute_collective::group::{Buffers, EarlySend};
use std::sync::Arc;

/// A sender of the packs of a replica, each as soon as it is complete.
#[derive(Debug)]
pub(super) struct OverlapSender {
    early: EarlySend,
    layout: Arc<Layout>,
    buffers: Buffers,
    /// The number of the first pack among all of this worker.
    first: usize,
    /// The number of incomplete variables of each pack.
    open: Vec<usize>,
    sent: Vec<bool>,
}

impl OverlapSender {
    /// Returns the sender of a replica, which has this number in its worker.
    pub(super) fn new(early: EarlySend, replica: usize, layout: &Arc<Layout>, buffers: &Buffers) -> Self {
        let open: Vec<_> = layout.packs().iter().map(|pack| pack.variables).collect();
        let (first, sent) = (replica * open.len(), vec![false; open.len()]);
        Self { early, layout: layout.clone(), buffers: buffers.clone(), first, sent, open }
    }

    /// Records that one more variable of a pack is complete, and returns whether the pack is.
    pub(super) fn complete(&mut self, pack: usize) -> bool {
        let Some(open) = self.open.get_mut(pack) else { return false };
        *open = open.saturating_sub(1);
        *open == 0
    }

    /// Sends a pack to the workers that do not share memory with this one, unless it has been sent.
    pub(super) fn send(&mut self, pack: usize, bytes: &Bytes) {
        if let Some(sent @ false) = self.sent.get_mut(pack) {
            let _span = tracing::trace_span!("send", pack, bytes = bytes.len()).entered();
            *sent = true;
            let number = self.first + pack;
            match self.layout.pieces(pack, bytes, &self.buffers) {
                Some(piece) => self.early.send_far_pieces(number, piece),
                None => self.early.send_far(number, bytes),
            }
        }
    }

    /// Sends what has not been sent, and returns the call before which all has been.
    pub(super) fn finish(mut self, packs: &[Bytes]) -> u64 {
        for (pack, bytes) in packs.iter().enumerate() {
            self.send(pack, bytes);
            let number = self.first + pack;
            match self.layout.pieces(pack, bytes, &self.buffers) {
                Some(piece) => self.early.send_near_pieces(number, piece),
                None => self.early.send_near(number, bytes),
            }
        }
        self.early.call()
    }
}
