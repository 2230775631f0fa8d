//! A record of the bodies that another worker reads in this worker's memory (*loans*). This module contains only pure
//! values and functions.

use super::layout::SLOTS;

/// The maximum total size of the bodies on loan, in bytes. A body that would exceed this limit is copied, unless
/// nothing else is on loan.
const MAX: usize = 2 << 30;

/// The loans to one other worker that have not been returned. Each has one of the [`SLOTS`], and an id that is never
/// reused.
#[derive(Debug)]
pub(crate) struct Ledger<T> {
    lent: Vec<Loan<T>>,
    free: Vec<u32>,
    last: u64,
    bytes: usize,
    closed: bool,
}

#[derive(Debug)]
struct Loan<T> {
    slot: u32,
    number: u64,
    bytes: usize,
    what: T,
}

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        let free = (0..SLOTS as u32).rev().collect();
        Self { lent: Vec::new(), free, last: 0, bytes: 0, closed: false }
    }
}

impl<T> Ledger<T> {
    /// Adds a loan of `bytes` bytes, and returns its slot and its id. Returns `None` if the loans would be too many or
    /// too large, or after [`close`](Self::close).
    pub fn lend(&mut self, bytes: usize, what: impl FnOnce() -> T) -> Option<(u32, u64)> {
        let fits = self.lent.is_empty() || self.bytes.saturating_add(bytes) <= MAX;
        if self.closed || !fits {
            return None;
        }
        let slot = self.free.pop()?;
        self.last += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.lent.push(Loan { slot, number: self.last, bytes, what: what() });
        Some((slot, self.last))
    }

    /// Drops the loans that were returned. `returned` maps a slot to the id of the loan that the other side has
    /// returned last. Ids of other loans are ignored.
    pub fn reclaim(&mut self, returned: impl Fn(usize) -> u64) {
        let (free, bytes) = (&mut self.free, &mut self.bytes);
        self.lent.retain(|loan| {
            let is_back = returned(loan.slot as usize) == loan.number;
            if is_back {
                free.push(loan.slot);
                *bytes = bytes.saturating_sub(loan.bytes);
            }
            !is_back
        });
    }

    /// Prevents further loans, and returns the loans that have not been returned.
    pub fn close(&mut self) -> Vec<T> {
        self.closed = true;
        self.bytes = 0;
        self.lent.drain(..).map(|loan| loan.what).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    /// The numbers that the other side has written, by slot.
    struct Returned([u64; SLOTS]);

    fn reclaim(ledger: &mut Ledger<Rc<()>>, returned: &Returned) {
        ledger.reclaim(|slot| returned.0[slot]);
    }

    #[test]
    fn borrowed_memory_is_kept_until_its_number_returns() {
        let (mut ledger, mut returned) = (Ledger::default(), Returned([0; SLOTS]));
        let kept = Rc::new(());
        let (slot, number) = ledger.lend(10, || kept.clone()).unwrap();
        for wrong in [0, number + 1, u64::MAX] {
            returned.0[slot as usize] = wrong;
            reclaim(&mut ledger, &returned);
            assert_eq!(Rc::strong_count(&kept), 2);
        }
        returned.0[slot as usize] = number;
        reclaim(&mut ledger, &returned);
        assert_eq!(Rc::strong_count(&kept), 1);
        // A number that is returned twice, or the slot's old number, does not end the next loan.
        let (again, next) = ledger.lend(10, || kept.clone()).unwrap();
        assert_eq!(again, slot);
        assert_ne!(next, number);
        reclaim(&mut ledger, &returned);
        assert_eq!(Rc::strong_count(&kept), 2);
    }

    #[test]
    fn one_that_gives_nothing_back_is_lent_no_more_and_its_end_frees_all() {
        let (mut ledger, kept) = (Ledger::default(), Rc::new(()));
        for _ in 0..SLOTS {
            assert!(ledger.lend(1, || kept.clone()).is_some());
        }
        assert!(ledger.lend(1, || kept.clone()).is_none());
        assert_eq!(ledger.close().len(), SLOTS);
        assert_eq!(Rc::strong_count(&kept), 1);
        assert!(ledger.lend(1, || kept.clone()).is_none(), "after its end");
        // Fewer large bodies fit, but always one.
        let mut ledger = Ledger::default();
        assert!(ledger.lend(usize::MAX, || kept.clone()).is_some());
        assert!(ledger.lend(1, || kept.clone()).is_none());
        let mut ledger = Ledger::default();
        assert!(ledger.lend(MAX / 2, || kept.clone()).is_some());
        assert!(ledger.lend(MAX / 2, || kept.clone()).is_some());
        assert!(ledger.lend(1, || kept.clone()).is_none());
    }
}
