//! The pipeline as a data structure: operations and their parameters.
//!
//! Nothing runs here. A pipeline can be inspected and rewritten before it is started. [`Operation::start`] then
//! creates the chain of stages that runs it.

use crate::chunk::Chunk;
use crate::hand::HandSlot;
use crate::stage::Stage;
use crate::{Cardinality, ElementSpec, Files, Result, spec};
use distribute_tensor::{Leaf, Tree};
use std::sync::Arc;

/// A pipeline: an operation and, through its inputs, all operations before it.
pub(crate) type Pipeline = Arc<dyn Operation>;

/// One operation with its parameters: a source, or a transformation of the pipelines that are its inputs.
pub(crate) trait Operation: Send + Sync {
    /// Returns the pipelines that the operation reads; empty for a source.
    fn inputs(&self) -> &[Pipeline] {
        &[]
    }

    /// Returns the same operation with each input replaced by the result of `f`; `None` for a source.
    fn over(&self, _f: &mut dyn FnMut(&Pipeline) -> Pipeline) -> Option<Pipeline> {
        None
    }

    /// Returns a description of the operation and its parameters, in one line.
    fn describe(&self) -> String;

    /// Returns a description of everything that determines the elements and their order. If two pipelines have
    /// different descriptions, a position in one may refer to a different element in the other, so it is rejected. The
    /// description excludes files, which are compared one by one. It is empty if the operation affects neither elements
    /// nor order.
    fn identity(&self) -> String {
        self.describe()
    }

    /// Returns a description of which records are skipped because they are broken; `None` if none are. The description
    /// is added to the [`identity`](Self::identity). A position of the same pipeline without skipping is accepted as
    /// well, because that pass met no broken record.
    fn skipping(&self) -> Option<String> {
        None
    }

    /// Returns the files that the operation reads; `None` if it is not a source of files. They are not part of
    /// [`identity`](Self::identity): a position has a [`FileList`](crate::FileList), and a cache is bound to certain
    /// files.
    fn files(&self) -> Option<&Files> {
        None
    }

    /// Returns the number of elements of a pass, as far as it is known.
    fn cardinality(&self) -> Cardinality;

    /// Returns whether elements are batches. By default, this is the same as for the first input.
    fn batching(&self) -> Batching {
        self.inputs().first().map_or(Batching::Unknown, |input| input.batching())
    }

    /// Returns the dtypes and shapes of the elements; `None` if they are not known. `look` determines whether an
    /// element may be computed to find them. By default, they are the same as for the first input.
    fn spec(&self, look: Look) -> Option<ElementSpec> {
        self.inputs().first()?.spec(look)
    }

    /// Returns the pipeline that replaces this operation if only the first element is computed. Its elements have the
    /// same spec, but it needs no buffer, thread or cache, and takes no element away from later passes. Returns `None`
    /// if this operation needs no replacement, except for its inputs.
    fn lean(&self) -> Option<Pipeline> {
        None
    }

    /// Checks that the operation's own parameters are in range.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the behavior of the operation if each worker reads only some of the files.
    fn sharding(&self) -> Sharding;

    /// Returns the pipeline that replaces this operation and its inputs in a worker's shard. `None` means that only
    /// the inputs are sharded. Sources of files, shard hints, and operations that differ on a shard, such as a cache
    /// file, are replaced.
    fn shard(&self, _shard: &WorkerShard) -> Option<Pipeline> {
        None
    }

    /// Returns whether the operation creates the same elements in the same order in every pass with the same number, if
    /// its inputs do.
    fn repeatable(&self) -> bool {
        true
    }

    /// Returns whether a pass reads each of its inputs once, from the start. Files cannot be dealt to an operation that
    /// reads them again, or that keeps elements for later passes.
    fn reads_once(&self) -> bool {
        true
    }

    /// Returns whether the elements are, or are made from, names of files that a later operation opens.
    fn names_files(&self) -> bool {
        self.inputs().iter().any(|input| input.names_files())
    }

    /// Returns whether the operation takes many elements from its input before they are needed.
    fn takes_ahead(&self) -> bool {
        false
    }

    /// Returns whether reading the pipeline is worth a thread. This is true if it contains files or user functions,
    /// unless a `prefetch` or a filled cache in memory comes after them.
    fn costly(&self) -> bool {
        self.inputs().iter().any(|input| input.costly())
    }

    /// Starts a pass, and returns its last stage. `epoch` is the number of the pass, which selects the orders of
    /// shuffles.
    fn start(&self, epoch: u64) -> Box<dyn Stage>;
}

/// Defines the methods of `Operation` that relate to inputs, for a type that is `Clone` and has one input. The input is
/// the field `input` or the given field.
macro_rules! one_input {
    () => {
        $crate::pipeline::one_input!(input);
    };
    ($($input:ident).+) => {
        fn inputs(&self) -> &[$crate::pipeline::Pipeline] {
            std::slice::from_ref(&self.$($input).+)
        }

        fn over(
            &self,
            f: &mut dyn FnMut(&$crate::pipeline::Pipeline) -> $crate::pipeline::Pipeline,
        ) -> Option<$crate::pipeline::Pipeline> {
            let mut operation = self.clone();
            operation.$($input).+ = f(&self.$($input).+);
            Some(std::sync::Arc::new(operation))
        }
    };
}
pub(crate) use one_input;

/// Whether the elements of a dataset are batches, as far as the pipeline determines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// The elements are batches of this size. Only the last batch of the data or of an epoch may be shorter.
    Batches(usize),
    /// It is unknown whether the elements are batches, because a generator, or a `map` after the batching, may create
    /// elements of any size.
    Unknown,
    /// The elements are not batches: they are slices, numbers of a range, or rows of a file that have not been
    /// batched.
    Elements,
}

impl Batching {
    /// Returns the value that holds for elements of either dataset.
    pub(crate) fn or(self, other: Batching) -> Batching {
        if self == other { self } else { Batching::Unknown }
    }
}

/// Whether an element may be computed to determine the spec.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// No element may be computed. The spec then holds for every element.
    Never,
    /// The first element may be computed, if nothing else determines the spec. Other elements may have different
    /// sizes.
    AtFirst,
}

impl Look {
    /// Returns the spec of the first element of a pipeline; `None` if no element may be computed, or computing it
    /// fails.
    pub(crate) fn at(self, pipeline: &Pipeline) -> Option<ElementSpec> {
        match self {
            Look::Never => None,
            Look::AtFirst => spec::of(&first(pipeline)?),
        }
    }
}

/// Computes the first element of a pipeline; `None` if there is none or it fails.
pub(crate) fn first(pipeline: &Pipeline) -> Option<Tree<Leaf>> {
    let mut stage = lean(pipeline).start(0);
    stage.next(1)?.and_then(Chunk::into_values).ok()?.into_iter().next()
}

/// Returns a pipeline for computing only the first element of the given one.
pub(crate) fn lean(pipeline: &Pipeline) -> Pipeline {
    match pipeline.lean() {
        Some(other) => lean(&other),
        None => pipeline.over(&mut lean).unwrap_or_else(|| pipeline.clone()),
    }
}

/// The behavior of an operation if each worker reads only some of the files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharding {
    /// The operation reads this many files, and each worker takes some of them.
    Files(usize),
    /// The operation is a source that does not read files, so it cannot be sharded.
    Source,
    /// The results on all workers' shards together are the result on all elements.
    Through,
    /// The operation counts, pairs or drops elements, so its result on a shard is not a shard of its result.
    Whole,
}

/// The part of a pipeline's input that a worker takes.
pub(crate) enum WorkerShard {
    /// The files `index`, `index + workers`, …
    Files { workers: usize, index: usize },
    /// The elements `index`, `index + workers`, … at the user's shard hint.
    Hint { workers: usize, index: usize },
    /// The files that the worker is dealt during one pass.
    Dealt(HandSlot),
}

/// Calls `f` with every operation of a pipeline, inputs first.
pub(crate) fn visit<'a>(pipeline: &'a Pipeline, f: &mut dyn FnMut(&'a dyn Operation)) {
    pipeline.inputs().iter().for_each(|input| visit(input, f));
    f(pipeline.as_ref());
}

/// Returns the pipeline with every source of files, or every shard hint, replaced by a worker's shard.
pub(crate) fn shard(pipeline: &Pipeline, worker: &WorkerShard) -> Pipeline {
    match pipeline.shard(worker) {
        Some(sharded) => sharded,
        None => pipeline.over(&mut |input| shard(input, worker)).unwrap_or_else(|| pipeline.clone()),
    }
}

/// Returns a description of an operation whose elements or order may differ between two passes with the same number;
/// `None` if there is none.
pub(crate) fn unrepeatable(pipeline: &Pipeline) -> Option<String> {
    if pipeline.repeatable() {
        pipeline.inputs().iter().find_map(unrepeatable)
    } else {
        Some(pipeline.describe())
    }
}

/// Returns a checksum of everything that determines the elements and their order. `skipping` is whether the checksum
/// includes the [skipping](Operation::skipping) of broken records.
pub(crate) fn checksum(pipeline: &Pipeline, skipping: bool) -> u32 {
    let mut text = String::new();
    visit(pipeline, &mut |operation| {
        let identity = operation.identity();
        if !identity.is_empty() {
            text += &identity;
            text += &operation.skipping().filter(|_| skipping).unwrap_or_default();
            text.push('\n');
        }
    });
    crc32c::crc32c(text.as_bytes())
}

/// Returns a checksum of everything that determines after which elements a source needs its next file, such as sizes of
/// buffers and numbers of threads. It does not cover the names of files.
pub(crate) fn pull_checksum(pipeline: &Pipeline) -> u32 {
    let mut text = String::new();
    visit(pipeline, &mut |operation| {
        let identity = operation.identity();
        if !identity.is_empty() {
            text += &if operation.inputs().is_empty() { identity } else { operation.describe() };
            text.push('\n');
        }
    });
    crc32c::crc32c(text.as_bytes())
}

/// Checks that the parameters of all operations are in range, from the sources on.
pub(crate) fn check(pipeline: &Pipeline) -> Result<()> {
    pipeline.inputs().iter().try_for_each(check)?;
    pipeline.check()
}

/// Returns a description of all operations from the sources on, one per line, each with the number of elements
/// after it. All inputs except the last are indented.
pub(crate) fn explain(pipeline: &Pipeline) -> String {
    let mut text = String::new();
    for (i, input) in pipeline.inputs().iter().enumerate() {
        let last = i + 1 == pipeline.inputs().len();
        for line in explain(input).lines() {
            text += if last { "" } else { "  | " };
            text += line;
            text.push('\n');
        }
    }
    text + &format!("{} ({})\n", pipeline.describe(), pipeline.cardinality())
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
    fn batching_is_found_through_operations_that_keep_it() {
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
