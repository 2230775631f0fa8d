//! Workers that join and leave during one training, which has one, two, four and three of them.

use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterSpec, Deadline, Job};
use distribute::data::InputContext;
use distribute::input::DistributedDataset;
use distribute::training::Preemption;
use distribute::{Error, Result, prelude::*};
use distribute_testing::{Port, watched};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const EPOCHS: u64 = 4;
const STEPS: u64 = 5;
const ROWS: i64 = 60;
/// The global batch size. It is a multiple of every number of workers, which datasets from a function require.
const BATCH: usize = 12;

/// The kind of input.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Input {
    Dataset,
    Function,
}

/// The way in which a worker leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Fails,
    /// The worker leaves after a notice.
    Leaves,
}

/// The steps after which workers join or leave, in the middle of epochs and at the end of one.
const TWO: u64 = 7;
const FOUR: u64 = 10;
const THREE: u64 = 16;

/// The ids of each step, and the number of workers. A repeated step has the ids of its last repetition.
type Steps = BTreeMap<u64, (Vec<i64>, usize)>;

/// The replicas of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Replicas {
    /// The number of replicas of each worker.
    Each(usize),
    /// The number of logical replicas, which the workers share.
    Logical(usize),
}

struct Program<'a> {
    place: usize,
    replicas: Replicas,
    port: u16,
    input: Input,
    steps: &'a Mutex<Steps>,
    /// The way in which worker 1 leaves.
    end: End,
    /// A channel that starts the workers with the given positions.
    start: Sender<Vec<usize>>,
}

fn batches(strategy: &Strategy, input: Input) -> Result<DistributedDataset<HostTensor>> {
    let ids = || Dataset::range(ROWS).shuffle(ROWS as usize, 7);
    match input {
        Input::Dataset => strategy.distribute_dataset(ids().batch(BATCH)),
        // Every second element of the first of two replicas, and so on.
        Input::Function => strategy.distribute_datasets_from_function(move |context: InputContext| {
            let mine = ids().shard(context.num_input_pipelines, context.input_pipeline_id);
            let size = context.get_per_replica_batch_size(BATCH)?;
            Ok(mine.batch(size))
        }),
    }
}

impl Program<'_> {
    fn run(&self) -> Result<Vec<f32>> {
        let Self { place, replicas, port, input, .. } = *self;
        let addresses: Vec<_> =
            (0..4).map(|place| format!("127.0.0.1:{}", if place == 0 { port } else { 0 })).collect();
        let cluster: ClusterSpec = format!("{{\"worker\": {addresses:?}}}").parse()?;
        let builder = MultiWorkerMirroredStrategy::builder();
        let builder = match replicas {
            Replicas::Each(replicas) => builder.replicas(replicas),
            Replicas::Logical(replicas) => builder.logical_replicas(replicas),
        };
        let strategy = builder
            .cluster_resolver(SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(place)))
            .min_workers(1)
            .shrink_after(Duration::from_secs(1))
            .build()?;
        let model = strategy.replicate(|vb| linear(3, 2, vb.pp("fc")))?;
        let optimizer = Adam::new(&model.variables, 0.05)?;
        let batches = batches(&strategy, input)?;
        let parts = Checkpoint::new()
            .part("strategy", &strategy)
            .part("model", &model.variables)
            .part("optimizer", &optimizer)
            .part("batches", &batches);
        let training = Training::new(parts)?;
        let preemption = Preemption::watch(&strategy)?;
        let mut leaves = false;
        training.run(|| {
            while batches.position().epoch < EPOCHS {
                for batch in &batches {
                    let (batch, workers) = (batch?, strategy.world().workers());
                    let made = optimizer.finished_steps();
                    match (place, made, workers) {
                        (0, TWO, 1) => self.come(&strategy, &[1])?,
                        (0, FOUR, 2) => self.come(&strategy, &[3, 2])?,
                        (1, THREE, 4) if self.end == End::Fails => return Err(Error::other("killed")),
                        // All workers receive this notice when the next step begins.
                        (1, made, 4) if made == THREE - 1 && self.end == End::Leaves => preemption.notify(),
                        _ => {}
                    }
                    let all = strategy.run((&model, batch), |ctx, (fc, ids): (_, HostTensor)| {
                        let all = ctx.all_gather(ids.clone(), 0)?;
                        let ids = ids.to_vec::<i64>()?;
                        let x = |id: &i64| [0, 1, 2].map(|i| ((id * 3 + i) as f32).sin());
                        let x: Vec<f32> = ids.iter().flat_map(x).collect();
                        if ids.is_empty() {
                            optimizer.skip(ctx)?;
                        } else {
                            let x = Tensor::from_vec(x, (ids.len(), 3), &Device::Cpu)?;
                            optimizer.minimize(ctx, fc.forward(&x)?.sqr()?.mean_all()?, ids.len())?;
                        }
                        Ok(all)
                    })?;
                    let ids = all.values()[0].to_vec::<i64>()?;
                    self.steps.lock().unwrap().insert(made, (ids, workers));
                    if preemption.requested() {
                        leaves = true;
                        // The worker can read its weights, but belongs to no world, so it cannot make a step.
                        model.variables.sha256()?;
                        let refused = strategy.run((), |_, ()| Ok(())).unwrap_err().to_string();
                        assert!(refused.contains("has left the training"), "{refused}");
                        return Ok(());
                    }
                }
            }
            Ok(())
        })?;
        let steps = if leaves { THREE } else { EPOCHS * STEPS };
        assert_eq!((optimizer.finished_steps(), strategy.steps()), (steps, steps));
        if leaves {
            return Err(Error::other("left"));
        }
        self.is_found_by_its_task(&strategy);
        let weights =
            model.variables.get("fc.weight").expect("it is there").flatten_all()?.to_vec1::<f32>()?;
        Ok(weights)
    }

    /// Checks that errors name worker 2 of the remaining three as task 3 of the cluster.
    fn is_found_by_its_task(&self, strategy: &Strategy) {
        let step = strategy.run((), |ctx, ()| match self.place {
            3 => Ok(0.),
            _ => ctx.all_reduce(ReduceOp::Sum, 1f32),
        });
        // The step succeeds only for the worker that makes no call.
        let Err(error) = step else { return assert_eq!(self.place, 3) };
        let error = error.to_string();
        assert!(error.contains("; worker 2 is task worker 3 at 127.0.0.1:"), "{error}");
    }

    /// Starts workers, and waits until they are waiting to join.
    fn come(&self, strategy: &Strategy, places: &[usize]) -> Result<()> {
        self.start.send(places.to_vec()).unwrap();
        let until = Deadline::after(Duration::from_secs(50));
        let group = strategy.extended().group().expect("there are others");
        while group.waiting() < places.len() {
            assert!(!until.has_passed(), "they don't come");
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Trains with workers that join and leave. Returns the ids and the number of workers of each step, and the weights.
fn elastic(replicas: Replicas, input: Input, end: End) -> (Steps, Vec<f32>) {
    let reserved = Port::reserve();
    let port = reserved.number();
    let steps = Mutex::<Steps>::default();
    let (start, started): (_, Receiver<Vec<usize>>) = channel();
    let weights = std::thread::scope(|scope| {
        let spawn = |place| {
            let program = Program { place, replicas, port, input, steps: &steps, end, start: start.clone() };
            scope.spawn(move || program.run().inspect_err(|error| println!("worker {place}: {error}")))
        };
        let mut all = vec![(0, spawn(0))];
        for places in started.iter().take(2) {
            all.extend(places.into_iter().map(|place| (place, spawn(place))));
        }
        let ended = all.into_iter().map(|(place, worker)| match (place, worker.join().unwrap()) {
            (1, Err(error)) if ["killed", "left"].contains(&error.to_string().as_str()) => None,
            (place, ended) => Some(ended.unwrap_or_else(|error| panic!("worker {place}: {error}"))),
        });
        ended.flatten().collect::<Vec<_>>()
    });
    assert_eq!(weights.len(), 3);
    assert!(weights.iter().all(|of| *of == weights[0]), "the same bits on all");
    (steps.into_inner().unwrap(), weights[0].clone())
}

/// Returns the weights of a training in one process with the given number of replicas.
fn alone(replicas: usize, input: Input) -> Vec<f32> {
    let strategy = MirroredStrategy::cpus(replicas).unwrap();
    let model = strategy.replicate(|vb| linear(3, 2, vb.pp("fc"))).unwrap();
    let optimizer = Adam::new(&model.variables, 0.05).unwrap();
    let batches = batches(&strategy, input).unwrap();
    for _ in 0..EPOCHS {
        for batch in &batches {
            strategy
                .run((&model, batch.unwrap()), |ctx, (fc, ids): (_, HostTensor)| {
                    let ids = ids.to_vec::<i64>()?;
                    let x = |id: &i64| [0, 1, 2].map(|i| ((id * 3 + i) as f32).sin());
                    let x = Tensor::from_vec(
                        ids.iter().flat_map(x).collect::<Vec<_>>(),
                        (ids.len(), 3),
                        &Device::Cpu,
                    )?;
                    optimizer.minimize(ctx, fc.forward(&x)?.sqr()?.mean_all()?, ids.len())
                })
                .unwrap();
        }
    }
    model.variables.get("fc.weight").unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
}

fn every_example_once(replicas: Replicas, input: Input, end: End) {
    let (steps, weights) = elastic(replicas, input, end);
    let sizes: Vec<_> = steps.values().map(|(_, workers)| *workers).collect();
    assert!(sizes.starts_with(&[1; TWO as usize]), "{sizes:?}");
    let mut distinct = sizes.clone();
    distinct.dedup();
    assert_eq!(distinct, [1, 2, 4, 3], "{sizes:?}");
    for epoch in 0..EPOCHS {
        let mut ids: Vec<_> =
            steps.range(epoch * STEPS..(epoch + 1) * STEPS).flat_map(|(_, (ids, _))| ids.clone()).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..ROWS).collect::<Vec<_>>(), "epoch {epoch}: {sizes:?}");
    }
    let (Replicas::Each(number) | Replicas::Logical(number)) = replicas;
    let alone = alone(number, input);
    if replicas == Replicas::Logical(number) {
        let bits = |weights: &[f32]| weights.iter().map(|weight| weight.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&weights), bits(&alone), "the bits of one process, whatever happened: {sizes:?}");
        return;
    }
    let far = weights.iter().zip(&alone).map(|(mine, theirs)| (mine - theirs).abs()).fold(0., f32::max);
    assert!(far < 1e-5, "{far}: {weights:?} {alone:?}");
}

// INV-43
#[test]
fn one_two_four_three_workers() {
    watched(|| every_example_once(Replicas::Each(1), Input::Dataset, End::Fails));
}

// INV-43
#[test]
fn one_two_four_three_workers_of_two_replicas() {
    watched(|| every_example_once(Replicas::Each(2), Input::Dataset, End::Fails));
}

// INV-43
#[test]
fn one_two_four_three_workers_with_datasets_from_a_function() {
    watched(|| every_example_once(Replicas::Each(1), Input::Function, End::Fails));
}

// INV-43, INV-44
#[test]
fn one_two_four_three_workers_of_which_one_gets_a_notice() {
    watched(|| every_example_once(Replicas::Each(1), Input::Dataset, End::Leaves));
}

// INV-43, INV-88
#[test]
fn logical_replicas_end_with_the_bits_of_one_process() {
    watched(|| every_example_once(Replicas::Logical(5), Input::Dataset, End::Fails));
}

// INV-43, INV-44, INV-88
#[test]
fn logical_replicas_with_datasets_from_a_function_and_a_notice_end_with_the_bits_of_one_process() {
    watched(|| every_example_once(Replicas::Logical(6), Input::Function, End::Leaves));
}
