//! A pipeline as data: which operations, with which parameters.
//!
//! Nothing runs here. A pipeline is looked at ([`cardinality`](Pipeline::cardinality),
//! [`batching`](Pipeline::batching), [`explain`](Pipeline::explain)) and can be rewritten before it is started;
//! [`start`](Pipeline::start) makes the chain of stages that runs it.

use crate::csv::CsvFile;
use crate::rows::Rows;
use crate::stage::{self, Stage};
use crate::{Cardinality, Error, Result};
use distribute_tensor::{Leaf, Tree};
use std::sync::Arc;

/// A user's function from element to element, with the element's index.
pub(crate) type MapFn = Arc<dyn Fn(Tree<Leaf>, usize) -> Result<Tree<Leaf>> + Send + Sync>;
/// A user's choice among elements, with the element's index.
pub(crate) type FilterFn = Arc<dyn Fn(Tree<Leaf>, usize) -> Result<bool> + Send + Sync>;
/// Starts one pass over a user's iterator.
pub(crate) type GeneratorFn =
    Arc<dyn Fn() -> Box<dyn Iterator<Item = Result<Tree<Leaf>>> + Send> + Send + Sync>;

/// One operation and, through its input, all those before it.
pub(crate) enum Pipeline {
    /// Slices of a nest, or a range.
    Rows(Arc<Rows>),
    Items(Arc<Vec<Tree<Leaf>>>),
    Generator(GeneratorFn),
    Csv(Arc<CsvFile>),
    Map {
        input: Arc<Pipeline>,
        function: MapFn,
    },
    Filter {
        input: Arc<Pipeline>,
        predicate: FilterFn,
    },
    Batch {
        input: Arc<Pipeline>,
        size: usize,
        drop_remainder: bool,
    },
    Shuffle {
        input: Arc<Pipeline>,
        buffer: usize,
        seed: u64,
    },
    /// `times: None` repeats forever.
    Repeat {
        input: Arc<Pipeline>,
        times: Option<usize>,
    },
    Take {
        input: Arc<Pipeline>,
        count: usize,
    },
    Skip {
        input: Arc<Pipeline>,
        count: usize,
    },
    Prefetch {
        input: Arc<Pipeline>,
        buffer: usize,
    },
}

/// Whether the elements of a dataset are batches, as far as the pipeline tells (DIST-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// Batches of this size, but for a shorter last one.
    Batches(usize),
    /// The pipeline doesn't tell: a generator or a `map` after the batching may have made batches of any size.
    Unknown,
    /// Single elements: slices, a range or rows of a file that nothing has batched.
    Elements,
}

impl Pipeline {
    /// The operation before this one.
    pub(crate) fn input(&self) -> Option<&Arc<Pipeline>> {
        match self {
            Pipeline::Rows(_) | Pipeline::Items(_) | Pipeline::Generator(_) | Pipeline::Csv(_) => None,
            Pipeline::Map { input, .. }
            | Pipeline::Filter { input, .. }
            | Pipeline::Batch { input, .. }
            | Pipeline::Shuffle { input, .. }
            | Pipeline::Repeat { input, .. }
            | Pipeline::Take { input, .. }
            | Pipeline::Skip { input, .. }
            | Pipeline::Prefetch { input, .. } => Some(input),
        }
    }

    pub(crate) fn cardinality(&self) -> Cardinality {
        match self {
            Pipeline::Rows(rows) => Cardinality::Finite(rows.len()),
            Pipeline::Items(items) => Cardinality::Finite(items.len()),
            Pipeline::Generator(_) | Pipeline::Csv(_) => Cardinality::Unknown,
            Pipeline::Map { input, .. }
            | Pipeline::Shuffle { input, .. }
            | Pipeline::Prefetch { input, .. } => input.cardinality(),
            Pipeline::Filter { input, .. } => match input.cardinality() {
                Cardinality::Finite(0) => Cardinality::Finite(0),
                Cardinality::Infinite => Cardinality::Infinite,
                _ => Cardinality::Unknown,
            },
            Pipeline::Batch { input, size, drop_remainder } => {
                input.cardinality().map(|n| match drop_remainder {
                    true => n / (*size).max(1),
                    false => n.div_ceil((*size).max(1)),
                })
            }
            Pipeline::Repeat { input, times: Some(times) } => match (input.cardinality(), times) {
                (_, 0) => Cardinality::Finite(0),
                (cardinality, times) => cardinality.map(|n| n.saturating_mul(*times)),
            },
            Pipeline::Repeat { input, times: None } => match input.cardinality() {
                Cardinality::Finite(0) => Cardinality::Finite(0),
                _ => Cardinality::Infinite,
            },
            Pipeline::Take { input, count } => match input.cardinality() {
                _ if *count == 0 => Cardinality::Finite(0),
                Cardinality::Infinite => Cardinality::Finite(*count),
                other => other.map(|n| n.min(*count)),
            },
            Pipeline::Skip { input, count } => input.cardinality().map(|n| n.saturating_sub(*count)),
        }
    }

    /// Walks from the end to the operation that decides whether elements are batches.
    pub(crate) fn batching(&self) -> Batching {
        match self {
            Pipeline::Batch { size, .. } => Batching::Batches(*size),
            Pipeline::Rows(_) | Pipeline::Csv(_) => Batching::Elements,
            Pipeline::Items(_) | Pipeline::Generator(_) | Pipeline::Map { .. } => Batching::Unknown,
            Pipeline::Filter { input, .. }
            | Pipeline::Shuffle { input, .. }
            | Pipeline::Repeat { input, .. }
            | Pipeline::Take { input, .. }
            | Pipeline::Skip { input, .. }
            | Pipeline::Prefetch { input, .. } => input.batching(),
        }
    }

    /// Whether all parameters are in their ranges.
    pub(crate) fn check(&self) -> Result<()> {
        let zero = |operation, parameter| {
            Err(Error::Parameter { operation, parameter, found: "0".into(), expected: "at least 1" })
        };
        match self {
            Pipeline::Batch { size: 0, .. } => zero("batch", "the size"),
            Pipeline::Shuffle { buffer: 0, .. } => zero("shuffle", "the buffer"),
            _ => self.input().map_or(Ok(()), |input| input.check()),
        }
    }

    /// This operation and its parameters.
    pub(crate) fn describe(&self) -> String {
        match self {
            Pipeline::Rows(rows) => match rows.as_ref() {
                Rows::Memory { tree, .. } => format!("slices of {}", tree.describe(&describe_leaf)),
                Rows::Range { start, len } => format!("range {start}..{}", i128::from(*start) + *len as i128),
            },
            Pipeline::Items(_) => "items in memory".into(),
            Pipeline::Generator(_) => "generator".into(),
            Pipeline::Csv(file) => file.describe(),
            Pipeline::Map { .. } => "map".into(),
            Pipeline::Filter { .. } => "filter".into(),
            Pipeline::Batch { size, drop_remainder: false, .. } => {
                format!("batch {size}, last one may be shorter")
            }
            Pipeline::Batch { size, drop_remainder: true, .. } => format!("batch {size}, remainder dropped"),
            Pipeline::Shuffle { buffer, seed, .. } => format!("shuffle, buffer {buffer}, seed {seed}"),
            Pipeline::Repeat { times: Some(times), .. } => format!("repeat {times} times"),
            Pipeline::Repeat { times: None, .. } => "repeat forever".into(),
            Pipeline::Take { count, .. } => format!("take {count}"),
            Pipeline::Skip { count, .. } => format!("skip {count}"),
            Pipeline::Prefetch { buffer, .. } => format!("prefetch {buffer}"),
        }
    }

    /// All operations from the source on, one a line, with the number of elements behind each.
    pub(crate) fn explain(&self) -> String {
        let line = format!("{} ({})\n", self.describe(), self.cardinality());
        self.input().map_or(String::new(), |input| input.explain()) + &line
    }

    /// The stages of one pass. `epoch` selects the orders of the shuffles in it.
    pub(crate) fn start(self: &Arc<Self>, epoch: u64) -> Box<dyn Stage> {
        match self.as_ref() {
            Pipeline::Rows(rows) => Box::new(stage::source::RowsStage::new(rows.clone())),
            Pipeline::Items(items) => Box::new(stage::source::ItemsStage::new(items.clone())),
            Pipeline::Generator(make) => Box::new(stage::source::GeneratorStage::new(make.clone())),
            Pipeline::Csv(file) => Box::new(crate::csv::CsvStage::new(file.clone())),
            Pipeline::Map { input, function } => {
                Box::new(stage::map::MapStage::new(input.start(epoch), function.clone()))
            }
            Pipeline::Filter { input, predicate } => {
                Box::new(stage::filter::FilterStage::new(input.start(epoch), predicate.clone()))
            }
            Pipeline::Batch { input, size, drop_remainder } => {
                Box::new(stage::batch::BatchStage::new(input.start(epoch), *size, *drop_remainder))
            }
            Pipeline::Shuffle { input, buffer, seed } => {
                Box::new(stage::shuffle::ShuffleStage::new(input.start(epoch), *buffer, *seed, epoch))
            }
            Pipeline::Repeat { input, times } => {
                Box::new(stage::repeat::RepeatStage::new(input.clone(), *times, epoch))
            }
            Pipeline::Take { input, count } => {
                Box::new(stage::take::TakeStage::new(input.start(epoch), *count))
            }
            Pipeline::Skip { input, count } => {
                Box::new(stage::take::SkipStage::new(input.start(epoch), *count))
            }
            Pipeline::Prefetch { input, buffer } => match buffer {
                0 => input.start(epoch),
                _ => Box::new(stage::prefetch::PrefetchStage::new(input.start(epoch), *buffer)),
            },
        }
    }
}

fn describe_leaf(leaf: &Leaf) -> String {
    match leaf {
        Leaf::Host(tensor) => format!("{} {:?}", tensor.dtype(), tensor.dims()),
        other => other.kind().into(),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Batching, Cardinality, Dataset};

    #[test]
    fn cardinality_follows_each_operation() {
        let finite = Cardinality::Finite;
        let range = Dataset::range(10);
        assert_eq!(range.cardinality(), finite(10));
        assert_eq!(range.batch(4).cardinality(), finite(3));
        assert_eq!(range.batch_exact(4).cardinality(), finite(2));
        assert_eq!(range.repeat(3).cardinality(), finite(30));
        assert_eq!(range.repeat(usize::MAX).cardinality(), finite(usize::MAX));
        assert_eq!(range.repeat_forever().cardinality(), Cardinality::Infinite);
        assert_eq!(range.repeat_forever().take(7).cardinality(), finite(7));
        assert_eq!(range.repeat_forever().repeat(0).cardinality(), finite(0));
        assert_eq!(range.take(0).repeat_forever().cardinality(), finite(0));
        assert_eq!(range.take(12).skip(4).shuffle(3, 1).prefetch(2).cardinality(), finite(6));
        assert_eq!(range.skip(12).cardinality(), finite(0));
        assert_eq!(range.map(|x| x).cardinality(), finite(10));
        assert_eq!(range.filter(|x| *x > 3).cardinality(), Cardinality::Unknown);
        assert_eq!(range.repeat_forever().filter(|x| *x > 3).cardinality(), Cardinality::Infinite);
        assert_eq!(Dataset::range(5..5).filter(|_| true).cardinality(), finite(0));
    }

    #[test]
    fn batching_is_found_through_what_keeps_it() {
        let batched = Dataset::range(10).batch(4);
        assert_eq!(batched.batching(), Batching::Batches(4));
        assert_eq!(
            batched.shuffle(2, 1).repeat(2).take(3).skip(1).prefetch(1).batching(),
            Batching::Batches(4)
        );
        assert_eq!(batched.batch(2).batching(), Batching::Batches(2));
        assert_eq!(batched.map(|x| x).batching(), Batching::Unknown);
        assert_eq!(Dataset::range(10).shuffle(10, 1).batching(), Batching::Elements);
        assert_eq!(Dataset::from_items(vec![1i64]).batching(), Batching::Unknown);
    }

    #[test]
    fn explain_prints_the_plan_from_the_source_on() {
        let data = Dataset::range(2..12).shuffle(10, 42).batch(4).repeat_forever().prefetch(2);
        let expected = "range 2..12 (10 elements)
shuffle, buffer 10, seed 42 (10 elements)
batch 4, last one may be shorter (3 elements)
repeat forever (never ends)
prefetch 2 (never ends)
";
        assert_eq!(data.explain(), expected);
        let data = Dataset::from_slices((distribute_tensor::HostTensor::vector(vec![1f32, 2.]),)).unwrap();
        assert_eq!(data.explain(), "slices of (float32 [2],) (2 elements)\n");
    }

    #[test]
    fn a_zero_that_makes_no_sense_is_an_error_when_the_pass_starts() {
        let error = Dataset::range(3).batch(0).repeat(2).check().unwrap_err();
        assert_eq!(error.to_string(), "batch: the size is 0, but must be at least 1");
        let first = Dataset::range(3).shuffle(0, 1).iter().next().unwrap();
        assert_eq!(first.unwrap_err().to_string(), "shuffle: the buffer is 0, but must be at least 1");
    }
}
