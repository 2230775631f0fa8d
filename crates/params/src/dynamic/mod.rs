//! Tables whose rows are ids of 64 bits, made when they are needed.

mod arena;
mod segment;
mod state;
#[cfg(test)]
mod tests;
mod update;
mod waiting;

pub(crate) use arena::CHUNK;
pub use state::{DynamicState, WaitingCounts};
pub use update::Pushed;

use crate::partition::Split;
use crate::steps::Steps;
use crate::{Error, Initializer, Result};
use distribute_optim::{Rule, SlotSpec};
use distribute_tensor::random::mix;
use distribute_tensor::{DType, Element, HostTensor};
use parking_lot::RwLock;
use segment::{Number, Segment, stamp};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};

/// So many locks: a batch of a thousand ids has several under each.
const SEGMENTS: usize = 64;

/// About the number of bytes that an id takes in addition to its row.
const ENTRY: usize = 32;

/// Which ids get a row, and which lose theirs. By default all do, and none does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DynamicOptions {
    /// In how many pushes an id has to come before it gets a row; 1 or more. Its gradients up to there are dropped.
    pub admit_after: u32,
    /// Of about how many ids without a row it is known how often they came; 2 or more. Those that come seldom are forgotten first.
    pub waiting: usize,
    /// How many rows there may be on this shard; 1 or more. Before there would be more, those go that were not pushed to for
    /// the longest time.
    pub max_rows: Option<usize>,
    /// For how many steps a row is kept that is not pushed to, and up to an eighth more: see [`DynamicTable::evict`].
    pub max_age: Option<u64>,
}

impl Default for DynamicOptions {
    fn default() -> Self {
        Self { admit_after: 1, waiting: 1 << 20, max_rows: None, max_age: None }
    }
}

/// The limits of one segment.
#[derive(Clone, Copy, Debug)]
struct Limits {
    admit_after: u32,
    waiting: usize,
    rows: Option<usize>,
}

/// An embedding table of ids of 64 bits, or the ids of it that are on one shard: rows come with the ids, and go.
///
/// An id that has no row reads as its initial value, which is a function of (seed, name, id); so reading makes no row, and it
/// makes no difference on which shard an id is. Its row is made by a push, and is not changed by others; where there is a limit
/// ([`DynamicOptions`]), by a later one, or it goes again. A row that has gone begins anew.
///
/// Any number of threads may call at once; each row is locked while it is read or changed.
///
/// ```
/// use distribute_optim::{Sgd, Step};
/// use distribute_params::{DynamicTable, Initializer, Push};
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
    segments: Segments,
    rule: OnceLock<Bound>,
    /// Those of all workers.
    pub(crate) steps: Steps,
}

#[derive(Debug)]
struct Bound {
    rule: Arc<dyn Rule>,
    slots: Vec<SlotSpec>,
}

/// The parts of the table, each under its lock.
#[derive(Debug)]
enum Segments {
    F32(Vec<RwLock<Segment<f32>>>),
    F64(Vec<RwLock<Segment<f64>>>),
}

/// Runs an expression with the segments, whatever their dtype.
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
    /// A table without rows, each of which will be of `row_shape`.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] unless the dtype is `float32` or `float64`, and [`Error::DynamicParameter`] for options out
    /// of range.
    pub fn new(
        name: impl Into<String>,
        row_shape: &[usize],
        dtype: DType,
        initializer: Initializer,
        options: DynamicOptions,
    ) -> Result<Self> {
        let table = name.into();
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
        // Of few rows, each segment would have its share of none.
        let segments = options.max_rows.map_or(SEGMENTS, |rows| (rows / 64).clamp(1, SEGMENTS));
        let segments = 1 << segments.ilog2();
        let limits = Limits {
            admit_after: options.admit_after,
            waiting: options.waiting / segments,
            rows: options.max_rows.map(|rows| rows / segments),
        };
        fn all<T: Number>(count: usize, width: usize, limits: Limits) -> Vec<RwLock<Segment<T>>> {
            (0..count).map(|_| RwLock::new(Segment::new(width, limits))).collect()
        }
        let segments = match dtype {
            DType::F32 => Segments::F32(all(segments, width, limits)),
            DType::F64 => Segments::F64(all(segments, width, limits)),
            dtype => return Err(Error::UnsupportedDType { operation: "create", table, dtype }),
        };
        let row_shape = row_shape.to_vec();
        Ok(Self {
            name: table,
            row_shape,
            initializer,
            options,
            segments,
            rule: OnceLock::new(),
            steps: Steps::default(),
        })
    }

    /// The name, as in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        match &self.segments {
            Segments::F32(_) => DType::F32,
            Segments::F64(_) => DType::F64,
        }
    }

    /// The shape of a row.
    pub fn row_dims(&self) -> &[usize] {
        &self.row_shape
    }

    /// How many ids have a row.
    pub fn len(&self) -> usize {
        with_segments!(&self.segments, all => all.iter().map(|segment| segment.read().len()).sum())
    }

    /// Whether no id has a row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Of how many ids without a row it is known how often they came.
    pub fn waiting(&self) -> usize {
        with_segments!(&self.segments, all => all.iter().map(|segment| segment.read().waiting()).sum())
    }

    /// How many bytes rows, slots and the index take.
    pub fn bytes(&self) -> usize {
        with_segments!(&self.segments, all => all.iter().map(|segment| segment.read().bytes()).sum())
    }

    /// The rows of these ids, in this order; of those that have none, their initial values.
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
                    match segment.row(*id) {
                        Some(row) => out.copy_from_slice(&row[..width]),
                        None => table.initializer.fill_row(*id, out),
                    }
                }
            }
        }
        // An error where there are more of them than memory has.
        let mut out = HostTensor::zeros(self.dtype(), self.rows_shape(ids.len()))?;
        with_segments!(&self.segments, all => fill(all, self, ids, &mut out));
        Ok(out)
    }

    /// Removes the rows that were not pushed to in the [`max_age`](DynamicOptions::max_age) steps before `now`, and says how
    /// many they were. None where there is no such limit.
    ///
    /// Pushes do so by themselves, in each eighth of `max_age` steps once. One segment after another is locked.
    pub fn evict(&self, now: u64) -> usize {
        let Some(oldest) = self.options.max_age.and_then(|age| now.checked_sub(age)) else { return 0 };
        with_segments!(&self.segments, all => {
            all.iter().map(|segment| segment.write().evict_unused_since(stamp(oldest))).sum()
        })
    }

    pub(crate) fn initializer(&self) -> Initializer {
        self.initializer
    }

    pub(crate) fn options(&self) -> DynamicOptions {
        self.options
    }

    /// The rule by which gradients are applied, if it has one.
    pub(crate) fn rule(&self) -> Option<&Arc<dyn Rule>> {
        self.rule.get().map(|bound| &bound.rule)
    }

    /// Returns the bytes of values of some rows.
    pub(crate) fn bytes_of_rows(&self, rows: usize) -> usize {
        self.width().saturating_mul(self.dtype().bytes().unwrap_or(8)).saturating_mul(rows)
    }

    /// Returns the bytes that the slots of a rule take.
    pub(crate) fn bytes_of_slots(&self, slots: usize) -> usize {
        self.bytes_of_rows(self.len().next_multiple_of(CHUNK)).saturating_mul(slots)
    }

    /// Returns the bytes that rows of these ids take which are not there yet: an upper bound or, if `exact`, by a lookup of each.
    pub(crate) fn bytes_of_new(&self, ids: &[i64], exact: bool) -> usize {
        let slots = self.rule.get().map_or(0, |bound| bound.slots.len());
        let rows = with_segments!(&self.segments, all => {
            if exact {
                let split = split(all.len(), ids);
                let of = |(i, segment): (usize, &RwLock<Segment<_>>)| segment.read().chunk_rows(split.of(i));
                all.iter().enumerate().map(of).sum()
            } else {
                ids.len().saturating_add(all.len().min(ids.len()) * CHUNK)
            }
        });
        // In addition, an entry in the index, or how often it came.
        self.bytes_of_rows(rows).saturating_mul(1 + slots).saturating_add(ids.len() * ENTRY)
    }

    fn width(&self) -> usize {
        self.row_shape.iter().product()
    }

    /// The shape of so many rows.
    fn rows_shape(&self, rows: usize) -> Vec<usize> {
        [rows].iter().chain(&self.row_shape).copied().collect()
    }

    /// These ids, and a row of values for each.
    fn check_rows(&self, operation: &'static str, ids: &[i64], values: &HostTensor) -> Result<()> {
        let (expected, table) = (self.rows_shape(ids.len()), self.name.clone());
        if values.dims() != expected {
            let found = values.dims().to_vec();
            return Err(Error::Shape { operation, table, expected, found });
        }
        let (expected, found) = (self.dtype(), values.dtype());
        if expected == found { Ok(()) } else { Err(Error::DType { operation, table, expected, found }) }
    }
}

/// Sorts ids by segment, of which there are a power of two.
fn split(segments: usize, ids: &[i64]) -> Split<i64> {
    let places: Vec<_> = ids.iter().map(|id| (segment_of(segments, *id), *id)).collect();
    Split::new(segments, &places)
}

/// The segment of an id. It takes bits of the hash that the index of a segment looks at last.
fn segment_of(segments: usize, id: i64) -> usize {
    (hash(id) >> 40) as usize & (segments - 1)
}

/// Another hash than that by which ids are partitioned over shards.
fn hash(id: i64) -> u64 {
    mix(id.cast_unsigned() ^ 0x6a09_e667_f3bc_c909)
}

/// The elements of a tensor that has been checked.
fn elements<T: Element>(tensor: &HostTensor) -> &[T] {
    tensor.as_slice().unwrap_or_default()
}
