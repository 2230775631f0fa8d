//! The program of each worker, and the points at which one of them fails.

use crate::recovery::slowness::Work;
use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use distribute::checkpoint::{
    CheckpointManager, Checkpointed, HeldTensors, LiveTensors, Reader, Restore, SourceError, Writer,
};
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterSpec, Job};
use distribute::strategy::MultiWorkerMirroredStrategyBuilder;
use distribute::tensor::DType;
use distribute::training::Preemption;
use distribute::{Error, Result, prelude::*};
use distribute_net::SharedMemory;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

pub const EPOCHS: u64 = 3;
pub const STEPS: u64 = 4;

/// The number of steps between checkpoints, if there are any.
pub const SAVE_EVERY: u64 = 3;

/// A point in the training of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Place {
    /// After this worker has joined and built its model, while the others wait for it.
    Setup,
    /// While this worker receives the state of another worker.
    TakingOver,
    /// Before the first step of the training.
    First,
    /// Between two steps.
    Between,
    /// Inside the closure, while the others wait in the exchange of gradients.
    InStep,
    /// Inside the update rule, after the exchange of gradients and before that of the new weights.
    InUpdate,
    /// After the update, while the others wait in the next call of the same step.
    AfterUpdate,
    /// After a step.
    Made,
    /// During the second checkpoint, on the chief: its tensors have been written, but not its index.
    Saving,
    /// During a checkpoint in the background, on the chief: its tensors have been copied, and the workers train.
    SavingInBackground,
    /// After a checkpoint that could not be saved.
    NotSaved,
    /// At the end of the last but one pass.
    AtEnd,
    /// At the last line of the closure.
    Ending,
    /// After the training.
    Ended,
}

impl Place {
    pub const IN_TRAINING: [Self; 6] =
        [Self::First, Self::Between, Self::InStep, Self::AfterUpdate, Self::AtEnd, Self::Ending];
}

/// A callback that is called at each point. It may fail, or not return.
pub type At = Arc<dyn Fn(Place) -> Result<()> + Send + Sync>;

/// A worker, and the addresses of the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    pub worker: usize,
    pub replicas: usize,
    /// The address of each worker.
    pub addresses: Vec<String>,
    /// The address on which this worker listens, if it differs from the worker's address.
    pub listen: Option<String>,
    /// Whether messages use sockets only.
    pub sockets: bool,
    /// The folder of checkpoints, if some are saved.
    pub folder: Option<PathBuf>,
    /// Whether checkpoints are saved in the background.
    pub in_background: bool,
    /// Whether SIGTERM is a notice.
    pub watches: bool,
    /// The number of logical replicas that the workers share; `None` if there are none.
    pub logical: Option<usize>,
    /// The time after which the others continue without a lost worker, in elastic training.
    pub shrink_after: Duration,
    /// The minimum number of workers; `None` if all are needed. In elastic training, a test must end before a missing
    /// worker is given up.
    pub least: Option<usize>,
    /// The number of spares.
    pub spares: usize,
    /// The maximum time that this worker waits for the others when it starts.
    pub patience: Duration,
    /// The name of the job; `None` if it is derived from the program.
    pub job: Option<String>,
    /// The work of each step, in tests of slow workers; `None` if there is none.
    pub work: Option<Work>,
}

impl Task {
    /// Returns the task of one of `workers` workers. The first worker listens on `port`.
    pub fn new(worker: usize, workers: usize, port: u16) -> Self {
        let address = |rank: usize| format!("127.0.0.1:{}", if rank == 0 { port } else { 0 });
        Self {
            worker,
            replicas: 1,
            addresses: (0..workers).map(address).collect(),
            listen: None,
            sockets: false,
            folder: None,
            in_background: false,
            watches: false,
            logical: None,
            shrink_after: Duration::from_secs(100),
            least: None,
            spares: 0,
            patience: Duration::from_secs(60),
            job: None,
            work: None,
        }
    }

    pub fn builder(&self) -> Result<MultiWorkerMirroredStrategyBuilder> {
        let cluster: ClusterSpec = format!("{{\"worker\": {:?}}}", self.addresses).parse()?;
        let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(self.worker));
        let builder = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver);
        let mut builder = match self.logical {
            Some(replicas) => builder.logical_replicas(replicas),
            None => builder.replicas(self.replicas),
        };
        builder = builder.join_timeout(self.patience);
        if let Some(job) = &self.job {
            builder = builder.job(job);
        }
        if let Some(address) = &self.listen {
            builder = builder.listen(address);
        }
        if self.sockets {
            builder = builder.shared_memory(SharedMemory::Never);
        }
        if self.spares > 0 {
            builder = builder.spares(self.spares);
        }
        if let Some(work) = self.work {
            builder = builder.stragglers(work.reaction.policy());
        }
        if let Some(least) = self.least {
            builder = builder.min_workers(least).shrink_after(self.shrink_after);
        }
        Ok(builder)
    }
}

/// The result of a worker's training.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// The checksum of the weights.
    pub sha256: String,
    /// The number of times that the group has formed.
    pub generation: u64,
    /// Whether the worker saved a checkpoint and exited because of a notice.
    pub preempted: bool,
}

/// Runs a worker's program from its start to its end.
pub fn program(task: &Task, at: &At) -> Result<Trained> {
    let strategy = task.builder()?.build()?;
    let preemption = task.watches.then(|| Preemption::watch(&strategy)).transpose()?;
    let model = strategy.replicate(|vb| linear(3, 2, vb.pp("fc")))?;
    let optimizer = Adam::new(&model.variables, 0.05)?;
    let rows = 16usize;
    let ids = Dataset::range(rows as i64).shuffle(rows, 7).batch(rows / STEPS as usize);
    let batches = strategy.distribute_dataset(ids)?;
    let taken = Taken { at: at.clone(), from_others: AtomicBool::new(false) };
    let parts = Checkpoint::new()
        .part("strategy", &strategy)
        .part("model", &model.variables)
        .part("optimizer", &optimizer)
        .part("batches", &batches)
        .part("taken", &taken);
    let copied = Copied(Arc::new(CopiedAt(at.clone())));
    // Its name is the last.
    let parts = if task.in_background { parts.part("z", &copied) } else { parts };
    let manager = task.folder.as_ref().map(CheckpointManager::new).transpose()?;
    if let Some(manager) = &manager {
        parts.restore_latest(manager)?;
    }
    taken.from_others.store(true, Ordering::Relaxed);
    at(Place::Setup)?;
    let training = Training::new(parts.clone())?;
    at(Place::First)?;
    let preempted = training.run(|| {
        while batches.position().epoch < EPOCHS {
            for batch in &batches {
                let batch = batch?;
                let steps = (batches.position().epoch, batches.position().steps);
                if steps == (1, 2) {
                    at(Place::Between)?;
                }
                let before = optimizer.finished_steps();
                strategy.run((&model, batch), |ctx, (fc, ids): (_, HostTensor)| {
                    let ids = ids.to_vec::<i64>()?;
                    let x: Vec<f32> =
                        ids.iter().flat_map(|id| (0..3).map(move |i| ((id * 3 + i) as f32).sin())).collect();
                    let x = Tensor::from_vec(x, (ids.len(), 3), &Device::Cpu)?;
                    if steps == (1, 3) {
                        at(Place::InStep)?;
                    }
                    if ids.is_empty() {
                        optimizer.skip(ctx)?;
                    } else {
                        let loss = fc.forward(&x)?.sqr()?.mean_all()?;
                        optimizer.minimize(ctx, loss, ids.len())?;
                    }
                    if steps == (1, 3) {
                        at(Place::AfterUpdate)?;
                    }
                    ctx.all_reduce(ReduceOp::Sum, 1f32)?;
                    Ok(())
                })?;
                assert_eq!(optimizer.finished_steps(), before + 1);
                at(Place::Made)?;
                if let Some(manager) = manager.as_ref().filter(|_| (before + 1).is_multiple_of(SAVE_EVERY)) {
                    let second = before + 1 == 2 * SAVE_EVERY;
                    let save_one = || {
                        if task.in_background {
                            parts.save_async(manager).map(drop)
                        } else {
                            parts.save_to(manager).map(drop)
                        }
                    };
                    save(save_one, strategy.is_chief(), second, at)?;
                }
                if let Some((preemption, manager)) = preemption.as_ref().zip(manager.as_ref())
                    && preemption.requested()
                {
                    preemption.save(&parts, manager)?;
                    return Ok(true);
                }
            }
            if batches.position().epoch == 2 {
                at(Place::AtEnd)?;
            }
        }
        at(Place::Ending)?;
        Ok(false)
    })?;
    if !preempted {
        assert_eq!(optimizer.finished_steps(), EPOCHS * STEPS);
        assert_eq!(strategy.steps(), EPOCHS * STEPS);
    }
    at(Place::Ended)?;
    Ok(Trained { sha256: model.variables.sha256()?, generation: training.generation(), preempted })
}

/// Saves a checkpoint. Continues if a worker cannot save, in which case all workers get an error.
fn save(save_one: impl FnOnce() -> Result<()>, chief: bool, second: bool, at: &At) -> Result<()> {
    let saved =
        if second { tracing::subscriber::with_default(Writing(at.clone()), save_one) } else { save_one() };
    match saved {
        Err(error @ Error::Worker { .. }) => {
            assert!(!chief || matches!(error.root_cause(), Error::Checkpoint(_)), "{error:?}");
            eprintln!("not saved: {error}");
            at(Place::NotSaved)
        }
        saved => saved,
    }
}

/// A component that calls the callback when another worker receives its state.
pub struct Taken {
    pub at: At,
    pub from_others: AtomicBool,
}

impl Checkpointed for Taken {
    fn save(&self, _: &str, _: &mut Writer) -> Result<()> {
        Ok(())
    }
    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        if self.from_others.load(Ordering::Relaxed) {
            (self.at)(Place::TakingOver)?;
        }
        Ok(Box::new(|| Ok(())))
    }
}

/// A component that is copied after all others, and then calls the callback.
struct Copied(Arc<dyn LiveTensors>);

struct CopiedAt(At);

impl Checkpointed for Copied {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        if writer.is_saved_at_once() {
            writer.insert_live(prefix, DType::I64, [], &self.0, 0)?;
        }
        Ok(())
    }
    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        Ok(Box::new(|| Ok(())))
    }
}

impl LiveTensors for CopiedAt {
    fn hold(&self) -> Result<Box<dyn HeldTensors + '_>, SourceError> {
        Ok(Box::new(self))
    }
}

impl HeldTensors for &CopiedAt {
    fn copy(&self, _: usize) -> Result<HostTensor, SourceError> {
        (self.0)(Place::SavingInBackground)?;
        Ok(HostTensor::scalar(1i64))
    }
}

/// A `tracing` subscriber that calls the callback during a save, whose stages are spans.
struct Writing(At);

impl Subscriber for Writing {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "save"
    }
    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        attributes.record(&mut Index(&self.0));
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Index<'a>(&'a At);

impl Visit for Index<'_> {
    fn record_debug(&mut self, _: &Field, step: &dyn std::fmt::Debug) {
        if format!("{step:?}") == "WriteIndex" {
            (self.0)(Place::Saving).unwrap();
        }
    }
}
