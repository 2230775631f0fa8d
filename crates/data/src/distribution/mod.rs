//! A dataset parted over workers and replicas: who gets what, step by step.

mod context;
mod cut;
mod decide;
mod explain;
mod file_list;
mod function;
mod lockstep;
mod part;
mod parts;
mod pass;
mod position;
mod prepare;
mod resume;
mod steps;
#[cfg(test)]
mod tests;

#[doc(alias = "tf.distribute.InputContext")]
pub use context::InputContext;
pub use file_list::{FileDifference, FileList};
pub use lockstep::Lockstep;
pub use pass::WorkerPass;
pub use position::{Origin, Position};

use crate::pipeline::{self, Pipeline};
use crate::plan::ends::UnevenEnds;
use crate::plan::layout::Layout;
use crate::plan::policy::{AutoShardPolicy, Decision};
use crate::{Batching, Cause, Dataset, Error, Result, SplitRule};
use decide::decide;
use distribute_log::heard;
use distribute_tensor::{Leaf, Nest, Tree};
use function::Function;
use parts::Parted;
use prepare::Prepare;
use std::sync::Arc;

/// How a dataset is parted.
#[doc(alias = "tf.data.experimental.DistributeOptions")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DistributeOptions {
    /// Over workers.
    pub policy: AutoShardPolicy,
    /// Over replicas.
    pub rule: SplitRule,
    /// At the end of the data.
    pub ends: UnevenEnds,
    /// How many steps are made ahead of time, on a thread, where reading the dataset is worth one: where
    /// there are files or functions of users that no [`prefetch`](Dataset::prefetch) works on yet.
    pub prefetch: usize,
}

/// A dataset parted over workers and replicas.
///
/// It is a plan: the same on every worker, and the same for all of them. [`worker`](Distribution::worker)
/// starts the pass of one; [`lockstep`](Distribution::lockstep) runs all of them side by side, to see who
/// gets what.
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
}

/// What is parted.
enum Source<T> {
    /// Global batches, by a policy.
    Dataset(Arc<Parted>),
    /// What a function makes for each worker, or for each replica.
    Function(Arc<Function<T>>),
}

impl<T> Clone for Distribution<T> {
    fn clone(&self) -> Self {
        let source = match &self.source {
            Source::Dataset(parted) => Source::Dataset(parted.clone()),
            Source::Function(function) => Source::Function(function.clone()),
        };
        Self { source, layout: self.layout, options: self.options.clone(), prepare: self.prepare.clone() }
    }
}

impl<T: Nest> Distribution<T> {
    /// Parts a dataset that is batched by the *global* batch size.
    ///
    /// # Errors
    /// Before anything is read, and on every worker alike: [`Error::NotBatched`]; [`Error::Unshardable`] and
    /// [`Error::TooFewFiles`] where the policy asks for files; [`Error::Hinted`] where a hint stands and
    /// the policy is another; [`Error::Unordered`] where workers that read the same batches could see them in
    /// different orders; [`Error::Parameter`] for a layout or parameter of 0.
    pub fn new(dataset: &Dataset<T>, layout: Layout, options: DistributeOptions) -> Result<Self> {
        Self::of_pipeline(dataset.pipeline().clone(), layout, options)
    }

    /// Returns the same dataset, parted over others by the same options.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
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
            Source::Dataset(parted) => {
                let over = Self::of_pipeline(parted.pipeline.clone(), layout, self.options.clone())?;
                Ok(Self { prepare: self.prepare.clone(), ..over })
            }
            Source::Function(_) => {
                layout.check()?;
                Ok(Self { layout, ..self.clone() })
            }
        }
    }

    fn of_pipeline(pipeline: Pipeline, layout: Layout, options: DistributeOptions) -> Result<Self> {
        layout.check()?;
        let decision = decide(&pipeline, options.policy, options.rule, layout.workers)?;
        if decision.fell_back {
            heard(|| {
                tracing::warn!(
                    why = decision.why,
                    "every worker reads all files, and takes its pieces of each batch"
                );
            });
        }
        let parted = Parted::new(pipeline, decision, layout.workers);
        // TensorFlow hands single elements to a single replica.
        if parted.pipeline.batching() == Batching::Elements
            && (options.rule != SplitRule::TensorFlow || layout.total() > 1)
        {
            return Err(Error::NotBatched { what: "the dataset gives single elements".into() });
        }
        parted.check()?;
        if layout.workers > 1
            && parted.decision.taken == AutoShardPolicy::Data
            && let Some(operation) = pipeline::unrepeatable(&parted.pipeline)
        {
            return Err(Error::Unordered { operation });
        }
        Ok(Self { source: Source::Dataset(Arc::new(parted)), layout, options, prepare: None })
    }

    /// What `make` makes for each worker (`per_replica`: for each replica): already batched for a replica,
    /// and sharded by the context. Each replica takes one element a step. `make` is called once for each
    /// pipeline that this process runs, when it is first needed.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a layout of 0.
    pub fn from_function(
        layout: Layout,
        per_replica: bool,
        options: DistributeOptions,
        make: impl Fn(InputContext) -> Result<Dataset<T>, Cause> + Send + Sync + 'static,
    ) -> Result<Self> {
        layout.check()?;
        let source = Source::Function(Arc::new(Function::new(per_replica, make)));
        Ok(Self { source, layout, options, prepare: None })
    }

    /// Has `prepare` called with the number of each local replica and its piece, to bring it to a device,
    /// say; the replica gets what it returns. Where steps are made ahead, on a thread, they are prepared
    /// there; otherwise when the step is asked for. `costly` says that this is worth the thread by itself,
    /// whatever reading costs. An error or a panic of `prepare` ends the pass, in the step of that piece.
    ///
    /// An empty piece for a replica at the end is made of a piece that may have been prepared for another,
    /// and prepared in turn, before the workers decide whether they take the step.
    ///
    /// ```
    /// use distribute_data::{Dataset, DistributeOptions, Distribution, Layout};
    ///
    /// let data = Dataset::range(6).batch(4);
    /// let plan = Distribution::new(&data, Layout::one_worker(2), DistributeOptions { prefetch: 1, ..Default::default() })?;
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

    /// What a function makes for a worker: its dataset, or one for each of its replicas. None for a dataset that is
    /// parted.
    ///
    /// # Errors
    /// [`Error::DatasetFunction`], [`Error::Worker`].
    pub fn made_for(&self, worker: usize) -> Result<Vec<Dataset<T>>> {
        self.layout.check_worker(worker)?;
        match &self.source {
            Source::Dataset(_) => Ok(Vec::new()),
            Source::Function(function) => function.datasets(self.layout, worker),
        }
    }

    /// Who takes part.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the policy taken and why; `None` for datasets made by a function.
    pub fn decision(&self) -> Option<&Decision> {
        match &self.source {
            Source::Dataset(parted) => Some(&parted.decision),
            Source::Function(_) => None,
        }
    }

    /// Starts pass `epoch` of one worker.
    ///
    /// # Errors
    /// [`Error::Worker`] if there is no such worker, and those of a function that makes datasets.
    pub fn worker(&self, worker: usize, epoch: u64) -> Result<WorkerPass<T>> {
        let begun = Position { files: self.files(), ..self.beginning(epoch) };
        Ok(WorkerPass::new(self.steps(worker, epoch)?, begun, self.same_batches()))
    }

    /// Returns whether every worker reads the same batches, and takes its pieces of each.
    fn same_batches(&self) -> bool {
        self.decision().is_some_and(|decision| decision.taken == AutoShardPolicy::Data)
    }

    /// Where pass `epoch` begins.
    pub fn beginning(&self, epoch: u64) -> Position {
        Position { epoch, steps: 0, origin: self.origin(), files: None }
    }

    /// Returns the files that all workers have to read alike, and over which alone a pass can go on, as they
    /// are now: their ends are read. `None` if there are none, or if workers may read different ones.
    pub fn files(&self) -> Option<FileList> {
        let alone = self.layout.workers == 1;
        match &self.source {
            Source::Dataset(parted) if alone || parted.decision.taken != AutoShardPolicy::Off => {
                FileList::of([&parted.pipeline])
            }
            Source::Function(_) if alone => {
                FileList::of(self.made_for(0).ok()?.iter().map(Dataset::pipeline))
            }
            _ => None,
        }
    }
}
