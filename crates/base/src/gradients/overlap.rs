//! Sending of a replica's complete packs while the backward pass is still filling others.

use super::{Layout, Pack, PackCoding};
use bytes::Bytes;
use distribute_collective::group::EarlySend;
use std::sync::Arc;

/// A sender of a replica's packs, which sends each pack as soon as it is complete.
#[derive(Debug)]
pub(super) struct OverlapSender {
    early: EarlySend,
    layout: Arc<Layout>,
    coding: PackCoding,
    /// The index of this replica's first pack among all packs of this worker.
    first: usize,
    /// The number of incomplete variables in each pack.
    open: Vec<usize>,
    /// The packs that have been sent, as they were sent, or unencoded if each worker receives its own shard. `None` for
    /// a pack that has not been sent.
    sent: Vec<Option<Bytes>>,
}

impl OverlapSender {
    /// Creates the sender of local replica `replica`.
    pub(super) fn new(early: EarlySend, replica: usize, layout: &Arc<Layout>, coding: &PackCoding) -> Self {
        let open: Vec<_> = layout.packs().iter().map(|pack| pack.variables).collect();
        let (first, sent) = (replica * open.len(), vec![None; open.len()]);
        Self { early, layout: layout.clone(), coding: coding.clone(), first, sent, open }
    }

    /// Records that one more variable in a pack is complete. Returns `true` if the pack is now complete.
    pub(super) fn complete(&mut self, pack: usize) -> bool {
        let Some(open) = self.open.get_mut(pack) else { return false };
        *open = open.saturating_sub(1);
        *open == 0
    }

    /// Sends a pack to the workers that do not share memory with this one, unless it has already been sent.
    pub(super) fn send(&mut self, pack: usize, bytes: &Bytes) {
        let Some(sent @ None) = self.sent.get_mut(pack) else { return };
        let _span = tracing::trace_span!("send", pack, bytes = bytes.len()).entered();
        let number = self.first + pack;
        let Some(Pack { dtype, .. }) = self.layout.packs().get(pack) else { return };
        let coding = &self.coding;
        match self.layout.shards_of_pack(pack, bytes, coding.buffers()) {
            Some(piece) => {
                self.early.send_far_pieces(number, |worker| coding.encode(*dtype, piece(worker)));
                *sent = Some(bytes.clone());
            }
            None => {
                let encoded = sent.insert(coding.encode(*dtype, bytes.clone()));
                self.early.send_far(number, encoded);
            }
        }
    }

    /// Sends the remaining packs, and sends all packs to the workers that share memory with this one. Returns the
    /// sequence number of the call for which all packs have been sent in advance.
    pub(super) fn finish(mut self, packs: &[Bytes]) -> u64 {
        for (pack, bytes) in packs.iter().enumerate() {
            self.send(pack, bytes);
            let number = self.first + pack;
            let (coding, sent) = (&self.coding, self.sent.get(pack).and_then(Option::as_ref));
            match (self.layout.shards_of_pack(pack, bytes, coding.buffers()), self.layout.packs().get(pack)) {
                (Some(piece), Some(Pack { dtype, .. })) => {
                    self.early.send_near_pieces(number, |worker| coding.encode(*dtype, piece(worker)));
                }
                _ => self.early.send_near(number, sent.unwrap_or(bytes)),
            }
        }
        self.early.call()
    }
}
