//! [`Table`]: the rows of a variable or of one shard of it on a server, and their slots.
//!
//! | module | contents |
//! |---|---|
//! | `stripes`, `layout` | the memory and its locks; the lock of each row, a pure function |
//! | `in_parallel` | the threads that create a large table |
//! | `values` | the values under one lock, in the dtype of the table or in bf16 |
//! | `check` | checks of arguments, before anything is written |
//! | `read`, `write`, `update` | values; assignments and additions; gradients, which a rule applies |
//! | `state` | values and slots, saved and restored |

// - **INV-51** A value that was read includes all writes up to its version: the version is read before the value,
//   and is incremented after the write. Tests: `ps-tables/tests/it/threads.rs`.

mod check;
mod in_parallel;
mod layout;
mod read;
mod state;
mod stripes;
#[cfg(test)]
mod tests;
mod update;
mod values;
mod write;

pub use read::Versioned;
pub use state::TableState;

use crate::steps::Steps;
use crate::{Error, Halves, Initializer, Result, RowLocation, RowPartition};
use distribute_optim::{SlotSpec, StochasticRounding};
use distribute_tensor::dtype::Buffer;
use distribute_tensor::{DType, HostTensor, with_buffer};
use in_parallel::threads_for;
use layout::Layout;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use stripes::Stripes;
pub(crate) use stripes::slot_width;
use update::Bound;
pub(crate) use update::require_rows;
use values::Values;

/// A variable, or a shard of one, on its server: the values, and the slots of the rule that updates them.
///
/// Any number of threads may call methods at the same time. Operations on the complete table ([`read`](Table::read),
/// [`write`](Table::write), [`push`](Table::push)) are atomic with respect to each other. Operations on rows are atomic
/// for each row. Two of them that share several rows may happen in different orders for different rows, as in
/// TensorFlow. An operation on the complete table may see an operation on rows that is only partly done.
///
/// An operation that returns an error has changed nothing.
///
/// ```
/// use distribute_optim::{Momentum, Step};
/// use distribute_ps_tables::{Push, Table};
/// use distribute_tensor::HostTensor;
/// use std::sync::Arc;
///
/// let table = Table::new("words/part_1", HostTensor::new(vec![1f32; 6], [3, 2])?)?;
/// table.set_rule(Arc::new(Momentum::new(0.9)))?;
///
/// // Row 2 has two gradients: they are summed first.
/// let gradients = HostTensor::new(vec![1f32, -1., 2., -3.], [2, 2])?;
/// table.push_rows(Push::at(Step::after(0, 0.5)), &[2, 2], &gradients)?;
/// assert_eq!(table.read_rows(&[2, 0])?, HostTensor::new(vec![-0.5f32, 3., 1., 1.], [2, 2])?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Table {
    name: String,
    shape: Vec<usize>,
    dtype: DType,
    stripes: Stripes,
    /// The storage of values in bf16; `None` if they are stored in the table's dtype.
    halves: Option<Halves>,
    /// The number of writes to the table. It is incremented after each write, before the write returns.
    version: AtomicU64,
    rule: OnceLock<Bound>,
    /// The number of the last counted step of all workers.
    pub(crate) steps: Steps,
}

impl Table {
    /// Creates a table with the given values. A scalar counts as one row of one element.
    ///
    /// # Errors
    /// - [`Error::NoMemory`]: the table does not fit into memory.
    pub fn new(name: impl Into<String>, value: HostTensor) -> Result<Self> {
        Self::stored(name.into(), value, None)
    }

    /// Creates a table with the given values, which are stored in bf16 if `halves` is given.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new), and:
    /// - [`Error::UnsupportedDType`]: `halves` is given, but the values are not `float32`.
    pub(crate) fn stored(name: String, value: HostTensor, halves: Option<Halves>) -> Result<Self> {
        let (shape, dtype) = (value.dims().to_vec(), value.dtype());
        Self::build(name, (shape, dtype), halves, |layout, width, threads| {
            Stripes::new(layout, halves.is_some(), threads, |rows, stripe_ranges| {
                with_buffer!(value.buffer(), v => {
                    let mut values = Vec::with_capacity(rows * width);
                    for stripe_range in stripe_ranges {
                        let rows = stripe_range.rows;
                        values.extend_from_slice(&v[rows.start * width..rows.end * width]);
                    }
                    distribute_tensor::Element::into_buffer(values)
                })
            })
        })
    }

    /// Creates a shard of a variable of shape `shape`. `initializer` defines the values of its rows, independently of
    /// the partition. `place` is the partition, and the index of the shard.
    ///
    /// # Errors
    /// - [`Error::PartitionRows`]: the partition has a different number of rows.
    /// - [`Error::NoShard`]: the partition has no shard with this index.
    /// - [`Error::Tensor`]: the dtype cannot be initialized.
    /// - [`Error::NoMemory`]: the table does not fit into memory.
    pub fn initialized(
        name: impl Into<String>,
        shape: &[usize],
        dtype: DType,
        initializer: &Initializer,
        place: (RowPartition, usize),
    ) -> Result<Self> {
        Self::initialized_in(name.into(), (shape, dtype), initializer, place, None)
    }

    /// Equivalent to [`initialized`](Self::initialized), except that the values are stored in bf16 if `rounding` is
    /// given.
    ///
    /// # Errors
    /// Returns the errors of [`initialized`](Self::initialized), and:
    /// - [`Error::UnsupportedDType`]: `rounding` is given, but the dtype is not `float32`.
    pub(crate) fn initialized_in(
        name: String,
        (shape, dtype): (&[usize], DType),
        initializer: &Initializer,
        (partition, shard): (RowPartition, usize),
        rounding: Option<StochasticRounding>,
    ) -> Result<Self> {
        initializer.check(dtype)?;
        partition.require_shard(shape, shard)?;
        // Positions count the elements of the whole variable, twice for a normal distribution.
        let elements = shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
        if elements.is_none_or(|n| n > usize::MAX / 4) {
            return Err(Error::NoMemory { table: name, shape: shape.to_vec(), dtype });
        }
        let mut shape = shape.to_vec();
        if let Some(rows) = shape.first_mut() {
            *rows = partition.len(shard);
        }
        let halves = rounding.map(|rounding| Halves { rounding, partition, shard });
        Self::build(name, (shape, dtype), halves, |layout, width, threads| {
            Stripes::new(layout, halves.is_some(), threads, |rows, stripe_ranges| {
                let mut values = Buffer::zeros(dtype, rows * width);
                if width == 0 {
                    return values;
                }
                for stripe_range in stripe_ranges {
                    let (mut row, mut local) = (stripe_range.rows.start, stripe_range.local.start);
                    while row < stripe_range.rows.end {
                        let first = partition.row(RowLocation { shard, row });
                        let run = partition.run(first).min(stripe_range.rows.end - row);
                        let at = local * width..(local + run) * width;
                        initializer.fill(first as u64 * width as u64, &mut values, at);
                        (row, local) = (row + run, local + run);
                    }
                }
                values
            })
        })
    }

    /// Creates a table. `stripes` creates the stripes from their layout, the number of elements of a row, and the
    /// number of threads to use.
    fn build(
        name: String,
        (shape, dtype): (Vec<usize>, DType),
        halves: Option<Halves>,
        stripes: impl FnOnce(Layout, usize, usize) -> Stripes,
    ) -> Result<Self> {
        if halves.is_some() && dtype != DType::F32 {
            return Err(Error::UnsupportedDType { operation: "create in bf16", table: name, dtype });
        }
        let rows = shape.first().copied().unwrap_or(1);
        let bytes = stored_bytes(dtype, halves.is_some());
        let row = shape.get(1..).unwrap_or_default();
        let width = row.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
        let bytes_per_row = width.and_then(|width| width.checked_mul(bytes));
        let fits = bytes_per_row.and_then(|bytes| bytes.checked_mul(rows)).is_some_and(has_memory);
        let (Some(width), Some(bytes_per_row), true) = (width, bytes_per_row, fits) else {
            return Err(Error::NoMemory { table: name, shape, dtype });
        };
        let threads = threads_for(rows.saturating_mul(bytes_per_row));
        let stripes = stripes(Layout::new(rows, bytes_per_row), width, threads);
        Ok(Self {
            name,
            shape,
            dtype,
            stripes,
            halves,
            version: AtomicU64::new(0),
            rule: OnceLock::new(),
            steps: Steps::default(),
        })
    }

    /// Checks that there is memory for `elements` more elements.
    fn require_memory(&self, elements: usize) -> Result<()> {
        let bytes = self.dtype.bytes().unwrap_or(std::mem::size_of::<Vec<u8>>());
        if elements.checked_mul(bytes).is_some_and(has_memory) {
            return Ok(());
        }
        Err(Error::NoMemory { table: self.name.clone(), shape: self.shape.clone(), dtype: self.dtype })
    }

    /// Returns the name of the table, which errors contain.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the shape of the table.
    pub fn dims(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the storage of values in bf16; `None` if they are stored in the table's dtype.
    pub(crate) fn halves(&self) -> Option<Halves> {
        self.halves
    }

    /// Returns the number of rows; 1 for a scalar.
    pub fn rows(&self) -> usize {
        self.stripes.layout.rows()
    }

    /// Returns the number of completed operations that may have changed values, such as writes and pushes. If the
    /// number is unchanged, no such operation was completed, but one in progress may already have changed some values.
    ///
    /// A table that is created again, for example after a restart of its server, counts from zero.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Counts a completed change, so that [`read_if_changed`](Self::read_if_changed) notices it.
    fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns the size of values and slots in bytes, without the contents of strings.
    pub fn bytes(&self) -> usize {
        let size = self.dtype.bytes().unwrap_or(std::mem::size_of::<Vec<u8>>());
        let mut bytes = 0;
        self.stripes.read_all(|stripe, _| {
            bytes += stripe.values.bytes() + stripe.slots.iter().map(Buffer::len).sum::<usize>() * size;
        });
        bytes
    }

    /// Returns the size of values and slots in bytes, including the contents of strings, and slots that the first
    /// update will create.
    pub(crate) fn taken(&self) -> usize {
        let slots = self.rule.get().map_or(0, |bound| self.bytes_of_slots(&bound.slots));
        let mut texts = 0;
        if self.dtype.bytes().is_none() {
            self.stripes.read_all(|stripe, _| {
                if let Values::Full(Buffer::String(values)) = &stripe.values {
                    texts += values.iter().map(Vec::len).sum::<usize>();
                }
            });
        }
        let values = self.bytes_of_width(self.width(), self.rows());
        let values = if self.halves.is_some() { values / 2 } else { values };
        values.saturating_add(slots).saturating_add(texts)
    }

    /// Returns the size in bytes of `rows` rows. A row without elements counts as one byte.
    pub(crate) fn bytes_of_rows(&self, rows: usize) -> usize {
        self.bytes_of_width(self.width(), rows)
    }

    /// Returns the size in bytes of the given slots for all rows.
    pub(crate) fn bytes_of_slots(&self, slots: &[SlotSpec]) -> usize {
        let of = |slot| self.bytes_of_width(slot_width(slot, self.width()), self.rows());
        slots.iter().map(of).fold(0, usize::saturating_add)
    }

    fn bytes_of_width(&self, width: usize, rows: usize) -> usize {
        let size = self.dtype.bytes().unwrap_or(std::mem::size_of::<Vec<u8>>());
        width.saturating_mul(size).max(1).saturating_mul(rows)
    }

    /// Returns the number of elements of a row.
    fn width(&self) -> usize {
        self.shape.get(1..).unwrap_or_default().iter().product()
    }
}

/// Returns the size in bytes of an element as it is stored.
pub(crate) fn stored_bytes(dtype: DType, in_halves: bool) -> usize {
    if in_halves { 2 } else { dtype.bytes().unwrap_or(size_of::<Vec<u8>>()) }
}

/// Returns whether `bytes` bytes can be allocated. Check this before each large allocation, because a failed one would
/// abort the process.
fn has_memory(bytes: usize) -> bool {
    Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}
