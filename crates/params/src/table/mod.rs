//! The rows of one variable, or of one shard of it, on one server.

mod check;
mod layout;
mod read;
mod state;
mod stripes;
#[cfg(test)]
mod tests;
mod update;
mod write;

pub use read::Versioned;
pub use state::TableState;

use crate::steps::Steps;
use crate::{Error, Initializer, Place, Result, RowPartition};
use distribute_tensor::dtype::Buffer;
use distribute_tensor::{DType, HostTensor, with_buffer};
use layout::Layout;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use stripes::Stripes;
use update::Bound;

/// A variable, or a shard of one, where it is kept: values, and beside them the slots of the rule that updates them.
///
/// Any number of threads may call at once. Each operation on the whole variable ([`read`](Table::read), [`write`](Table::write),
/// [`push`](Table::push)) is before or after any other one, everywhere. An operation on rows is so for each row: of two that
/// share several rows, one may come first for some of them and the other for the rest, as in TensorFlow, and an operation on
/// all of it may see a part of one on rows.
///
/// What is refused has changed nothing.
///
/// ```
/// use distribute_optim::{Momentum, Step};
/// use distribute_params::{Push, Table};
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
    /// Counts what has been written: grows after each write, before the write's caller is told.
    version: AtomicU64,
    rule: OnceLock<Bound>,
    /// Those of all workers.
    pub(crate) steps: Steps,
}

impl Table {
    /// A table of these values. A scalar is one row of one element.
    pub fn new(name: impl Into<String>, value: HostTensor) -> Result<Self> {
        let (shape, dtype) = (value.dims().to_vec(), value.dtype());
        Self::made(name.into(), shape, dtype, |layout, width| {
            Stripes::new(layout, |rows, stretches| {
                with_buffer!(value.buffer(), v => {
                    let mut values = Vec::with_capacity(rows * width);
                    for stretch in stretches {
                        let rows = stretch.rows;
                        values.extend_from_slice(&v[rows.start * width..rows.end * width]);
                    }
                    distribute_tensor::Element::into_buffer(values)
                })
            })
        })
    }

    /// A shard of a variable of `shape`, with the values that `initializer` has for its rows: those that the whole variable
    /// has there, however it is cut.
    ///
    /// # Errors
    /// [`Error::Rows`] if the partition is of another number of rows, [`Error::NoShard`] if it has fewer shards; [`Error::Tensor`] if the dtype cannot be drawn.
    pub fn drawn(
        name: impl Into<String>,
        shape: &[usize],
        dtype: DType,
        initializer: &Initializer,
        (partition, shard): (RowPartition, usize),
    ) -> Result<Self> {
        initializer.check(dtype)?;
        partition.require_shard(shape, shard)?;
        // Positions of the whole variable are counted, and those of a normal distribution twice.
        let elements = shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
        if elements.is_none_or(|n| n > usize::MAX / 4) {
            return Err(Error::NoMemory { table: name.into(), shape: shape.to_vec(), dtype });
        }
        let mut shape = shape.to_vec();
        if let Some(rows) = shape.first_mut() {
            *rows = partition.len(shard);
        }
        Self::made(name.into(), shape, dtype, |layout, width| {
            Stripes::new(layout, |rows, stretches| {
                let mut values = Buffer::zeros(dtype, rows * width);
                if width == 0 {
                    return values;
                }
                for stretch in stretches {
                    let (mut row, mut local) = (stretch.rows.start, stretch.local.start);
                    while row < stretch.rows.end {
                        let first = partition.row(Place { shard, row });
                        let run = partition.run(first).min(stretch.rows.end - row);
                        let at = local * width..(local + run) * width;
                        initializer.fill(first as u64 * width as u64, &mut values, at);
                        (row, local) = (row + run, local + run);
                    }
                }
                values
            })
        })
    }

    fn made(
        name: String,
        shape: Vec<usize>,
        dtype: DType,
        stripes: impl FnOnce(Layout, usize) -> Stripes,
    ) -> Result<Self> {
        let rows = shape.first().copied().unwrap_or(1);
        let bytes = dtype.bytes().unwrap_or(std::mem::size_of::<Vec<u8>>());
        let row = shape.get(1..).unwrap_or_default();
        let width = row.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
        let bytes_per_row = width.and_then(|width| width.checked_mul(bytes));
        let fits = bytes_per_row.and_then(|bytes| bytes.checked_mul(rows)).is_some_and(has_memory);
        let (Some(width), Some(bytes_per_row), true) = (width, bytes_per_row, fits) else {
            return Err(Error::NoMemory { table: name, shape, dtype });
        };
        let stripes = stripes(Layout::new(rows, bytes_per_row), width);
        Ok(Self {
            name,
            shape,
            dtype,
            stripes,
            version: AtomicU64::new(0),
            rule: OnceLock::new(),
            steps: Steps::default(),
        })
    }

    /// Whether there is memory for so many elements more.
    fn require_memory(&self, elements: usize) -> Result<()> {
        let bytes = self.dtype.bytes().unwrap_or(std::mem::size_of::<Vec<u8>>());
        if elements.checked_mul(bytes).is_some_and(has_memory) {
            return Ok(());
        }
        Err(Error::NoMemory { table: self.name.clone(), shape: self.shape.clone(), dtype: self.dtype })
    }

    /// The name, as in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The shape.
    pub fn dims(&self) -> &[usize] {
        &self.shape
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of rows; 1 of a scalar.
    pub fn rows(&self) -> usize {
        self.stripes.layout.rows()
    }

    /// How often it has been written to. As long as this stays the same, so does the value.
    ///
    /// A table that is made anew, because its server came back, counts anew.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Says that something has changed, to those who look from now on.
    fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// How many bytes values and slots take, without what strings hold.
    pub fn bytes(&self) -> usize {
        let size = self.dtype.bytes().unwrap_or(std::mem::size_of::<Vec<u8>>());
        let mut elements = 0;
        self.stripes.read_all(|stripe, _| elements += stripe.values.len() * (1 + stripe.slots.len()));
        elements * size
    }

    /// Returns the bytes of values and slots, those included that are made with the first update; of strings also what they hold.
    pub(crate) fn taken(&self) -> usize {
        let slots = self.rule.get().map_or(0, |bound| bound.slots.len());
        let mut texts = 0;
        if self.dtype.bytes().is_none() {
            self.stripes.read_all(|stripe, _| {
                if let Buffer::String(values) = &stripe.values {
                    texts += values.iter().map(Vec::len).sum::<usize>();
                }
            });
        }
        self.bytes_of_rows(self.rows()).saturating_mul(1 + slots).saturating_add(texts)
    }

    /// Returns the bytes of some rows. A row of nothing counts as one.
    pub(crate) fn bytes_of_rows(&self, rows: usize) -> usize {
        let size = self.dtype.bytes().unwrap_or(std::mem::size_of::<Vec<u8>>());
        self.width().saturating_mul(size).max(1).saturating_mul(rows)
    }

    /// Returns the bytes that the slots of a rule take.
    pub(crate) fn bytes_of_slots(&self, slots: usize) -> usize {
        self.bytes_of_rows(self.rows()).saturating_mul(slots)
    }

    /// The elements of a row.
    fn width(&self) -> usize {
        self.shape.get(1..).unwrap_or_default().iter().product()
    }
}

/// Allocations that fail end the process, so large ones are tried before.
fn has_memory(bytes: usize) -> bool {
    Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}
