//! A dataset that is sharded over workers and split over replicas, step by step.
//!
//! | module | contents |
//! |---|---|
//! | `decide` | the decision about how a pipeline is sharded over workers |
//! | `parts`, `batch_split` | the pipeline of a worker, and its per-replica batches |
//! | `part` | the data of a worker that does not wait for other workers |
//! | `replica_range` | the batches of some of the replicas |
//! | `steps`, `pass`, `lockstep` | the steps of one worker, its public pass, and all workers on one thread |
//! | `deals`, `dealt_pieces` | files that are dealt during a pass: who reads which; the batches of one worker |
//! | `prepare` | a function that is applied to each per-replica batch before its step |
//! | `position`, `resume`, `file_list` | positions; passes that resume at them; the files, which must not have changed |
//! | `function`, `context` | datasets that a user's function creates, and the argument of that function |
//! | `file_deck` | files that are dealt one by one, to workers that are free |
//! | `explain` | the description of a distribution as text |

mod batch_split;
mod context;
mod deals;
mod dealt_pieces;
mod decide;
mod explain;
mod file_deck;
mod file_list;
mod function;
mod lockstep;
mod part;
mod parts;
mod pass;
mod position;
mod prepare;
mod replica_range;
mod resume;
mod steps;
#[cfg(test)]
mod tests;

#[doc(alias = "tf.distribute.InputContext")]
pub use context::InputContext;
pub use deals::Deals;
pub use file_deck::{DealtFile, DeckPosition, FileDeck};
pub use file_list::{FileDifference, FileList};
pub use lockstep::Lockstep;
pub use pass::WorkerPass;
pub use position::{Origin, Position};

use crate::pipeline::{self, Pipeline};
use crate::plan::ends::UnevenEnds;
use crate::plan::layout::Layout;
use crate::plan::policy::{AutoShardPolicy, Decision};
use crate::{Batching, Cause, Dataset, Error, Result, SplitRule};
use batch_split::BatchSplit;
use deals::Dealer;
use decide::decide;
use distribute_log::warn_or_stderr;
use distribute_tensor::{Leaf, Nest, Tree};
use function::Function;
use parts::ShardedPipeline;
use pass::Dealing;
use prepare::Prepare;
use std::ops::Range;
use std::sync::Arc;

/// The options for distributing a dataset.
#[doc(alias = "tf.data.experimental.DistributeOptions")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DistributeOptions {
    /// The policy by which the dataset is sharded over workers.
    pub policy: AutoShardPolicy,
    /// The rule by which batches are split over replicas.
    pub rule: SplitRule,
    /// The treatment of the end of the data, when only some replicas have data left.
    pub ends: UnevenEnds,
    /// The number of steps whose batches are prepared early, on a separate thread. It has an effect only if reading the
    /// dataset is worth a thread: if there are files or user functions without a [`prefetch`](Dataset::prefetch) after
    /// them, if [preparing](Distribution::prepared) batches is costly, or if files are [dealt](AutoShardPolicy::Dealt).
    pub prefetch: usize,
}

/// A dataset that is sharded over workers and split over replicas.
///
/// A distribution is a plan, which is the same on every worker. [`worker`](Distribution::worker) starts the pass of one
/// worker. [`lockstep`](Distribution::lockstep) runs all workers together, to inspect the data of each replica.
///
/// ```
/// use distribute_data::{Dataset, DistributeOptions, Distribution, Layout};
///
/// let data = Dataset::range(10).batch(4);
/// let plan = Distribution::new(&data, Layout { workers: 2, replicas: 2 }, DistributeOptions::default())?;
/// let mut ids = Vec::new();
/// for step in plan.lockstep(0)? {
///     for worker in step? {
///         ids.extend(worker.into_iter().map(|piece| piece.as_slice::<i64>().unwrap().to_vec()));
///     }
/// }
/// assert_eq!(ids, [[0], [1], [2], [3], [4], [5], [6], [7]].map(Vec::from).into_iter()
///     .chain([vec![8], vec![9], vec![], vec![]]).collect::<Vec<_>>());
/// # Ok::<(), distribute_data::Error>(())
/// ```
pub struct Distribution<T> {
    source: Source<T>,
    layout: Layout,
    options: DistributeOptions,
    prepare: Option<Prepare>,
    /// The replicas that this process has; `None` if it has all replicas of its workers.
    part: Option<Range<usize>>,
}

impl<T> std::fmt::Debug for Distribution<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Distribution")
            .field("layout", &self.layout)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The datasets that are distributed.
enum Source<T> {
    /// Global batches, sharded by a policy.
    Dataset(Arc<ShardedPipeline>),
    /// Datasets that a user's function creates for each worker, or for each replica.
    Function(Arc<Function<T>>),
}

impl<T> Clone for Distribution<T> {
    fn clone(&self) -> Self {
        let source = match &self.source {
            Source::Dataset(sharded) => Source::Dataset(sharded.clone()),
            Source::Function(function) => Source::Function(function.clone()),
        };
        Self {
            source,
            layout: self.layout,
            options: self.options.clone(),
            prepare: self.prepare.clone(),
            part: self.part.clone(),
        }
    }
}

impl<T: Nest> Distribution<T> {
    /// Distributes a dataset whose elements are *global* batches. Logs a warning if [`AutoShardPolicy::Auto`] finds
    /// files, but cannot shard them, so that every worker reads all of them.
    ///
    /// # Errors
    /// All errors are returned before anything is read, and are the same on every worker.
    /// - [`Error::NotBatched`]: the elements are not batched. With TensorFlow's rule and a single replica, they need
    ///   not be.
    /// - [`Error::Unshardable`]: the policy shards by files over several workers, but a source does not read files.
    /// - [`Error::TooFewFiles`]: the policy shards by files, but a source has fewer files than there are workers.
    /// - [`Error::Hinted`]: the dataset has a shard hint, but the policy is not [`Hint`](AutoShardPolicy::Hint).
    /// - [`Error::NotDealt`]: the policy deals files, but there is not exactly one source of them, an operation counts
    ///   elements or reads them again, or [`UnevenEnds::Drop`] finds no known batch size.
    /// - [`Error::Unordered`]: workers that read the same batches could see them in different orders.
    /// - [`Error::Parameter`]: `workers` or `replicas` in the layout is 0 or too large.
    /// - Any error of [`Dataset::check`].
    pub fn new(dataset: &Dataset<T>, layout: Layout, options: DistributeOptions) -> Result<Self> {
        Self::of_pipeline(dataset.pipeline().clone(), layout, options)
    }

    /// Returns the same dataset, distributed over a different layout with the same options.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new).
    ///
    /// ```
    /// use distribute_data::{Dataset, DistributeOptions, Distribution, Layout};
    ///
    /// let one = Distribution::new(&Dataset::range(10).batch(4), Layout::one_worker(1), DistributeOptions::default())?;
    /// let three = one.over(Layout { workers: 3, replicas: 1 })?;
    /// let mut rows = Vec::new();
    /// for step in three.lockstep(0)? {
    ///     rows.push(step?.iter().map(|pieces| pieces[0].dims()[0]).collect::<Vec<_>>());
    /// }
    /// assert_eq!(rows, [[2, 1, 1], [2, 1, 1], [1, 1, 0]]);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    pub fn over(&self, layout: Layout) -> Result<Self> {
        match &self.source {
            Source::Dataset(sharded) => {
                let over = Self::of_pipeline(sharded.pipeline.clone(), layout, self.options.clone())?;
                Ok(Self { prepare: self.prepare.clone(), ..over })
            }
            Source::Function(_) => {
                layout.check()?;
                Ok(Self { layout, part: None, ..self.clone() })
            }
        }
    }

    fn of_pipeline(pipeline: Pipeline, layout: Layout, options: DistributeOptions) -> Result<Self> {
        layout.check()?;
        let decision = decide(&pipeline, options.policy, options.rule, layout.workers)?;
        if decision.fell_back {
            warn_or_stderr(|| {
                tracing::warn!(
                    why = decision.why,
                    "every worker reads all files, and takes its rows of each batch"
                );
            });
        }
        let sharded = ShardedPipeline::new(pipeline, decision, layout.workers);
        // TensorFlow passes single elements to a single replica.
        if sharded.pipeline.batching() == Batching::Elements
            && (options.rule != SplitRule::TensorFlow || layout.total() > 1)
        {
            return Err(Error::NotBatched { what: "the elements of the dataset are not batches".into() });
        }
        sharded.check()?;
        if sharded.decision.taken == AutoShardPolicy::Dealt
            && options.ends == UnevenEnds::Drop
            && !matches!(sharded.pipeline.batching(), Batching::Batches(_))
        {
            let why =
                "UnevenEnds::Drop needs batches whose size the pipeline determines; call `.batch(n)` last";
            return Err(Error::NotDealt { why: why.into() });
        }
        if layout.workers > 1
            && sharded.decision.taken == AutoShardPolicy::Data
            && let Some(operation) = pipeline::unrepeatable(&sharded.pipeline)
        {
            return Err(Error::Unordered { operation });
        }
        Ok(Self { source: Source::Dataset(Arc::new(sharded)), layout, options, prepare: None, part: None })
    }

    /// Distributes the datasets that `make` returns for each worker, or for each replica if `per_replica` is `true`.
    /// The datasets must be sharded according to the context, and batched for one replica: each replica takes one
    /// element per step. `make` is called once for each input pipeline of this process, when it is first needed.
    ///
    /// # Errors
    /// - [`Error::Parameter`]: `workers` or `replicas` in the layout is 0 or too large.
    pub fn from_function(
        layout: Layout,
        per_replica: bool,
        options: DistributeOptions,
        make: impl Fn(InputContext) -> Result<Dataset<T>, Cause> + Send + Sync + 'static,
    ) -> Result<Self> {
        layout.check()?;
        let source = Source::Function(Arc::new(Function::new(per_replica, make)));
        Ok(Self { source, layout, options, prepare: None, part: None })
    }

    /// Applies `prepare` to each per-replica batch, for example to copy it to a device. The arguments of `prepare` are
    /// the index of the local replica and the batch. The replica receives the result.
    ///
    /// If steps are [prepared early](DistributeOptions::prefetch), `prepare` runs on the thread that reads the steps;
    /// otherwise it runs when a step is requested. `costly` means that `prepare` alone is worth such a thread, whatever
    /// the cost of reading. An error or a panic of `prepare` ends the pass with [`Error::Piece`], in the step to which
    /// the batch belongs.
    ///
    /// An empty batch for a replica at the end is derived from a batch that may have been prepared for another replica.
    /// The empty batch is prepared again, before the workers decide whether they take the step.
    ///
    /// ```
    /// use distribute_data::{Dataset, DistributeOptions, Distribution, Layout};
    ///
    /// let data = Dataset::range(6).batch(4);
    /// let options = DistributeOptions { prefetch: 1, ..Default::default() };
    /// let plan = Distribution::new(&data, Layout::one_worker(2), options)?;
    /// let (sender, prepared) = std::sync::mpsc::channel();
    /// let plan = plan.prepared(true, move |replica, piece| {
    ///     sender.send(replica)?;
    ///     Ok(piece)
    /// });
    /// let mut pass = plan.worker(0, 0)?;
    /// assert!(pass.step()?.is_some());
    /// let of_two_steps: Vec<_> = prepared.iter().take(4).collect();
    /// assert_eq!((pass.position().steps, of_two_steps), (1, vec![0, 1, 0, 1]));
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    pub fn prepared(
        self,
        costly: bool,
        prepare: impl Fn(usize, Tree<Leaf>) -> Result<Tree<Leaf>, Cause> + Send + Sync + 'static,
    ) -> Self {
        Self { prepare: Some(Prepare::new(costly, prepare)), ..self }
    }

    /// Returns the datasets that the user's function creates for a worker: one, or one for each of its replicas.
    /// Returns an empty list if the dataset was not created by a function.
    ///
    /// # Errors
    /// - [`Error::DatasetFunction`]: the function that creates datasets failed.
    /// - [`Error::Worker`]: `worker` is not less than the number of workers.
    pub fn made_for(&self, worker: usize) -> Result<Vec<Dataset<T>>> {
        self.layout.check_worker(worker)?;
        match &self.source {
            Source::Dataset(_) => Ok(Vec::new()),
            Source::Function(function) => function.datasets(self.layout, worker),
        }
    }

    /// Returns the same distribution for a process that has only the given replicas of a layout with one worker.
    /// Several such processes read the same data, and each takes the batches of its replicas. The batches do not depend
    /// on the number of these processes.
    ///
    /// ```
    /// use distribute_data::{Dataset, DistributeOptions, Distribution, Layout};
    ///
    /// let all = Distribution::new(&Dataset::range(7).batch(7), Layout::one_worker(5), DistributeOptions::default())?;
    /// let batches = all.part_of(2..4)?.worker(0, 0)?.step()?.unwrap();
    /// assert_eq!(batches.iter().map(|batch| batch.to_vec::<i64>().unwrap()).collect::<Vec<_>>(), [[4], [5]]);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Unordered`]: the processes could see the batches in different orders.
    /// - [`Error::Parameter`]: the layout has several workers, `replicas` is empty, or it contains a replica
    ///   that the layout does not have.
    /// - [`Error::DatasetFunction`]: the function that creates datasets failed.
    pub fn part_of(&self, replicas: Range<usize>) -> Result<Self> {
        if self.layout.workers != 1 || replicas.is_empty() || replicas.end > self.layout.replicas {
            return Err(Error::Parameter {
                operation: "distribute",
                parameter: "the replicas of this process",
                found: format!("{replicas:?} of {}", self.layout),
                expected: "some of the replicas of one worker",
            });
        }
        let is_all = replicas == (0..self.layout.replicas);
        let unrepeatable = match &self.source {
            _ if is_all => None,
            Source::Dataset(sharded) => pipeline::unrepeatable(&sharded.pipeline),
            Source::Function(function) => {
                let made = function.datasets(self.layout, 0)?;
                made.iter().find_map(|dataset| pipeline::unrepeatable(dataset.pipeline()))
            }
        };
        if let Some(operation) = unrepeatable {
            return Err(Error::Unordered { operation });
        }
        Ok(Self { part: (!is_all).then_some(replicas), ..self.clone() })
    }

    /// Returns the replicas of a worker that this process has: all of them, or [a part](Self::part_of).
    pub fn replicas_here(&self) -> Range<usize> {
        self.part.clone().unwrap_or(0..self.layout.replicas)
    }

    /// Returns the layout: the numbers of workers and replicas.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the chosen policy and its reason; `None` for datasets created by a function.
    pub fn decision(&self) -> Option<&Decision> {
        match &self.source {
            Source::Dataset(sharded) => Some(&sharded.decision),
            Source::Function(_) => None,
        }
    }

    /// Starts pass `epoch` of the given worker, and records the current [files](Self::files) for positions.
    ///
    /// # Errors
    /// - [`Error::Worker`]: `worker` is not less than the number of workers.
    /// - [`Error::DatasetFunction`]: the function that creates datasets failed.
    /// - Any error of [`Dataset::check`], for a dataset that was created by a function.
    pub fn worker(&self, worker: usize, epoch: u64) -> Result<WorkerPass<T>> {
        let begun = Position { files: self.files(), ..self.beginning(epoch) };
        let none = Deals::default();
        let steps = self.steps(worker, epoch, &none)?;
        Ok(WorkerPass::new(steps, begun, self.same_batches(), self.dealing(worker, none)))
    }

    /// Returns whether all workers, or all processes with [a part](Self::part_of) of the replicas, read the same
    /// batches, and each takes its own rows of each batch.
    fn same_batches(&self) -> bool {
        self.decision().is_some_and(|decision| match self.part {
            None => decision.taken == AutoShardPolicy::Data,
            Some(_) => matches!(self.batch_split(decision, 0), BatchSplit::Own { .. }),
        })
    }

    /// Returns the dealer of a pass after the given deals; `None` if files are not dealt.
    fn dealer(&self, deals: Deals) -> Option<Dealer> {
        match &self.source {
            Source::Dataset(sharded) if sharded.decision.taken == AutoShardPolicy::Dealt => {
                Some(Dealer::new(self.layout.workers, sharded.file_count(), deals))
            }
            _ => None,
        }
    }

    /// Returns the way in which a worker's pass deals files.
    fn dealing(&self, worker: usize, deals: Deals) -> Dealing {
        self.dealer(deals).map_or(Dealing::None, |dealer| Dealing::Own { dealer, worker })
    }

    /// Returns a checksum of everything that determines when a worker needs its next file: sizes of buffers, numbers of
    /// threads, and whether steps are prepared early. It must be the same on all workers. Returns `None` unless files
    /// are dealt.
    pub fn pull_checksum(&self) -> Option<u32> {
        match &self.source {
            Source::Dataset(sharded) if sharded.decision.taken == AutoShardPolicy::Dealt => {
                let early = u32::from(self.options.prefetch > 0);
                Some(pipeline::pull_checksum(&sharded.pipeline) ^ early)
            }
            _ => None,
        }
    }

    /// Returns the position at the beginning of pass `epoch`.
    pub fn beginning(&self, epoch: u64) -> Position {
        Position { epoch, steps: 0, origin: self.origin(), files: None, deals: None }
    }

    /// Returns the current files of the dataset. All workers must read the same files, and a resumed pass needs them
    /// unchanged. The first and last bytes of up to 1024 files are read. Returns `None` if there are no files, if
    /// workers may read different ones, or if the function that creates datasets fails.
    pub fn files(&self) -> Option<FileList> {
        let alone = self.layout.workers == 1;
        match &self.source {
            Source::Dataset(sharded) if alone || sharded.decision.taken != AutoShardPolicy::Off => {
                FileList::of([&sharded.pipeline])
            }
            Source::Function(_) if alone => {
                FileList::of(self.made_for(0).ok()?.iter().map(Dataset::pipeline))
            }
            _ => None,
        }
    }
}
