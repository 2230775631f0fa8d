//! Tables whose rows are identified by 64-bit ids and created on demand.
//!
//! | module | contents |
//! |---|---|
//! | `segment`, `arena` | the rows under one lock, and their memory |
//! | `uses` | when a row was last pushed, and how often |
//! | `waiting` | how often ids without a row have occurred |
//! | `update` | pushes of gradients |
//! | `state` | saving and restoring ids, values and slots |

mod arena;
mod segment;
mod state;
#[cfg(test)]
mod tests;
mod update;
mod uses;
mod waiting;

pub(crate) use arena::CHUNK;
pub use state::{DynamicState, StateColumn, WaitingCounts};
pub use update::PushResult;

use crate::partition::Split;
use crate::steps::Steps;
use crate::table::slot_width;
use crate::{Error, Initializer, Result};
use distribute_optim::{Rule, SlotSpec, StochasticRounding};
use distribute_tensor::random::mix;
use distribute_tensor::{DType, Element, HostTensor};
use parking_lot::RwLock;
use segment::{Number, Segment};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};

/// The maximum number of segments of a table, each with its own lock. A batch of a thousand ids then has several ids
/// for each lock.
const SEGMENTS: usize = 64;

/// The approximate memory in bytes that an id occupies in addition to its row.
const ENTRY: usize = 40;

/// The settings for creating and evicting rows of a dynamic table. By default every id gets a row, and no row is
/// evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DynamicOptions {
    /// The number of pushes in which an id must have occurred to get a row, including the push that creates the row; at
    /// least 1. Gradients of the pushes before that are dropped.
    pub admit_after: u32,
    /// The approximate maximum number of ids without a row whose occurrences are counted; at least 2. Beyond it, the
    /// counts of ids that have not occurred recently are discarded.
    pub waiting: usize,
    /// The maximum number of rows on this shard; at least 1, and `None` means no limit. Before the limit is exceeded,
    /// rows are evicted in the order of [`eviction`](Self::eviction). The rows are divided over up to 64 segments, each
    /// with an equal part of the limit, so eviction can begin a little earlier.
    pub max_rows: Option<usize>,
    /// The number of steps for which a row is kept without a push; `None` means forever. Pushes evict older rows only
    /// in steps whose numbers are multiples of an eighth of this number, rounded down to at least 1. So a row may be
    /// kept up to an eighth longer: see [`DynamicTable::evict`].
    pub max_age: Option<u64>,
    /// The rows that are evicted first if there are too many; by default the least recently pushed ones.
    pub eviction: Eviction,
}

/// The order in which rows are evicted if there would be too many. Rows of the current push are not evicted. Among
/// equal rows, those with the smallest ids are evicted first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Eviction {
    /// The rows whose last push is longest ago.
    #[default]
    LeastRecent,
    /// The rows with the smallest number of pushes; of these, those whose last push is longest ago. Several gradients
    /// for an id in one push count once. Counts do not decrease: set a [`max_age`](DynamicOptions::max_age), so that
    /// rows that were frequent long ago are evicted as well.
    #[doc(alias = "LFU")]
    LeastFrequent,
}

impl Default for DynamicOptions {
    fn default() -> Self {
        Self {
            admit_after: 1,
            waiting: 1 << 20,
            max_rows: None,
            max_age: None,
            eviction: Eviction::default(),
        }
    }
}

/// The limits of one segment.
#[derive(Clone, Copy, Debug)]
struct Limits {
    admit_after: u32,
    waiting: usize,
    rows: Option<usize>,
    eviction: Eviction,
}

/// A table of rows with 64-bit ids, or a shard of one, for embeddings. Rows are created on demand and may be evicted.
///
/// An id without a row has an initial value, which is a function of (seed, name, id). Reading therefore creates no row,
/// and the result does not depend on the shard. The first push of an id creates its row. With limits
/// ([`DynamicOptions`]), a later push may create it instead, or the row may be evicted. After an eviction, the id has
/// its initial value again.
///
/// Any number of threads may call methods at the same time. Each row is locked while it is read or changed.
///
/// ```
/// use distribute_optim::{Sgd, Step};
/// use distribute_ps_tables::{DynamicTable, Initializer, Push};
/// use distribute_tensor::{DType, HostTensor, random::Distribution};
/// use std::sync::Arc;
///
/// let ones = Initializer::new(Distribution::Constant(1.), 42, "users");
/// let users = DynamicTable::new("users", &[2], DType::F32, ones, Default::default())?;
/// users.set_rule(Arc::new(Sgd))?;
/// let gradient = HostTensor::new(vec![2f32, 4.], [1, 2])?;
/// users.push_rows(Push::at(Step::after(0, 0.5)), &[-7], &gradient)?;
/// assert_eq!(users.read_rows(&[i64::MAX, -7])?, HostTensor::new(vec![1f32, 1., 0., -1.], [2, 2])?);
/// assert_eq!(users.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "tfra.dynamic_embedding.Variable")]
#[derive(Debug)]
pub struct DynamicTable {
    name: String,
    row_shape: Vec<usize>,
    initializer: Initializer,
    options: DynamicOptions,
    /// The rounding of values that are stored in bf16; `None` if they are stored in the table's dtype.
    rounding: Option<StochasticRounding>,
    segments: Segments,
    rule: OnceLock<Bound>,
    /// The number of the last counted step of all workers.
    pub(crate) steps: Steps,
}

#[derive(Debug)]
struct Bound {
    rule: Arc<dyn Rule>,
    slots: Vec<SlotSpec>,
}

/// The segments of the table by dtype, each with its own lock.
#[derive(Debug)]
enum Segments {
    F32(Vec<RwLock<Segment<f32>>>),
    F64(Vec<RwLock<Segment<f64>>>),
}

/// Evaluates an expression with the segments of the table's dtype.
macro_rules! with_segments {
    ($segments:expr, $all:ident => $body:expr) => {
        match $segments {
            Segments::F32($all) => $body,
            Segments::F64($all) => $body,
        }
    };
}
use with_segments;

impl DynamicTable {
    /// Creates a table without rows, whose rows will have the shape `row_shape`.
    ///
    /// # Errors
    /// - [`Error::UnsupportedDType`]: the dtype is neither `float32` nor `float64`.
    /// - [`Error::DynamicParameter`]: an option is out of range.
    /// - [`Error::NoMemory`]: a row is too large.
    pub fn new(
        name: impl Into<String>,
        row_shape: &[usize],
        dtype: DType,
        initializer: Initializer,
        options: DynamicOptions,
    ) -> Result<Self> {
        Self::stored(name.into(), (row_shape, dtype), initializer, options, None)
    }

    /// Equivalent to [`new`](Self::new), except that the values are stored in bf16 if `rounding` is given.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new), and:
    /// - [`Error::UnsupportedDType`]: `rounding` is given, but the dtype is not `float32`.
    pub(crate) fn stored(
        table: String,
        (row_shape, dtype): (&[usize], DType),
        initializer: Initializer,
        options: DynamicOptions,
        rounding: Option<StochasticRounding>,
    ) -> Result<Self> {
        if rounding.is_some() && dtype != DType::F32 {
            return Err(Error::UnsupportedDType { operation: "create in bf16", table, dtype });
        }
        let at_least =
            |parameter, value: Option<u64>, least, range| match value.filter(|value| *value < least) {
                Some(value) => Err(Error::DynamicParameter { table: table.clone(), parameter, value, range }),
                None => Ok(()),
            };
        at_least("admit_after", Some(options.admit_after.into()), 1, "at least 1")?;
        at_least("waiting", Some(options.waiting as u64), 2, "at least 2")?;
        at_least("max_rows", options.max_rows.map(|rows| rows as u64), 1, "at least 1")?;
        let width = row_shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
        let width = width.filter(|width| width.checked_mul(1 << 16).is_some());
        let Some(width) = width else {
            return Err(Error::NoMemory { table, shape: row_shape.to_vec(), dtype });
        };
        // With few rows, the limit of each segment would be rounded down to zero.
        let segments = options.max_rows.map_or(SEGMENTS, |rows| (rows / 64).clamp(1, SEGMENTS));
        let segments = 1 << segments.ilog2();
        let limits = Limits {
            admit_after: options.admit_after,
            waiting: options.waiting / segments,
            rows: options.max_rows.map(|rows| rows / segments),
            eviction: options.eviction,
        };
        fn all<T: Number>(
            count: usize,
            width: usize,
            limits: Limits,
            in_halves: bool,
        ) -> Vec<RwLock<Segment<T>>> {
            (0..count).map(|_| RwLock::new(Segment::new(width, limits, in_halves))).collect()
        }
        let segments = match dtype {
            DType::F32 => Segments::F32(all(segments, width, limits, rounding.is_some())),
            DType::F64 => Segments::F64(all(segments, width, limits, false)),
            dtype => return Err(Error::UnsupportedDType { operation: "create", table, dtype }),
        };
        let row_shape = row_shape.to_vec();
        Ok(Self {
            name: table,
            row_shape,
            initializer,
            options,
            rounding,
            segments,
            rule: OnceLock::new(),
            steps: Steps::default(),
        })
    }

    /// Returns the name of the table, which errors contain.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the dtype.
    pub fn dtype(&self) -> DType {
        match &self.segments {
            Segments::F32(_) => DType::F32,
            Segments::F64(_) => DType::F64,
        }
    }

    /// Returns the shape of each row.
    pub fn row_dims(&self) -> &[usize] {
        &self.row_shape
    }

    /// Returns the number of ids that have a row.
    pub fn len(&self) -> usize {
        with_segments!(&self.segments, all => all.iter().map(|segment| segment.read().len()).sum())
    }

    /// Returns whether no id has a row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of ids that have no row yet, but whose occurrences are counted.
    pub fn waiting(&self) -> usize {
        with_segments!(&self.segments, all => all.iter().map(|segment| segment.read().waiting()).sum())
    }

    /// Returns the size in bytes of the rows, their slots, the index, and the counts of ids without a row.
    pub fn bytes(&self) -> usize {
        with_segments!(&self.segments, all => all.iter().map(|segment| segment.read().bytes()).sum())
    }

    /// Returns the rows of the given ids, in the same order. For an id without a row, returns its initial value.
    ///
    /// # Errors
    /// - [`Error::Tensor`]: there is not enough memory for the result.
    #[doc(alias = "embedding_lookup")]
    pub fn read_rows(&self, ids: &[i64]) -> Result<HostTensor> {
        fn fill<T: Number>(
            all: &[RwLock<Segment<T>>],
            table: &DynamicTable,
            ids: &[i64],
            out: &mut HostTensor,
        ) {
            let (width, split) = (table.width(), split(all.len(), ids));
            let Some(out) = out.as_mut_slice::<T>() else { return };
            for (i, segment) in all.iter().enumerate() {
                let positions = split.positions(i);
                if positions.is_empty() {
                    continue;
                }
                let segment = segment.read();
                for (at, id) in positions.iter().zip(split.of(i)) {
                    let out = &mut out[at * width..(at + 1) * width];
                    if !segment.read_row(*id, out) {
                        segment.initial_row(&table.initializer, *id, out);
                    }
                }
            }
        }
        // Allocation fails with an error if there are more rows than fit into memory.
        let mut out = HostTensor::zeros(self.dtype(), self.rows_shape(ids.len()))?;
        with_segments!(&self.segments, all => fill(all, self, ids, &mut out));
        Ok(out)
    }

    /// Returns the ids that have a row: all of them, or those among `ids`, without duplicates.
    pub(crate) fn existing(&self, ids: Option<Vec<i64>>) -> Vec<i64> {
        fn existing<T: Number>(all: &[RwLock<Segment<T>>], ids: Option<Vec<i64>>) -> Vec<i64> {
            let Some(mut ids) = ids else {
                let mut every = Vec::new();
                all.iter().for_each(|segment| every.extend(segment.read().entries().map(|entry| entry.id)));
                return every;
            };
            ids.sort_unstable();
            ids.dedup();
            ids.retain(|id| all[segment_of(all.len(), *id)].read().has_row(*id));
            ids
        }
        with_segments!(&self.segments, all => existing(all, ids))
    }

    /// Evicts the rows that were not pushed in the [`max_age`](DynamicOptions::max_age) steps before `now`, and returns
    /// their number. If `max_age` is `None`, no row is evicted.
    ///
    /// Pushes also evict such rows, in steps whose numbers are multiples of `max_age / 8`. Segments are locked one
    /// after another.
    pub fn evict(&self, now: u64) -> usize {
        let Some(oldest) = self.options.max_age.and_then(|age| now.checked_sub(age)) else { return 0 };
        with_segments!(&self.segments, all => {
            all.iter().map(|segment| segment.write().evict_unused_since(oldest)).sum()
        })
    }

    pub(crate) fn initializer(&self) -> Initializer {
        self.initializer
    }

    pub(crate) fn options(&self) -> DynamicOptions {
        self.options
    }

    /// Returns the rule that applies gradients, if there is one.
    pub(crate) fn rule(&self) -> Option<&Arc<dyn Rule>> {
        self.rule.get().map(|bound| &bound.rule)
    }

    /// Returns the rounding of values that are stored in bf16; `None` if they are stored in the table's dtype.
    pub(crate) fn rounding(&self) -> Option<StochasticRounding> {
        self.rounding
    }

    /// Returns the size in bytes of `rows` rows of values in the table's dtype.
    pub(crate) fn bytes_of_rows(&self, rows: usize) -> usize {
        self.width().saturating_mul(self.dtype().bytes().unwrap_or(8)).saturating_mul(rows)
    }

    /// Returns the size of the given slots in bytes, for all rows and the unused rows of the last chunk.
    pub(crate) fn bytes_of_slots(&self, slots: &[SlotSpec]) -> usize {
        self.bytes_of_slot_rows(slots, self.len().next_multiple_of(CHUNK))
    }

    /// Returns the size of the slots of `rows` rows in bytes.
    fn bytes_of_slot_rows(&self, slots: &[SlotSpec], rows: usize) -> usize {
        let width: usize = slots.iter().map(|slot| slot_width(slot, self.width())).sum();
        width.saturating_mul(self.dtype().bytes().unwrap_or(8)).saturating_mul(rows)
    }

    /// Returns an upper bound of the memory in bytes that a push of the given ids allocates. If `exact` is `true`, only
    /// ids that have no row count, which requires looking up each id.
    pub(crate) fn bytes_of_new(&self, ids: &[i64], exact: bool) -> usize {
        let slots = self.rule.get().map_or(&[][..], |bound| &bound.slots);
        let rows = with_segments!(&self.segments, all => {
            if exact {
                let split = split(all.len(), ids);
                let of = |(i, segment): (usize, &RwLock<Segment<_>>)| segment.read().chunk_rows(split.of(i));
                all.iter().enumerate().map(of).sum()
            } else {
                ids.len().saturating_add(all.len().min(ids.len()) * CHUNK)
            }
        });
        // Each new id also takes an entry in the index or in the counts.
        let values = self.bytes_of_rows(rows);
        let values = if self.rounding.is_some() { values / 2 } else { values };
        let values = values.saturating_add(self.bytes_of_slot_rows(slots, rows));
        values.saturating_add(ids.len() * ENTRY)
    }

    fn width(&self) -> usize {
        self.row_shape.iter().product()
    }

    /// Returns the shape of a tensor with `rows` rows.
    fn rows_shape(&self, rows: usize) -> Vec<usize> {
        [rows].iter().chain(&self.row_shape).copied().collect()
    }

    /// Checks that `values` has the table's dtype, and contains one row for each of the ids.
    fn check_rows(&self, operation: &'static str, ids: &[i64], values: &HostTensor) -> Result<()> {
        self.check(operation, self.rows_shape(ids.len()), values)
    }

    /// Checks that `values` has the table's dtype, and the shape `expected`.
    fn check(&self, operation: &'static str, expected: Vec<usize>, values: &HostTensor) -> Result<()> {
        let table = self.name.clone();
        if values.dims() != expected {
            let found = values.dims().to_vec();
            return Err(Error::Shape { operation, table, expected, found });
        }
        let (expected, found) = (self.dtype(), values.dtype());
        if expected == found { Ok(()) } else { Err(Error::DType { operation, table, expected, found }) }
    }
}

/// Sorts ids by segment. `segments` must be a power of two.
fn split(segments: usize, ids: &[i64]) -> Split<i64> {
    let places: Vec<_> = ids.iter().map(|id| (segment_of(segments, *id), *id)).collect();
    Split::new(segments, &places)
}

/// Returns the index of an id's segment. It depends on bits of the hash that a segment's hash table uses only if it is
/// very large.
fn segment_of(segments: usize, id: i64) -> usize {
    (hash(id) >> 40) as usize & (segments - 1)
}

/// Hashes an id, with a function that differs from the one that partitions ids over shards.
fn hash(id: i64) -> u64 {
    mix(id.cast_unsigned() ^ 0x6a09_e667_f3bc_c909)
}

/// Returns the elements of a tensor whose dtype has been checked to be `T`.
fn elements<T: Element>(tensor: &HostTensor) -> &[T] {
    tensor.as_slice().unwrap_or_default()
}
