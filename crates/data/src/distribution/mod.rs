//! A dataset parted over workers and replicas: who gets what, step by step.

mod context;
mod cut;
mod explain;
mod lockstep;
mod position;
mod steps;
#[cfg(test)]
mod tests;

pub use context::InputContext;
pub use lockstep::Lockstep;
pub use position::{Origin, Position};

use crate::operations::ahead::AheadStage;
use crate::pipeline::{self, Part, Pipeline};
use crate::plan::ends::{Ballot, UnevenEnds};
use crate::plan::layout::Layout;
use crate::plan::policy::{AutoShardPolicy, Decision, decide};
use crate::plan::recut::worker_sizes;
use crate::stage::Stage;
use crate::{Batching, Dataset, Error, Result, SplitRule};
use cut::Cut;
use distribute_tensor::{Leaf, Nest, Tree};
use lockstep::{Gathered, Together};
use std::marker::PhantomData;
use std::sync::Arc;
use steps::{Pieces, Steps, empty_batch};

/// How a dataset is parted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DistributeOptions {
    /// Over workers.
    pub policy: AutoShardPolicy,
    /// Over replicas.
    pub rule: SplitRule,
    /// At the end of the data.
    pub ends: UnevenEnds,
    /// How many steps are made ahead of time, on a thread, where reading the dataset is worth one: where there are files
    /// or functions of users that no [`prefetch`](Dataset::prefetch) works on yet.
    pub prefetch: usize,
}

/// A dataset parted over workers and replicas.
///
/// It is a plan: the same on every worker, and the same for all of them. [`worker`](Distribution::worker) starts the pass
/// of one; [`lockstep`](Distribution::lockstep) runs all of them side by side, to see who gets what.
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
}

/// What is parted.
enum Source<T> {
    /// Global batches, by a policy.
    Dataset { pipeline: Pipeline, decision: Decision },
    /// What a function makes for each worker, or for each replica.
    Function { make: DatasetFn<T>, per_replica: bool },
}

/// A user's function that makes the dataset of a pipeline.
type DatasetFn<T> = Arc<dyn Fn(InputContext) -> Result<Dataset<T>> + Send + Sync>;

impl<T> Clone for Distribution<T> {
    fn clone(&self) -> Self {
        let source = match &self.source {
            Source::Dataset { pipeline, decision } => {
                Source::Dataset { pipeline: pipeline.clone(), decision: decision.clone() }
            }
            Source::Function { make, per_replica } => {
                Source::Function { make: make.clone(), per_replica: *per_replica }
            }
        };
        Self { source, layout: self.layout, options: self.options.clone() }
    }
}

impl<T: Nest> Distribution<T> {
    /// Parts a dataset that is batched by the *global* batch size.
    ///
    /// # Errors
    /// Before anything is read, and on every worker alike: [`Error::NotBatched`]; [`Error::Unshardable`] and
    /// [`Error::TooFewFiles`] where the policy asks for files (AS-4, AS-5); [`Error::Hinted`] where a hint stands and
    /// the policy is another (AS-10); [`Error::Parameter`] for a layout or parameter of 0.
    pub fn new(dataset: &Dataset<T>, layout: Layout, options: DistributeOptions) -> Result<Self> {
        layout.check()?;
        let pipeline = dataset.pipeline().clone();
        let decision = decide(&pipeline, options.policy, options.rule, layout.workers)?;
        let plan = Self { source: Source::Dataset { pipeline, decision }, layout, options };
        // TensorFlow hands single elements to a single replica.
        if dataset.batching() == Batching::Elements
            && (plan.options.rule != SplitRule::TensorFlow || layout.total() > 1)
        {
            return Err(Error::NotBatched { what: "the dataset gives single elements".into() });
        }
        plan.check()?;
        Ok(plan)
    }

    /// What `make` makes for each worker (`per_replica`: for each replica): already batched for a replica, and sharded by
    /// the context. Each replica takes one element a step (FN-1).
    ///
    /// # Errors
    /// [`Error::Parameter`] for a layout of 0. Those of `make` come when a pass starts.
    pub fn from_function(
        layout: Layout,
        per_replica: bool,
        options: DistributeOptions,
        make: impl Fn(InputContext) -> Result<Dataset<T>> + Send + Sync + 'static,
    ) -> Result<Self> {
        layout.check()?;
        Ok(Self { source: Source::Function { make: Arc::new(make), per_replica }, layout, options })
    }

    /// Who takes part.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The policy taken and why; `None` for datasets made by a function.
    pub fn decision(&self) -> Option<&Decision> {
        match &self.source {
            Source::Dataset { decision, .. } => Some(decision),
            Source::Function { .. } => None,
        }
    }

    /// Whether workers can come to the end at different steps, so that they have to ask each other before each
    /// (ITER-4). Where all read the same batches they cannot.
    pub fn is_uneven(&self) -> bool {
        let alike = self.decision().is_some_and(|decision| decision.taken == AutoShardPolicy::Data);
        self.layout.workers > 1 && !alike
    }

    /// Starts pass `epoch` of one worker.
    ///
    /// # Errors
    /// [`Error::Worker`] if there is no such worker, and those of a function that makes datasets.
    pub fn worker(&self, worker: usize, epoch: u64) -> Result<WorkerPass<T>> {
        let position = Position { epoch, steps: 0, origin: self.origin() };
        Ok(WorkerPass { steps: self.steps(worker, epoch)?, position, nest: PhantomData })
    }

    /// Starts the pass of one worker where another stood: every element that was not in a step before comes, once.
    ///
    /// On the layout that began the pass, each worker passes over what it had. On another, every worker reads the rest of
    /// the pass as the old ones would have, and takes its pieces of each of their steps; the next pass is its own again.
    ///
    /// # Errors
    /// [`Error::Position`] for a position of another batch size or of another kind of dataset, or where an operation
    /// cannot give the same once more. [`Error::Worker`].
    pub fn resume(&self, worker: usize, position: &Position) -> Result<WorkerPass<T>> {
        self.check_position(position)?;
        let mine = self.origin();
        let steps = if position.steps == 0 || position.origin == mine {
            let mut steps = self.steps(worker, position.epoch)?;
            steps.skip(position.steps)?;
            steps
        } else {
            self.layout.check_worker(worker)?;
            let mut old = self.as_begun(&position.origin).together(position.epoch)?;
            old.skip(position.steps)?;
            let stage = self.own_pieces(worker, self.options.rule).start(Box::new(Gathered(old)));
            let pieces = Pieces::Dealt(stage, self.layout.replicas);
            let mut steps = Steps::new(pieces, self.options.ends, self.full(), None);
            steps.count(position.steps);
            steps
        };
        let origin = if position.steps == 0 { mine } else { position.origin };
        Ok(WorkerPass { steps, position: Position { origin, ..position.clone() }, nest: PhantomData })
    }

    /// All workers' passes side by side: for each step, for each worker, the pieces of its replicas.
    ///
    /// # Errors
    /// Those of [`worker`](Distribution::worker).
    pub fn lockstep(&self, epoch: u64) -> Result<Lockstep<T>> {
        Ok(Lockstep::new(self.together(epoch)?))
    }

    fn together(&self, epoch: u64) -> Result<Together> {
        Ok(Together((0..self.layout.workers).map(|worker| self.steps(worker, epoch)).collect::<Result<_>>()?))
    }

    /// Whether each worker's pipeline is right, without running it.
    fn check(&self) -> Result<()> {
        match &self.source {
            Source::Dataset { pipeline, decision } => {
                pipeline::check(&parted(pipeline, decision, self.layout.workers, 0))
            }
            Source::Function { .. } => Ok(()),
        }
    }

    fn check_position(&self, position: &Position) -> Result<()> {
        let refuse = |why: String| Err(Error::Position { position: position.to_string(), why });
        let (mine, theirs) = (self.origin(), &position.origin);
        if mine.policy.is_some() != theirs.policy.is_some() {
            return refuse("one dataset is made by a function, the other isn't".into());
        }
        if mine.batch != theirs.batch {
            let size = |batch: Option<usize>| batch.map_or("unknown".into(), |n| n.to_string());
            return refuse(format!("the batch size is {} here", size(mine.batch)));
        }
        theirs.layout.check()?;
        if let (Source::Dataset { pipeline, .. }, true) = (&self.source, position.steps > 0)
            && let Some(operation) = pipeline::unrepeatable(pipeline)
        {
            return refuse(format!("\"{operation}\" may give other elements or another order each time"));
        }
        Ok(())
    }

    fn origin(&self) -> Origin {
        Origin {
            layout: self.layout,
            policy: self.decision().map(|decision| decision.taken),
            rule: self.options.rule,
            batch: self.full(),
        }
    }

    /// This dataset, parted as it was where a pass began.
    fn as_begun(&self, origin: &Origin) -> Self {
        let mut plan = self.clone();
        plan.layout = origin.layout;
        plan.options.rule = origin.rule;
        if let (Source::Dataset { decision, .. }, Some(taken)) = (&mut plan.source, origin.policy) {
            *decision = Decision { taken, why: "as the pass was begun".into() };
        }
        plan
    }

    /// The size of full batches, where the pipeline tells.
    fn full(&self) -> Option<usize> {
        match &self.source {
            Source::Dataset { pipeline, .. } => match pipeline.batching() {
                Batching::Batches(size) => Some(size),
                Batching::Unknown | Batching::Elements => None,
            },
            Source::Function { .. } => None,
        }
    }

    fn steps(&self, worker: usize, epoch: u64) -> Result<Steps> {
        self.layout.check_worker(worker)?;
        let Layout { workers, replicas } = self.layout;
        let (pieces, empty) = match &self.source {
            Source::Dataset { pipeline, decision } => {
                let pipeline = parted(pipeline, decision, workers, worker);
                pipeline::check(&pipeline)?;
                let stage = self.cut(decision, worker).start(pipeline.start(epoch));
                let stage = self.ahead(stage, &pipeline, replicas);
                (Pieces::Dealt(stage, replicas), empty_batch(&pipeline))
            }
            Source::Function { make, per_replica } => {
                let made = |(pipelines, id)| {
                    make(InputContext {
                        num_input_pipelines: pipelines,
                        input_pipeline_id: id,
                        num_replicas_in_sync: self.layout.total(),
                    })
                };
                let all: Vec<_> = match per_replica {
                    false => vec![(workers, worker)],
                    true => (0..replicas).map(|r| (self.layout.total(), worker * replicas + r)).collect(),
                };
                let each = if *per_replica { 1 } else { replicas };
                let mut stages = Vec::new();
                let mut empty = None;
                for dataset in all.into_iter().map(made) {
                    let pipeline = dataset?.pipeline().clone();
                    pipeline::check(&pipeline)?;
                    empty = empty.or_else(|| empty_batch(&pipeline));
                    stages.push(self.ahead(pipeline.start(epoch), &pipeline, each));
                }
                match (per_replica, stages.pop()) {
                    (false, Some(stage)) => (Pieces::Dealt(stage, replicas), empty),
                    (_, last) => {
                        stages.extend(last);
                        (Pieces::Each(stages), empty)
                    }
                }
            }
        };
        Ok(Steps::new(pieces, self.options.ends, self.full(), empty))
    }

    /// Pieces made ahead of time, where that is asked for and worth it.
    fn ahead(&self, stage: Box<dyn Stage>, pipeline: &Pipeline, pieces: usize) -> Box<dyn Stage> {
        match self.options.prefetch.saturating_mul(pieces) {
            ahead if ahead > 0 && pipeline.costly() => Box::new(AheadStage::new(stage, ahead, "prefetch")),
            _ => stage,
        }
    }

    /// How a worker's batches are cut into pieces. TensorFlow's rule cuts over their borders where all have one known
    /// size and differ from worker to worker (DIST-5).
    fn cut(&self, decision: &Decision, worker: usize) -> Cut {
        let Layout { workers, replicas } = self.layout;
        let of = self.layout.total();
        let same_batches = decision.taken == AutoShardPolicy::Data;
        match (self.options.rule, self.full()) {
            (SplitRule::Even, _) if same_batches || workers == 1 => self.own_pieces(worker, SplitRule::Even),
            (SplitRule::Even, full) => Cut::Shares { full, layout: self.layout, worker },
            (SplitRule::TensorFlow, _) if of == 1 => Cut::Not,
            (SplitRule::TensorFlow, _) if same_batches => self.own_pieces(worker, SplitRule::TensorFlow),
            (SplitRule::TensorFlow, Some(full)) => {
                Cut::Stream { sizes: worker_sizes(full, workers, replicas, worker) }
            }
            (SplitRule::TensorFlow, None) => {
                Cut::Own { rule: SplitRule::TensorFlow, of, pieces: (0..of).collect() }
            }
        }
    }

    /// A worker's pieces of a batch that every worker sees: those of its own replicas; under TensorFlow's rule every
    /// so-manieth (AS-6).
    fn own_pieces(&self, worker: usize, rule: SplitRule) -> Cut {
        let Layout { workers, replicas } = self.layout;
        let piece = |r| match rule {
            SplitRule::Even => worker * replicas + r,
            SplitRule::TensorFlow => r * workers + worker,
        };
        Cut::Own { rule, of: self.layout.total(), pieces: (0..replicas).map(piece).collect() }
    }
}

/// The pipeline of one worker.
fn parted(pipeline: &Pipeline, decision: &Decision, workers: usize, index: usize) -> Pipeline {
    match decision.taken {
        AutoShardPolicy::File => pipeline::shard(pipeline, &Part::Files { workers, index }),
        AutoShardPolicy::Hint => pipeline::shard(pipeline, &Part::Hint { workers, index }),
        AutoShardPolicy::Off | AutoShardPolicy::Data | AutoShardPolicy::Auto => pipeline.clone(),
    }
}

/// One worker's pass over a [`Distribution`].
///
/// With several workers that read data of their own, they decide step by step, together, whether there is one:
/// [`prepare`](WorkerPass::prepare) says what this one has, and [`finish`](WorkerPass::finish) takes what all of them have.
pub struct WorkerPass<T> {
    steps: Steps,
    position: Position,
    nest: PhantomData<fn() -> T>,
}

impl<T: Nest> WorkerPass<T> {
    /// Where the pass stands: behind the steps that were taken.
    pub fn position(&self) -> Position {
        Position { steps: self.steps.taken(), ..self.position.clone() }
    }

    /// Makes the pieces of the next step, and says what there is of them.
    ///
    /// # Errors
    /// Those of the pipeline. The pass is over then.
    pub fn prepare(&mut self) -> Result<Ballot> {
        self.steps.prepare()
    }

    /// The step that was prepared: a piece for each replica of this worker. `None` if all together don't take it: the
    /// pass is over.
    ///
    /// # Errors
    /// [`Error::NoEmptyBatch`], and [`Error::Type`] if a piece is not a `T`.
    pub fn finish(&mut self, all: Ballot) -> Result<Option<Vec<T>>> {
        let Some(pieces) = self.steps.finish(all)? else { return Ok(None) };
        let typed = |(index, piece)| {
            T::from_tree(piece).map_err(|source| Error::Type { operation: "distribute", index, source })
        };
        pieces.into_iter().enumerate().map(typed).collect::<Result<_>>().map(Some)
    }

    /// The next step where this worker is the only one, or no worker can be at the end before the others.
    ///
    /// # Errors
    /// Those of [`prepare`](WorkerPass::prepare) and [`finish`](WorkerPass::finish).
    pub fn step(&mut self) -> Result<Option<Vec<T>>> {
        let mine = self.prepare()?;
        self.finish(mine)
    }

    /// [`step`](WorkerPass::step), with structures as they are known at run time.
    ///
    /// # Errors
    /// Those of [`step`](WorkerPass::step), but for [`Error::Type`].
    pub fn step_trees(&mut self) -> Result<Option<Vec<Tree<Leaf>>>> {
        let mine = self.steps.prepare()?;
        self.steps.finish(mine)
    }
}
