//! The packs of a replica on their way to the other workers, while backward still fills others.

use super::Layout;
use bytes::Bytes;
use distribute_collective::group::{Ahead, Buffers};
use std::sync::Arc;

/// Which packs of a replica have left.
#[derive(Debug)]
pub(super) struct Departures {
    ahead: Ahead,
    layout: Arc<Layout>,
    buffers: Buffers,
    /// The number of the first pack among all of this worker.
    first: usize,
    /// For each pack how many of its variables are not complete.
    open: Vec<usize>,
    left: Vec<bool>,
}

impl Departures {
    /// Those of a replica, which has this number in its worker.
    pub(super) fn new(ahead: Ahead, replica: usize, layout: &Arc<Layout>, buffers: &Buffers) -> Self {
        let open: Vec<_> = layout.packs().iter().map(|pack| pack.variables).collect();
        let (first, left) = (replica * open.len(), vec![false; open.len()]);
        Self { ahead, layout: layout.clone(), buffers: buffers.clone(), first, left, open }
    }

    /// One more variable of a pack is complete. Says whether the pack is.
    pub(super) fn complete(&mut self, pack: usize) -> bool {
        let Some(open) = self.open.get_mut(pack) else { return false };
        *open = open.saturating_sub(1);
        *open == 0
    }

    /// Sends a pack to those for which it is worth while. More than once is once.
    pub(super) fn leave(&mut self, pack: usize, bytes: &Bytes) {
        if let Some(left @ false) = self.left.get_mut(pack) {
            let _span = tracing::trace_span!("send", pack, bytes = bytes.len()).entered();
            *left = true;
            let number = self.first + pack;
            match self.layout.pieces(pack, bytes, &self.buffers) {
                Some(piece) => self.ahead.send_far_pieces(number, piece),
                None => self.ahead.send_far(number, bytes),
            }
        }
    }

    /// Sends what has not been sent. Gives the call ahead of which all has been.
    pub(super) fn end(mut self, packs: &[Bytes]) -> u64 {
        for (pack, bytes) in packs.iter().enumerate() {
            self.leave(pack, bytes);
            let number = self.first + pack;
            match self.layout.pieces(pack, bytes, &self.buffers) {
                Some(piece) => self.ahead.send_near_pieces(number, piece),
                None => self.ahead.send_near(number, bytes),
            }
        }
        self.ahead.call()
    }
}
