//! Workers that train alone and then agree on new weights: the same numbers as in a training that is computed by hand,
//! the same bits on all workers and over all links, and fewer bytes.

mod alone;
mod compressed;
mod failures;
mod refusals;
mod runner;
mod state;

use crate::multi_worker::compression::counting_groups;
use crate::multi_worker::training::{ALL, Plan, train};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{Init, linear};
use distribute::nn::embedding;
use distribute::optimizer::rules;
use distribute::strategy::{Compression, Links, LocalSteps, MultiWorkerMirroredStrategyBuilder, Outer};
use distribute::{
    Adam, Error, MirroredStrategy, MultiWorkerMirroredStrategy, ReduceOp, ReplicaContext, Replicated, Result,
    Sgd, Strategy,
};
use distribute_collective::group::Group;
use distribute_testing::watched;
use std::sync::atomic::Ordering;
use std::thread;

pub(super) const DILOCO: Outer = Outer::Nesterov { learning_rate: 0.7, momentum: 0.9 };

pub(super) fn local(steps: u64, outer: Outer) -> LocalSteps {
    LocalSteps { steps, outer }
}

/// Returns the result of `worker` on each worker.
pub(super) fn on<R: Send>(
    (workers, replicas): (usize, usize),
    local: LocalSteps,
    worker: impl Fn(&Strategy) -> Result<R> + Sync,
) -> Vec<R> {
    let builder = MultiWorkerMirroredStrategy::builder().replicas(replicas).local_steps(local);
    builder.on_threads(crate::multi_worker::links(workers, replicas), workers, worker).unwrap()
}

/// Calls `worker` on a thread for each group. `set` sets the options of worker `w`.
pub(super) fn on_groups<R: Send>(
    groups: Vec<Group>,
    set: impl Fn(usize, MultiWorkerMirroredStrategyBuilder) -> MultiWorkerMirroredStrategyBuilder + Sync,
    worker: impl Fn(&Strategy) -> Result<R> + Sync,
) -> Vec<R> {
    thread::scope(|scope| {
        let start = |(number, group)| {
            let (set, worker) = (&set, &worker);
            scope.spawn(move || {
                let builder = MultiWorkerMirroredStrategy::builder().group(group);
                worker(&set(number, builder).build().unwrap()).unwrap()
            })
        };
        let threads: Vec<_> = groups.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

type Layers = (candle_nn::Linear, candle_nn::Linear);

pub(super) fn model(strategy: &Strategy) -> Result<Replicated<Layers>> {
    strategy.replicate_seeded(3, |vb| Ok::<_, Error>((linear(5, 7, vb.pp("a"))?, linear(7, 5, vb.pp("b"))?)))
}

/// Returns the loss of a replica in a step, and its number of examples. `id` is the global id of the replica.
pub(super) fn loss((a, b): &Layers, step: u64, id: usize) -> Result<(Tensor, usize)> {
    let (rows, columns) = (2 + id % 3, a.weight().dim(1)?);
    let x = Tensor::arange(0f32, (rows * columns) as f32, &Device::Cpu)?;
    let x = x.affine(0.37, step as f64 * 7.3 + id as f64)?.sin()?.reshape((rows, columns))?;
    Ok(((b.forward(&a.forward(&x)?.tanh()?)? - &x)?.sqr()?.mean_all()?, rows))
}

pub(super) fn step_of(
    ctx: &ReplicaContext,
    optimizer: &Adam,
    layers: &Layers,
    step: u64,
    id: usize,
) -> Result<Tensor> {
    let (loss, rows) = loss(layers, step, id)?;
    optimizer.minimize(ctx, loss, rows)
}

pub(super) fn weights(model: &Replicated<Layers>) -> Result<Vec<f32>> {
    let mut all = Vec::new();
    for name in model.variables.names() {
        all.extend(model.variables.get(&name)?.flatten_all()?.to_vec1::<f32>()?);
    }
    Ok(all)
}

pub(super) fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|x| x.to_bits()).collect()
}

/// Changes the weights of the last outer step to the new ones. `mean` is that of what the workers have changed, with
/// the opposite sign.
pub(super) fn outer_step(outer: Outer, agreed: &mut f32, momentum: &mut f32, mean: f32) {
    *agreed -= match outer {
        Outer::Average => mean,
        Outer::Nesterov { learning_rate, momentum: decay } => {
            let (rate, decay) = (learning_rate as f32, decay as f32);
            *momentum = decay * *momentum + mean;
            rate * (mean + decay * *momentum)
        }
    };
}

/// Returns the weights of each worker after each step, computed in one process. Each worker is a separate strategy, and
/// outer steps are computed by hand.
fn by_hand((workers, replicas): (usize, usize), local: LocalSteps, steps: u64) -> Vec<Vec<Vec<f32>>> {
    let mut momentum = Vec::new();
    by_hand_with((workers, replicas), model, local.steps, steps, |agreed, after| {
        momentum.resize(agreed.len(), 0.);
        for (at, agreed) in agreed.iter_mut().enumerate() {
            // Two or three workers are added in their order.
            let mean = |of: &dyn Fn(f32) -> f32| {
                let sum = after.iter().map(|weights| of(weights[at])).reduce(|sum, x| sum + x).unwrap();
                sum / workers as f32
            };
            match local.outer {
                Outer::Average => *agreed = mean(&|weight| weight),
                outer => {
                    let mean = mean(&|weight| *agreed - weight);
                    outer_step(outer, agreed, &mut momentum[at], mean);
                }
            }
        }
    })
}

/// Acts like [`by_hand`] for a model. `agree` changes the weights of the last outer step to the new ones; it gets those
/// of each worker.
pub(super) fn by_hand_with(
    (workers, replicas): (usize, usize),
    model: impl Fn(&Strategy) -> Result<Replicated<Layers>>,
    steps_of_round: u64,
    steps: u64,
    mut agree: impl FnMut(&mut [f32], &[Vec<f32>]),
) -> Vec<Vec<Vec<f32>>> {
    let strategies: Vec<_> = (0..workers).map(|_| MirroredStrategy::cpus(replicas).unwrap()).collect();
    let models: Vec<_> = strategies.iter().map(|strategy| model(strategy).unwrap()).collect();
    let optimizers: Vec<_> = models.iter().map(|model| Adam::new(&model.variables, 0.01).unwrap()).collect();
    let mut agreed = weights(&models[0]).unwrap();
    let mut all = vec![Vec::new(); workers];
    for step in 1..=steps {
        for (worker, ((strategy, model), optimizer)) in
            strategies.iter().zip(&models).zip(&optimizers).enumerate()
        {
            let run = strategy.run(model, |ctx, layers| {
                let id = worker * replicas + ctx.replica_id_in_sync_group();
                step_of(ctx, optimizer, layers, step, id)
            });
            run.unwrap();
        }
        let mut after: Vec<Vec<f32>> = models.iter().map(|model| weights(model).unwrap()).collect();
        if step % steps_of_round == 0 {
            agree(&mut agreed, &after);
            for model in &models {
                let mut rest = agreed.as_slice();
                for name in model.variables.names() {
                    let shape = model.variables.get(&name).unwrap().shape().clone();
                    let (values, others) = rest.split_at(shape.elem_count());
                    rest = others;
                    let value = Tensor::from_slice(values, shape, &Device::Cpu).unwrap();
                    model.variables.set(&name, &value).unwrap();
                }
            }
            after = vec![agreed.clone(); workers];
        }
        for (all, after) in all.iter_mut().zip(after) {
            all.push(after);
        }
    }
    all
}

/// Returns the weights of this worker after each step.
fn trained(strategy: &Strategy, steps: u64) -> Result<Vec<Vec<f32>>> {
    trained_with(strategy, &model(strategy)?, steps)
}

/// Acts like [`trained`] for a model.
pub(super) fn trained_with(
    strategy: &Strategy,
    model: &Replicated<Layers>,
    steps: u64,
) -> Result<Vec<Vec<f32>>> {
    let optimizer = Adam::new(&model.variables, 0.01)?;
    let step = |step| {
        strategy.run(model, |ctx, layers| {
            step_of(ctx, &optimizer, layers, step, ctx.replica_id_in_sync_group())
        })?;
        weights(model)
    };
    (1..=steps).map(step).collect()
}

// INV-98
#[test]
fn each_step_of_each_worker_is_that_of_a_training_computed_by_hand() {
    watched(|| {
        for world in [(2, 1), (2, 2), (3, 1), (3, 2)] {
            for of in [local(3, Outer::Average), local(3, DILOCO), local(1, DILOCO), local(2, Outer::Average)]
            {
                let expected = by_hand(world, of, 9);
                let found = on(world, of, |strategy| trained(strategy, 9));
                for (worker, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
                        assert!(bits(found) == bits(expected), "{world:?}, {of:?}: worker {worker}, {step}");
                    }
                }
                for step in 1..=9usize {
                    let same = found.iter().all(|other| bits(&other[step - 1]) == bits(&found[0][step - 1]));
                    assert_eq!(
                        same,
                        (step as u64).is_multiple_of(of.steps),
                        "{world:?}, {of:?}: step {step}"
                    );
                }
            }
        }
    });
}

// INV-98
#[test]
fn weights_of_f64_and_f32_are_agreed_on_together() {
    watched(|| {
        for (steps, outer) in [(1, DILOCO), (2, DILOCO), (2, Outer::Average)] {
            let found = on((2, 1), local(steps, outer), |strategy| {
                let model = strategy.replicate(|vb| {
                    let wide = vb.to_dtype(DType::F64).get_with_hints(3, "wide", Init::Const(0.1))?;
                    Ok::<_, Error>((wide, vb.get_with_hints(2, "narrow", Init::Const(0.1))?))
                })?;
                let optimizer = Sgd::new(&model.variables, 1.)?;
                let slope = [0.3, 0.7][strategy.world().worker()];
                for _ in 0..4 {
                    strategy.run(&model, |ctx, (wide, narrow)| {
                        let loss = (wide.sum_all()?.to_dtype(DType::F32)? + narrow.sum_all()?)?;
                        optimizer.minimize(ctx, (loss * slope)?, 1)
                    })?;
                }
                let wide = model.variables.get("wide")?.to_vec1::<f64>()?;
                Ok((wide, model.variables.get("narrow")?.to_vec1::<f32>()?))
            });
            assert_eq!(found[0], found[1]);
            // The gradients are the slopes, so the workers move by their mean.
            let (mut weight, mut momentum) = (0.1f64, 0.);
            for _ in 0..4 / steps {
                let gradient = 0.5 * steps as f64;
                weight -= match outer {
                    Outer::Average => gradient,
                    Outer::Nesterov { learning_rate, momentum: decay } => {
                        momentum = decay * momentum + gradient;
                        learning_rate * (gradient + decay * momentum)
                    }
                };
            }
            let (wide, narrow) = &found[0];
            // The slopes are f32 in the graph.
            assert!(wide.iter().all(|x| (x - weight).abs() < 1e-6), "{wide:?} and {weight}");
            assert!(narrow.iter().all(|x| (f64::from(*x) - weight).abs() < 1e-5), "{narrow:?} and {weight}");
        }
    });
}

// INV-98
#[test]
fn all_links_give_the_same_bits() {
    watched(|| {
        let train = |links| {
            let builder = MultiWorkerMirroredStrategy::builder().local_steps(local(2, DILOCO));
            builder.on_threads(links, 3, |strategy| trained(strategy, 6)).unwrap()
        };
        let memory = train(Links::Memory);
        for links in [Links::Tcp, Links::Tls, Links::Shared] {
            assert!(train(links) == memory, "{links:?}");
        }
    });
}

#[test]
fn one_step_and_an_average_are_lock_step() {
    watched(|| {
        for world in [(2, 1), (2, 2), (3, 1)] {
            let plan = Plan { parts: ALL, clip: true, ..Plan::new(23, 12) };
            let train = |strategy: &Strategy| train(strategy, plan, &rules::Adam::lazy());
            let lock_step = crate::multi_worker::on_threads(world.0, world.1, train).unwrap();
            assert!(on(world, local(1, Outer::Average), train) == lock_step, "{world:?}");
        }
    });
}

#[test]
fn a_single_worker_agrees_with_itself() {
    watched(|| {
        for replicas in [1, 2] {
            let average = on((1, replicas), local(3, Outer::Average), |strategy| trained(strategy, 7));
            let alone = trained(&MirroredStrategy::cpus(replicas).unwrap(), 7).unwrap();
            assert!(average == [alone]);
            for steps in [1, 3] {
                let of = local(steps, DILOCO);
                let found = on((1, replicas), of, |strategy| trained(strategy, 7));
                assert!(found == by_hand((1, replicas), of, 7), "{replicas} replicas, {steps} steps");
            }
        }
    });
}

/// Returns the number of bytes that all workers together send in ten steps.
pub(super) fn bytes_of_ten_steps(local: LocalSteps, form: Compression, workers: usize) -> usize {
    let (groups, bytes) = counting_groups(workers, 1);
    let counted = on_groups(
        groups,
        |_, builder| builder.local_steps(local).compression(form),
        |strategy| {
            let model = strategy.replicate(|vb| {
                Ok::<_, Error>((
                    embedding(100, 64, vb.pp("table"))?,
                    distribute::nn::linear(64, 300, vb.pp("out"))?,
                ))
            })?;
            let optimizer = Sgd::new(&model.variables, 0.1)?;
            let ids = Tensor::arange(0u32, 100, &Device::Cpu)?;
            let ten_steps = || {
                (0..10).try_for_each(|_| {
                    let made = strategy.run(&model, |ctx, (table, out)| {
                        optimizer.minimize(ctx, out.forward(&table.forward(&ids)?)?.sqr()?.mean_all()?, 100)
                    });
                    made.map(drop)
                })
            };
            ten_steps()?;
            // All workers have sent everything before the calls between steps are complete.
            let all = || strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32));
            all()?;
            let before = bytes.load(Ordering::Relaxed);
            all()?;
            ten_steps()?;
            all()?;
            Ok(bytes.load(Ordering::Relaxed) - before)
        },
    );
    counted.into_iter().max().unwrap()
}

#[test]
fn bytes_fall_by_the_number_of_steps() {
    watched(|| {
        for workers in [2, 3] {
            let bytes = |local| bytes_of_ten_steps(local, Compression::None, workers) as f64;
            let lock_step = bytes(local(1, Outer::Average));
            for (steps, outer) in [(5, Outer::Average), (5, DILOCO), (10, DILOCO)] {
                let bytes = bytes(local(steps, outer));
                let ratio = lock_step / bytes;
                println!(
                    "{workers} workers, {steps} steps, {outer}: {bytes} of {lock_step} bytes, 1/{ratio:.2}"
                );
                // Steps that begin together send short headers.
                assert!((0.85..1.2).contains(&(ratio / steps as f64)), "{workers} workers, {steps}: {ratio}");
            }
        }
    });
}
