//! Bodies that another worker reads in place.

use super::arena::{Arena, Segment};
use super::ledger::Ledger;
use super::pair::Pair;
use super::reference::Reference;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// The minimum length of a body on loan. Copying a shorter one takes no longer.
const SHORTEST: usize = 2 << 10;

/// The loans to one other worker.
#[derive(Debug)]
pub(crate) struct Loans {
    pair: Arc<Pair>,
    ledger: Mutex<Ledger<Loan>>,
}

/// A body on loan, and the segment that it is in.
#[derive(Debug)]
struct Loan {
    segment: Arc<Segment>,
    _body: Bytes,
}

impl Loans {
    pub fn new(pair: Arc<Pair>) -> Self {
        Self { pair, ledger: Mutex::default() }
    }

    /// Adds a loan of a body that is in memory which others can read. `None` if the body has to be copied.
    pub fn lend(&self, arena: &Arena, body: &Bytes) -> Option<Reference> {
        if body.len() < SHORTEST || !self.pair.is_open_to_them() {
            return None;
        }
        let (segment, offset) = arena.find(body)?;
        let (number, place) = (segment.number, segment.place);
        let mut ledger = self.settled();
        let (slot, loan) = ledger.lend(body.len(), || Loan { segment, _body: body.clone() })?;
        Some(Reference {
            segment: number,
            descriptor: place.descriptor,
            inode: place.inode,
            size: place.size,
            offset: offset as u64,
            length: body.len() as u64,
            slot,
            loan,
        })
    }

    /// Drops the loans that the other worker has returned.
    pub fn settle(&self) {
        drop(self.settled());
    }

    fn settled(&self) -> MutexGuard<'_, Ledger<Loan>> {
        let mut ledger = self.ledger.lock();
        ledger.settle(|slot| self.pair.returned(slot));
        ledger
    }

    /// Ends all loans after the other worker has disconnected. It may still be reading, so the memory on loan
    /// is not reused: it is freed by the system once the other worker has unmapped it.
    pub fn close(&self) {
        let left = self.settled().close();
        left.iter().for_each(|loan| loan.segment.retire());
    }
}
