//! Bodies in this worker's memory that another worker reads without copying them.

use super::arena::{Arena, Segment};
use super::ledger::Ledger;
use super::pair::Pair;
use super::reference::Reference;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// The minimum length in bytes of a body on loan. Copying a shorter body is as fast.
const SHORTEST: usize = 2 << 10;

/// The bodies on loan to one other worker.
#[derive(Debug)]
pub(crate) struct Loans {
    pair: Arc<Pair>,
    ledger: Mutex<Ledger<Loan>>,
}

/// A body on loan, and the segment that contains it.
#[derive(Debug)]
struct Loan {
    segment: Arc<Segment>,
    _body: Bytes,
}

impl Loans {
    pub fn new(pair: Arc<Pair>) -> Self {
        Self { pair, ledger: Mutex::default() }
    }

    /// Lends a body in this worker's [`Arena`] to the other worker. Returns `None` if the body must be copied instead.
    pub fn lend(&self, arena: &Arena, body: &Bytes) -> Option<Reference> {
        if body.len() < SHORTEST || !self.pair.is_readable_by_peer() {
            return None;
        }
        let (segment, offset) = arena.find(body)?;
        let (number, location) = (segment.number, segment.location);
        let mut ledger = self.lock_reclaimed();
        let (slot, loan) = ledger.lend(body.len(), || Loan { segment, _body: body.clone() })?;
        Some(Reference {
            segment: number,
            descriptor: location.descriptor,
            inode: location.inode,
            size: location.size,
            offset: offset as u64,
            length: body.len() as u64,
            slot,
            loan,
        })
    }

    /// Drops the loans that the other worker has returned.
    pub fn reclaim(&self) {
        drop(self.lock_reclaimed());
    }

    fn lock_reclaimed(&self) -> MutexGuard<'_, Ledger<Loan>> {
        let mut ledger = self.ledger.lock();
        ledger.reclaim(|slot| self.pair.returned(slot));
        ledger
    }

    /// Ends all loans after the other worker has disconnected. That worker may still be reading, so the memory on loan
    /// is not reused. The system frees it when both workers have unmapped it.
    pub fn close(&self) {
        let left = self.lock_reclaimed().close();
        left.iter().for_each(|loan| loan.segment.retire());
    }
}
