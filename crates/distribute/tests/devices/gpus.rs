//! The trainings of this program on GPUs, if there are any: with the feature `cuda`, and with CUDA or the software
//! implementation of `.ci/cuda-build`.

use super::training::{self, Trained, train};
use candle_core::{Device, Tensor};
use candle_nn::Init;
use distribute::data::Dataset;
use distribute::optimizer::Transform;
use distribute::optimizer::rules::{Adagrad, Ftrl, Momentum};
use distribute::strategy::{DeviceName, Links, NcclAllReduce};
use distribute::{
    InputOptions, LocalCluster, MirroredStrategy, MultiWorkerMirroredStrategy, OneDeviceStrategy, Optimizer,
    ParameterServerStrategy, ReplicaContext, Strategy,
};
use distribute_collective::group::local;
use distribute_testing::{child, skipped, watched};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use tracing::Subscriber;
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

pub fn on(devices: &[&str]) -> Strategy {
    MirroredStrategy::new(devices.iter().copied()).unwrap()
}

pub fn alone(device: &str) -> Strategy {
    OneDeviceStrategy::new(device).unwrap()
}

/// Runs a test if there are at least `needed` GPUs. Otherwise prints that the test is skipped.
pub fn with_gpus(needed: usize, test: impl FnOnce() + Send + 'static) {
    let missing = (0..needed).find_map(|gpu| DeviceName::gpu(gpu).to_candle().err());
    match missing {
        Some(error) => skipped(error),
        None => watched(test),
    }
}

/// Compares weights with a tolerance, because the libraries of devices differ in the last bits of sums and
/// exponentials.
fn near(expected: &[Trained], found: &[Trained]) {
    let others = training::differing(expected, found);
    println!("{others} numbers have other bits");
}

// INV-68
#[test]
fn a_gpu_trains_to_the_weights_of_a_cpu() {
    with_gpus(1, || near(&training::by_one(&alone("cpu:0")), &training::by_one(&alone("gpu:0"))));
}

// INV-68
#[test]
fn a_gpu_and_a_cpu_train_to_the_weights_of_two_cpus() {
    with_gpus(1, || {
        let expected = training::by_two(&on(&["cpu:0", "cpu:1"]));
        near(&expected, &training::by_two(&on(&["gpu:0", "cpu:0"])));
    });
}

// INV-68
#[test]
fn two_gpus_train_to_the_weights_of_two_cpus() {
    with_gpus(2, || {
        let expected = training::by_two(&on(&["cpu:0", "cpu:1"]));
        near(&expected, &training::by_two(&on(&["gpu:0", "gpu:1"])));
    });
}

/// Runs a test on two GPUs that are linked by NCCL, if there are any.
fn with_nccl(test: impl FnOnce(Strategy) + Send + 'static) {
    with_gpus(2, || {
        let builder = MirroredStrategy::builder().devices(["gpu:0", "gpu:1"]);
        match builder.cross_device_ops(NcclAllReduce::default()).build() {
            Ok(strategy) => test(strategy),
            Err(error) => skipped(error),
        }
    });
}

// INV-68
#[test]
fn two_gpus_with_nccl_train_with_rows_to_the_weights_of_two_cpus() {
    with_nccl(|strategy| near(&training::by_two(&on(&["cpu:0", "cpu:1"])), &training::by_two(&strategy)));
}

/// A `tracing` layer that counts the slices of the timeline in which NCCL sums.
struct Sums(Arc<AtomicUsize>);

impl<S: Subscriber> Layer<S> for Sums {
    fn on_new_span(&self, span: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        if span.metadata().name() == "nccl" {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// INV-68
#[test]
fn two_gpus_with_dense_gradients_reduced_by_nccl_train_to_the_weights_of_two_cpus() {
    with_nccl(|strategy| {
        let expected = training::dense_by_two(&on(&["cpu:0", "cpu:1"]));
        let sums = Arc::new(AtomicUsize::new(0));
        let count = tracing_subscriber::registry().with(Sums(sums.clone()));
        // Replica 0 leads, on this thread.
        let found = tracing::subscriber::with_default(count, || training::dense_by_two(&strategy));
        near(&expected, &found);
        // Once in each step: no gradient went by the host.
        assert_eq!(sums.load(Ordering::Relaxed), found.len() * training::DENSE_STEPS);
    });
}

// INV-68
#[test]
fn a_gpu_trains_variables_on_servers_to_the_weights_of_a_cpu() {
    with_gpus(1, || {
        let trained = |devices: &str| -> Vec<Trained> {
            let of = |(dtype, limit)| {
                let cluster = LocalCluster::new(1, 2).unwrap();
                let builder = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver());
                let strategy: Strategy = builder.devices([devices]).build().unwrap().into();
                let weights = train(&strategy, Adagrad::default(), 0.1, false, dtype).unwrap();
                (format!("{dtype:?}"), limit, weights)
            };
            training::TYPES.into_iter().map(of).collect()
        };
        near(&trained("cpu:0"), &trained("gpu:0"));
    });
}

// INV-68
#[test]
fn workers_with_a_gpu_each_train_to_the_weights_of_workers_with_a_cpu() {
    with_gpus(2, || {
        let trained = |devices: [&str; 2]| -> Vec<Trained> {
            let of = |(dtype, limit)| {
                let groups = local::groups(Links::Memory, 2, 1).unwrap();
                let train = |group, device| {
                    let builder = MultiWorkerMirroredStrategy::builder().group(group).devices([device]);
                    train(&builder.build()?, Momentum::default(), 0.1, false, dtype)
                };
                let weights = thread::scope(|scope| {
                    let workers = groups.into_iter().zip(devices);
                    let start = |(group, device)| scope.spawn(move || train(group, device));
                    let workers: Vec<_> = workers.map(start).collect();
                    workers.into_iter().map(|worker| worker.join().unwrap().unwrap()).next_back().unwrap()
                });
                (format!("{dtype:?}"), limit, weights)
            };
            training::TYPES.into_iter().map(of).collect()
        };
        near(&trained(["cpu:0", "cpu:0"]), &trained(["gpu:0", "gpu:1"]));
    });
}

const HANGS: &str = "gpus::if_nccl_hangs_the_step_fails_and_weights_are_unchanged";

/// Trains until a step fails. Prints the number of steps, whether all replicas got the error, and whether the weights
/// are those of the last step.
fn until_nccl_hangs() {
    let builder = MirroredStrategy::builder().devices(["gpu:0", "gpu:1"]).timeout(Duration::from_secs(4));
    let strategy = builder.cross_device_ops(NcclAllReduce::default()).build().unwrap();
    let model = strategy.replicate(|vb| vb.get_with_hints(3, "w", Init::Const(8.))).unwrap();
    let optimizer = Optimizer::with_rule(Momentum::default(), &model.variables, 0.1).unwrap();
    let step = || strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sqr()?.sum_all()?, 1));
    let weights = || model.variables.get("w").unwrap().to_vec1::<f32>().unwrap();
    let mut before = weights();
    for made in 0..5 {
        if let Err(error) = step() {
            assert_eq!((weights(), optimizer.finished_steps()), (before, made));
            let again = step().unwrap_err();
            return println!("made {made}\n{error}\n{again}");
        }
        before = weights();
    }
}

// INV-3
#[test]
fn if_nccl_hangs_the_step_fails_and_weights_are_unchanged() {
    if child::part().is_some() {
        return until_nccl_hangs();
    }
    if std::env::var("SOFT_CUDA").is_err() {
        return skipped("no NCCL but that in software hangs when it is told to");
    }
    with_gpus(2, || {
        // The first group links the GPUs, and each of the others is a step.
        for (groups, made, call) in [("0", 0, "ncclCommInitRankConfig"), ("3", 2, "ncclGroupEnd")] {
            let mut command = child::command(HANGS, groups);
            command.env("SOFT_CUDA_NCCL_HANGS", groups);
            let (text, _) = child::output(command, Duration::from_secs(60));
            let late = format!("{call}: GPU 0, GPU 1 has not finished within 2s");
            for part in [
                &format!("made {made}\n"),
                "device:GPU:0, /job:localhost/replica:0/task:0/device:GPU:1",
                &format!("an NCCL call has timed out: {late}"),
                &format!("NCCL was abandoned on these GPUs, because an earlier call failed: {late}"),
            ] {
                assert!(text.contains(part), "{part:?} is not in {text}");
            }
        }
    });
}

// ITER-2
#[test]
fn a_gpu_without_rows_skips_the_model() {
    with_gpus(1, || {
        let strategy = on(&["cpu:0", "gpu:0"]);
        // The first is refused by CUDA, and candle panics on the second.
        let operations: [fn(&Tensor) -> candle_core::Result<Tensor>; 2] =
            [|numbers| Tensor::cat(&[numbers, numbers], 0), |numbers| numbers.sum(1)];
        for operation in operations {
            let numbers = Tensor::new(&[[1f32, 2.]], &Device::Cpu).unwrap();
            let batches =
                strategy.distribute_dataset(Dataset::from_slices(numbers).unwrap().batch(1)).unwrap();
            let batch = batches.into_iter().next().unwrap().unwrap();
            let failed = strategy.run(batch, |_, numbers: Tensor| Ok(operation(&numbers)?));
            let error = failed.unwrap_err().to_string();
            assert!(
                error.contains("replica 1 got an empty batch") && error.contains("call optimizer.skip(ctx)"),
                "{error}"
            );
        }
    });
}

/// Checks weights that are scalars, for which candle's CUDA backend lacks some operations.
#[test]
fn scalars_can_be_weights_of_a_gpu() {
    with_gpus(1, || {
        let trained = |device: &str| {
            let strategy = alone(device);
            let model = strategy.replicate(|vb| vb.get_with_hints((), "w", Init::Const(8.))).unwrap();
            let optimizer = Optimizer::with_rule(Ftrl { l1: 0.1, ..Ftrl::default() }, &model.variables, 1.)
                .unwrap()
                .before_reduce(Transform::clip_by_value(-0.75, 0.75))
                .unwrap()
                .after_reduce(Transform::clip_by_norm(0.5))
                .unwrap();
            for _ in 0..3 {
                strategy.run(&model, |ctx, w| optimizer.minimize(ctx, (w * 1.)?, 1)).unwrap();
            }
            model.variables.get("w").unwrap().to_scalar::<f32>().unwrap()
        };
        assert_eq!(trained("cpu:0"), trained("gpu:0"));
    });
}

/// Checks the losses of micro-batches of a step, and of steps whose losses are read together.
#[test]
fn losses_may_be_on_any_device() {
    with_gpus(1, || {
        let trained = |device: &str| {
            let strategy = alone(device);
            let model = strategy.replicate(|vb| vb.get_with_hints(2, "w", Init::Const(8.))).unwrap();
            let optimizer = Optimizer::with_rule(Momentum::default(), &model.variables, 0.1).unwrap();
            for step in 0..6 {
                let make = |ctx: &ReplicaContext, w: &Tensor| {
                    let there = w.sqr()?.mean_all()?;
                    let on_host = w.to_device(&Device::Cpu)?.sum_all()?;
                    match step % 3 {
                        0 => optimizer.minimize_each(ctx, [Ok((there, 1)), Ok((on_host, 2))]),
                        1 => optimizer.minimize(ctx, on_host, 1),
                        _ => optimizer.minimize_each(ctx, [Ok((on_host, 2)), Ok((there, 1))]),
                    }
                };
                strategy.run(&model, make).unwrap();
            }
            model.variables.get("w").unwrap().to_vec1::<f32>().unwrap()
        };
        assert_eq!(trained("cpu:0"), trained("gpu:0"));
    });
}

/// Returns the elements of a tensor as f64.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    let here = tensor.to_device(&Device::Cpu).unwrap().to_dtype(candle_core::DType::F64).unwrap();
    here.flatten_all().unwrap().to_vec1().unwrap()
}

// IN-4, ITER-2, INV-70
#[test]
fn a_pass_gives_each_gpu_its_rows_for_any_number_of_prefetched_steps() {
    watched(|| {
        let is_there = |name: &&str| name.parse::<DeviceName>().unwrap().to_candle().is_ok();
        let gpus: Vec<_> = ["gpu:0", "gpu:1"].into_iter().filter(is_there).collect();
        if gpus.is_empty() {
            return skipped("there is no GPU");
        }
        let (replicas, strategy) = (gpus.len(), MirroredStrategy::new(gpus).unwrap());
        for ahead in [0, 1, 3] {
            let options = InputOptions { per_replica_buffer_size: ahead, ..Default::default() };
            // The last replica has a row less, and none in the end.
            let batches = strategy.distribute_datasets_from_function_with(options, move |_| {
                let rows = Tensor::arange(0f32, 82., &Device::Cpu)?.reshape((41, 2))?;
                Ok(Dataset::from_slices(rows)?.batch(3).take(if replicas == 1 { 14 } else { 13 }))
            });
            let mut all = Vec::new();
            for step in batches.unwrap().iter() {
                let step = step.unwrap();
                let sums =
                    strategy.run(step, |_, rows: Tensor| Ok(((&rows * 2.)?, rows.device().location())));
                for (replica, (doubled, place)) in sums.unwrap().iter().enumerate() {
                    assert_eq!(*place, candle_core::DeviceLocation::Cuda { gpu_id: replica });
                    if doubled.elem_count() > 0 {
                        all.extend(numbers(doubled));
                    }
                }
            }
            let rows = if replicas == 1 { 41 } else { 39 };
            assert_eq!(all, (0..2 * rows).map(|number| f64::from(2 * number)).collect::<Vec<_>>());
        }
    });
}
