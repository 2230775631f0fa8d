//! The memory of a table, and its locks.

use super::layout::{Layout, Stretch};
use crate::Result;
use distribute_optim::SlotSpec;
use distribute_tensor::dtype::Buffer;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The rows that one lock guards, and their slots.
#[derive(Debug)]
pub(super) struct Stripe {
    pub(super) values: Buffer,
    /// The slots, each of the length of `values`; none before the first update.
    pub(super) slots: Vec<Buffer>,
}

impl Stripe {
    /// Creates the slots of a rule, if they do not exist yet.
    pub(super) fn make_slots(&mut self, specs: &[SlotSpec]) {
        for spec in specs.iter().skip(self.slots.len()) {
            self.slots.push(initial(&self.values, spec.initial));
        }
    }
}

/// Returns a buffer of the same length and dtype, filled with `value`; zeros for dtypes that are not trained.
pub(super) fn initial(like: &Buffer, value: f64) -> Buffer {
    match like {
        Buffer::F32(v) => Buffer::F32(vec![value as f32; v.len()]),
        Buffer::F64(v) => Buffer::F64(vec![value; v.len()]),
        other => Buffer::zeros(other.dtype(), other.len()),
    }
}

/// All stripes of a table.
///
/// Operations on some rows lock one stripe after another, and never two at once. Operations on all rows lock
/// the stripes in order, and keep each lock until they have the next. They therefore cannot overtake each
/// other: of two that read or write the whole variable, one comes first on every stripe.
#[derive(Debug)]
pub(super) struct Stripes {
    pub(super) layout: Layout,
    stripes: Vec<RwLock<Stripe>>,
}

impl Stripes {
    /// Creates the values of each stripe from the ranges of its rows.
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

    /// Reads the whole table, as it is between two writes of the whole table.
    pub(super) fn read_all(&self, mut then: impl FnMut(&Stripe, &mut dyn Iterator<Item = Stretch>)) {
        let mut held = None;
        for (i, stripe) in self.stripes.iter().enumerate() {
            // The next stripe is locked before the previous one is released.
            then(held.insert(stripe.read()), &mut self.layout.stretches(i));
        }
    }

    /// Changes the whole table, atomically with respect to other operations on the whole table. Stops at the
    /// first error.
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

    /// Sorts the positions of rows by stripe. The order within a stripe is kept.
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
    /// Returns the positions of one stripe.
    pub(super) fn of(&self, stripe: usize) -> &[usize] {
        &self.positions[self.starts[stripe]..self.starts[stripe + 1]]
    }

    /// Returns the stripes that have positions, and the positions.
    pub(super) fn each(&self) -> impl Iterator<Item = (usize, &[usize])> {
        let each = self.starts.windows(2).enumerate();
        each.filter(|(_, at)| at[0] < at[1]).map(|(stripe, at)| (stripe, &self.positions[at[0]..at[1]]))
    }
}
