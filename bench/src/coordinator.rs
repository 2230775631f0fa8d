//! A coordinator with two parameter servers and workers in processes of this machine: the rate of scheduled
//! functions, the speed of training the recommender, and the time until a killed worker is replaced.

use super::error::invalid;
use super::figure::{About, Better, Effort, Figure, Target};
use super::program::Program;
use super::sample::Sample;
use super::work::{BATCHES, Model, RATE, Recommender};
use crate::output;
use candle_core::Tensor;
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterSpec, Job, Stopwatch, Task};
use distribute::parameter_server::{MinSizePartitioner, ServeBuilder};
use distribute::remote::{Batches, PerWorker, WorkerContext};
use distribute::{ClusterCoordinator, Dataset, Error, ParameterServerStrategy, Replicated, Result, Sgd};
use std::net::TcpListener;
use std::process::Command;

/// The prefix of the name of a child process that is a task of the cluster.
pub const CHILD: &str = "coordinator/";

const SERVERS: usize = 2;
/// The number of workers in figures that do not set it.
const WORKERS: usize = 2;
/// The number of closures that are scheduled before a join.
const CLOSURES: usize = 1000;
/// The minimum size of a variable that is split into shards, as in the partitioner of the peer.
const SHARD_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    /// Empty functions, from scheduling to the end of the join.
    Closures,
    /// Steps of the recommender on the given number of workers.
    Steps(usize),
    /// The time from killing a worker until its replacement has completed a function.
    Replaced,
}

/// Returns all figures.
pub fn figures() -> Vec<Box<dyn Figure>> {
    let all = [Work::Closures, Work::Steps(1), Work::Steps(2), Work::Replaced];
    all.into_iter().map(|work| Box::new(work) as Box<dyn Figure>).collect()
}

/// The recommender and its optimizer, which a worker keeps as a resource.
struct Kept {
    model: Replicated<Recommender>,
    optimizer: Sgd,
}

#[distribute::remote]
fn nothing(_worker: &WorkerContext) -> Result<()> {
    Ok(())
}

#[distribute::remote]
fn process(_worker: &WorkerContext) -> Result<u32> {
    Ok(std::process::id())
}

#[distribute::remote]
fn recommender(worker: &WorkerContext) -> Result<Kept> {
    let model = worker.strategy().replicate(Recommender::new)?;
    let optimizer = Sgd::new(&model.variables, RATE)?;
    Ok(Kept { model, optimizer })
}

#[distribute::remote]
fn batches(_worker: &WorkerContext) -> Result<Dataset<(Tensor, Tensor)>> {
    let all: Vec<_> = (0..BATCHES)
        .map(|number| Recommender::batch(number, 0, Recommender::BATCH))
        .collect::<Result<_>>()?;
    let (ids, targets): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    let all = Dataset::from_slices((Tensor::cat(&ids, 0)?, Tensor::cat(&targets, 0)?))?;
    Ok(all.repeat_forever().batch(Recommender::BATCH))
}

#[distribute::remote]
fn step(worker: &WorkerContext, kept: &Kept, data: &Batches<(Tensor, Tensor)>) -> Result<()> {
    let batch = data.next()?;
    worker.strategy().run((&kept.model, batch), |ctx, (model, (ids, targets))| {
        kept.optimizer.minimize(ctx, model.loss(&ids, &targets)?, Recommender::BATCH)
    })?;
    Ok(())
}

impl Figure for Work {
    fn about(&self) -> About {
        let of = |name: String, unit, better, target, measures: &str| About {
            name: format!("coordinator_{name}"),
            unit,
            better,
            measures: format!(
                "{measures}; coordinator, {SERVERS} parameter servers and workers are processes, loopback"
            ),
            targets: vec![Target::BestPeer(target)],
        };
        match self {
            Work::Closures => of(
                "closures".into(),
                "closures/s",
                Better::More,
                20.,
                "functions that do nothing, scheduled on 2 workers and joined",
            ),
            Work::Steps(workers) => {
                let measures = format!(
                    "steps of {}, of {} examples, a closure each, on {workers} workers",
                    Recommender::WORK,
                    Recommender::BATCH
                );
                of(format!("steps_{workers}"), "steps/s", Better::More, 2., &measures)
            }
            Work::Replaced => of(
                "replaced".into(),
                "ms",
                Better::Less,
                1.,
                "a worker that is killed and started again at once, until it has run a function",
            ),
        }
    }

    fn rounds(&self, wanted: usize) -> usize {
        if *self == Work::Replaced { wanted.min(5) } else { wanted }
    }

    fn round(&self, effort: Effort) -> Result<Sample> {
        let workers = if let Work::Steps(workers) = self { *workers } else { WORKERS };
        let mut cluster = Cluster::start(workers)?;
        let coordinator = ClusterCoordinator::new(&cluster.strategy()?)?;
        let value = match self {
            Work::Closures => rate(effort, CLOSURES, |count| {
                (0..count).try_for_each(|_| coordinator.schedule(nothing, ()).map(drop))?;
                coordinator.join()
            })?,
            Work::Steps(workers) => {
                let data = coordinator.create_per_worker_dataset(batches, ())?;
                let kept: PerWorker<Kept> = coordinator.create_per_worker_value(recommender, ())?;
                rate(effort, 8 * workers, |count| {
                    (0..count).try_for_each(|_| coordinator.schedule(step, (&kept, &data)).map(drop))?;
                    coordinator.join()
                })?
            }
            Work::Replaced => {
                coordinator.schedule(nothing, ())?;
                coordinator.join()?;
                let watch = Stopwatch::start();
                let new = cluster.replace()?;
                while coordinator.schedule(process, ())?.fetch()? != new {}
                watch.seconds() * 1e3
            }
        };
        Ok(value.into())
    }
}

/// Returns the number of items per second. Each call of `work` processes `count` items, and the first is a warm-up.
fn rate(effort: Effort, count: usize, work: impl Fn(usize) -> Result<()>) -> Result<f64> {
    // The first call connects workers, and creates their resources.
    work(count)?;
    let (watch, mut done) = (Stopwatch::start(), 0);
    while watch.seconds() < effort.seconds || done == 0 {
        work(count)?;
        done += count;
    }
    Ok(done as f64 / watch.seconds())
}

/// The processes of a cluster, which are killed on drop.
struct Cluster {
    spec: ClusterSpec,
    tasks: Vec<(Task, Program)>,
}

impl Cluster {
    fn start(workers: usize) -> Result<Self> {
        let io = |source| Error::Io { operation: "finding ports for a cluster".into(), source };
        let sockets = (0..SERVERS + workers).map(|_| TcpListener::bind("127.0.0.1:0"));
        let sockets = sockets.collect::<std::io::Result<Vec<_>>>().map_err(io)?;
        let addresses = sockets.iter().map(|socket| socket.local_addr().map(|address| address.to_string()));
        let mut of_servers = addresses.collect::<std::io::Result<Vec<_>>>().map_err(io)?;
        let of_workers = of_servers.split_off(SERVERS);
        drop(sockets);
        let spec = ClusterSpec::from_lists([("ps", of_servers), ("worker", of_workers)]);
        let spec = spec.map_err(Error::other)?;
        let start = |task: Task| Ok((task.clone(), start(&spec, &task)?));
        let tasks = spec.tasks().map(|(task, _)| start(task)).collect::<Result<_>>()?;
        Ok(Self { spec, tasks })
    }

    fn strategy(&self) -> Result<ParameterServerStrategy> {
        let resolver = SimpleClusterResolver::new(self.spec.clone()).with_task(Job::Chief.task(0));
        ParameterServerStrategy::new(resolver, MinSizePartitioner::new(SHARD_BYTES, SERVERS)?)
    }

    /// Kills the first worker and starts it again. Returns the id of the new process.
    fn replace(&mut self) -> Result<u32> {
        let first = Job::Worker.task(0);
        self.tasks.retain(|(task, _)| *task != first);
        let program = start(&self.spec, &first)?;
        let id = program.id();
        self.tasks.push((first, program));
        Ok(id)
    }
}

/// Starts the process of a task.
fn start(cluster: &ClusterSpec, task: &Task) -> Result<Program> {
    let io = |source| Error::Io { operation: format!("starting {task}"), source };
    let path = std::env::current_exe().map_err(io)?;
    let name = format!("{CHILD}{} {} {cluster}", task.job, task.index);
    Program::start(Command::new(&path).args(["--child", &name])).map_err(io)
}

/// Runs one task in the child process, until the process is killed.
pub fn child(name: &str) -> Result<()> {
    let wrong = || invalid(format!("there is no task {name:?}"));
    let mut parts = name.strip_prefix(CHILD).ok_or_else(wrong)?.splitn(3, ' ');
    let (Some(job), Some(Ok(index)), Some(Ok(cluster))) =
        (parts.next(), parts.next().map(str::parse::<usize>), parts.next().map(str::parse::<ClusterSpec>))
    else {
        return Err(wrong());
    };
    let resolver = SimpleClusterResolver::new(cluster).with_task(Task::new(job, index));
    if ServeBuilder::new().run(&resolver)?.has_served() { output::line("ended") } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_child_is_a_task_that_there_is_not() {
        for name in ["coordinator/", "coordinator/ps", "coordinator/ps x {}", "coordinator/ps 0 x"] {
            assert!(child(name).unwrap_err().to_string().contains("there is no task"), "{name}");
        }
    }
}
