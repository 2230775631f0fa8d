//! The memory of a table, divided into stripes with a lock each.

// - **INV-50** Two operations on all of a table have the same order for every row: a thread that goes through its
//   locks acquires the next one before it releases one. A thread that needs rows holds one lock at a time. Tests:
//   `ps-tables/tests/it/threads.rs`.

use super::in_parallel::in_parallel;
use super::layout::{Layout, StripeRange};
use super::values::Values;
use crate::Result;
use distribute_optim::SlotSpec;
use distribute_tensor::DType;
use distribute_tensor::dtype::Buffer;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::Range;

/// The values and slots of the rows that share a lock.
#[derive(Debug)]
pub(super) struct Stripe {
    pub(super) values: Values,
    /// The slots, each with a fixed number of elements for each row. They are created at the first update or
    /// restoration.
    pub(super) slots: Vec<Buffer>,
    rows: usize,
}

impl Stripe {
    /// Creates the slots of a rule for rows of `width` elements, if they do not exist yet.
    pub(super) fn make_slots(&mut self, specs: &[SlotSpec], width: usize) {
        for spec in specs.iter().skip(self.slots.len()) {
            let slot = initial(spec, self.values.dtype(), self.rows * slot_width(spec, width));
            self.slots.push(slot);
        }
    }
}

/// Returns the number of elements of a slot for a row of `width` elements. Tables reject rules with slots that do not
/// belong to rows.
pub(crate) fn slot_width(slot: &SlotSpec, width: usize) -> usize {
    slot.shape.per_row(width).unwrap_or(width)
}

/// Returns `len` elements of a slot with its initial value, or zeros if the dtype cannot be trained.
pub(super) fn initial(slot: &SlotSpec, dtype: DType, len: usize) -> Buffer {
    match dtype {
        DType::F32 => Buffer::F32(vec![slot.initial as f32; len]),
        DType::F64 => Buffer::F64(vec![slot.initial; len]),
        other => Buffer::zeros(other, len),
    }
}

/// All stripes of a table.
///
/// Operations on single rows lock one stripe after another, and never two at once. Operations on all rows, or on a
/// range, lock the stripes in order, and release each lock only when they have the next one. So they never overtake
/// each other: the operation that is first on one stripe is first on every stripe.
#[derive(Debug)]
pub(super) struct Stripes {
    pub(super) layout: Layout,
    stripes: Vec<RwLock<Stripe>>,
}

impl Stripes {
    /// Creates the stripes, with up to `threads` threads. `make` creates the values of a stripe from the number of its
    /// rows and their ranges. They are stored in bf16 if `in_halves` is `true`.
    pub(super) fn new(
        layout: Layout,
        in_halves: bool,
        threads: usize,
        make: impl Fn(usize, &mut dyn Iterator<Item = StripeRange>) -> Buffer + Sync,
    ) -> Self {
        let stripe = |stripe| {
            let rows = layout.len(stripe);
            let values = Values::new(make(rows, &mut layout.stripe_ranges(stripe)), in_halves);
            RwLock::new(Stripe { values, slots: Vec::new(), rows })
        };
        Self { layout, stripes: in_parallel(layout.stripes(), threads, stripe) }
    }

    pub(super) fn read(&self, stripe: usize) -> RwLockReadGuard<'_, Stripe> {
        self.stripes[stripe].read()
    }

    pub(super) fn write(&self, stripe: usize) -> RwLockWriteGuard<'_, Stripe> {
        self.stripes[stripe].write()
    }

    /// Calls `then` for each stripe, with the values of the table between two writes to the complete table.
    pub(super) fn read_all(&self, then: impl FnMut(&Stripe, &mut dyn Iterator<Item = StripeRange>)) {
        self.read_some(&(0..self.layout.rows()), then);
    }

    /// Equivalent to [`read_all`](Self::read_all), but only for the ranges that contain any of the given rows.
    pub(super) fn read_some(
        &self,
        rows: &Range<usize>,
        mut then: impl FnMut(&Stripe, &mut dyn Iterator<Item = StripeRange>),
    ) {
        let mut held = None;
        for (i, stripe) in self.stripes.iter().enumerate() {
            // The next stripe is locked before the previous one is released.
            then(held.insert(stripe.read()), &mut self.layout.stripe_ranges_within(i, rows));
        }
    }

    /// Calls `then` for each stripe to change the complete table. The changes are atomic with respect to other
    /// operations on the complete table. Stops at the first error.
    pub(super) fn write_all(
        &self,
        then: impl FnMut(usize, &mut Stripe, &mut dyn Iterator<Item = StripeRange>) -> Result<()>,
    ) -> Result<()> {
        self.write_some(&(0..self.layout.rows()), then)
    }

    /// Equivalent to [`write_all`](Self::write_all), but only for the ranges that contain any of the given rows.
    pub(super) fn write_some(
        &self,
        rows: &Range<usize>,
        mut then: impl FnMut(usize, &mut Stripe, &mut dyn Iterator<Item = StripeRange>) -> Result<()>,
    ) -> Result<()> {
        let mut held = None;
        for (i, stripe) in self.stripes.iter().enumerate() {
            let stripe: &mut RwLockWriteGuard<'_, Stripe> = held.insert(stripe.write());
            then(i, stripe, &mut self.layout.stripe_ranges_within(i, rows))?;
        }
        Ok(())
    }

    /// Sorts the positions of rows by stripe, without changing their order within a stripe.
    pub(super) fn by_stripe(&self, rows: &[usize]) -> RowsByStripe {
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
        RowsByStripe { positions, starts }
    }
}

/// The positions of rows in a request, sorted by stripe.
pub(super) struct RowsByStripe {
    positions: Vec<usize>,
    starts: Vec<usize>,
}

impl RowsByStripe {
    /// Returns the positions in one stripe.
    pub(super) fn of(&self, stripe: usize) -> &[usize] {
        &self.positions[self.starts[stripe]..self.starts[stripe + 1]]
    }

    /// Iterates over the stripes that contain any of the rows, with the positions in each.
    pub(super) fn each(&self) -> impl Iterator<Item = (usize, &[usize])> {
        let each = self.starts.windows(2).enumerate();
        each.filter(|(_, at)| at[0] < at[1]).map(|(stripe, at)| (stripe, &self.positions[at[0]..at[1]]))
    }
}
