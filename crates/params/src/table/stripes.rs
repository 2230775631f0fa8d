//! The memory of a table, and the locks on it.

use super::layout::{Layout, Stretch};
use crate::Result;
use distribute_optim::SlotSpec;
use distribute_tensor::dtype::Buffer;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What one lock guards: rows, and the slots beside them.
#[derive(Debug)]
pub(super) struct Stripe {
    pub(super) values: Buffer,
    /// As long as `values` each; none before the first update.
    pub(super) slots: Vec<Buffer>,
}

impl Stripe {
    /// Makes the slots of a rule, if they are not there yet.
    pub(super) fn make_slots(&mut self, specs: &[SlotSpec]) {
        for spec in specs.iter().skip(self.slots.len()) {
            self.slots.push(initial(&self.values, spec.initial));
        }
    }
}

/// As many elements, of the same dtype, all `value`; zeros of what is not trained.
pub(super) fn initial(like: &Buffer, value: f64) -> Buffer {
    match like {
        Buffer::F32(v) => Buffer::F32(vec![value as f32; v.len()]),
        Buffer::F64(v) => Buffer::F64(vec![value; v.len()]),
        other => Buffer::zeros(other.dtype(), other.len()),
    }
}

/// All stripes of a table.
///
/// A caller that wants some rows locks one stripe after another, and never two at once. One that wants all of them goes through
/// the stripes in order, and lets none go before it has the next: so nobody overtakes, and of two that read or write a whole
/// variable, one is before the other everywhere.
#[derive(Debug)]
pub(super) struct Stripes {
    pub(super) layout: Layout,
    stripes: Vec<RwLock<Stripe>>,
}

impl Stripes {
    /// Makes the values of each stripe from the ranges of its rows.
    pub(super) fn new(
        layout: Layout,
        mut make: impl FnMut(usize, &mut dyn Iterator<Item = Stretch>) -> Buffer,
    ) -> Self {
        let stripe = |stripe| {
            let values = make(layout.len(stripe), &mut layout.stretches(stripe));
            RwLock::new(Stripe { values, slots: Vec::new() })
        };
        Self { layout, stripes: (0..layout.stripes()).map(stripe).collect() }
    }

    pub(super) fn read(&self, stripe: usize) -> RwLockReadGuard<'_, Stripe> {
        self.stripes[stripe].read()
    }

    pub(super) fn write(&self, stripe: usize) -> RwLockWriteGuard<'_, Stripe> {
        self.stripes[stripe].write()
    }

    /// Reads all of it, as it is between two writes of all of it.
    pub(super) fn read_all(&self, mut then: impl FnMut(&Stripe, &mut dyn Iterator<Item = Stretch>)) {
        let mut held = None;
        for (i, stripe) in self.stripes.iter().enumerate() {
            // The new one is locked, then the old one is dropped.
            then(held.insert(stripe.read()), &mut self.layout.stretches(i));
        }
    }

    /// Changes all of it, between any two others that read or write all of it. Ends with the first error.
    pub(super) fn write_all(
        &self,
        mut then: impl FnMut(usize, &mut Stripe, &mut dyn Iterator<Item = Stretch>) -> Result<()>,
    ) -> Result<()> {
        let mut held = None;
        for (i, stripe) in self.stripes.iter().enumerate() {
            let stripe: &mut RwLockWriteGuard<'_, Stripe> = held.insert(stripe.write());
            then(i, stripe, &mut self.layout.stretches(i))?;
        }
        Ok(())
    }

    /// Sorts the positions of rows by stripe, and keeps their order in each.
    pub(super) fn by_stripe(&self, rows: &[usize]) -> ByStripe {
        let mut starts = vec![0; self.layout.stripes() + 1];
        for row in rows {
            starts[self.layout.stripe(*row) + 1] += 1;
        }
        for stripe in 1..starts.len() {
            starts[stripe] += starts[stripe - 1];
        }
        let mut next = starts.clone();
        let mut positions = vec![0; rows.len()];
        for (position, row) in rows.iter().enumerate() {
            let next = &mut next[self.layout.stripe(*row)];
            positions[*next] = position;
            *next += 1;
        }
        ByStripe { positions, starts }
    }
}

/// Positions of rows in a request, by stripe.
pub(super) struct ByStripe {
    positions: Vec<usize>,
    starts: Vec<usize>,
}

impl ByStripe {
    /// Those of one stripe.
    pub(super) fn of(&self, stripe: usize) -> &[usize] {
        &self.positions[self.starts[stripe]..self.starts[stripe + 1]]
    }

    /// The stripes that have some, and which.
    pub(super) fn each(&self) -> impl Iterator<Item = (usize, &[usize])> {
        let each = self.starts.windows(2).enumerate();
        each.filter(|(_, at)| at[0] < at[1]).map(|(stripe, at)| (stripe, &self.positions[at[0]..at[1]]))
    }
}
