//! The changes of local steps in a compressed form: the same numbers as by hand, the same bits on all workers and over
//! all links, few bytes, and residuals as a part of the state.

use super::{
    DILOCO, Layers, bits, by_hand_with, bytes_of_ten_steps, local, loss, on_groups, outer_step, step_of,
    trained_with, weights,
};
use crate::multi_worker::compression::LOSSY;
use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, linear};
use distribute::checkpoint::Reader;
use distribute::optimizer::NotFinite;
use distribute::strategy::{Compression, Links, LocalSteps, Outer, Wire};
use distribute::{
    Adam, Checkpoint, Error, ErrorKind, MultiWorkerMirroredStrategy, Replicated, Result, Sgd, Strategy,
};
use distribute_collective::group::local as groups;
use distribute_tensor::compression::{Codec, RangeCodec};
use distribute_testing::watched;
use std::ops::RangeInclusive;
use std::path::Path;

/// Returns the result of `worker` on each worker.
fn on<R: Send>(
    (workers, replicas): (usize, usize),
    (of, form): (LocalSteps, Compression),
    worker: impl Fn(&Strategy) -> Result<R> + Sync,
) -> Vec<R> {
    let builder = MultiWorkerMirroredStrategy::builder().replicas(replicas).local_steps(of).compression(form);
    builder.on_threads(crate::multi_worker::links(workers, replicas), workers, worker).unwrap()
}

/// Returns a model with weights that are large enough to be compressed, and biases that are not.
fn wide(strategy: &Strategy) -> Result<Replicated<Layers>> {
    strategy
        .replicate_seeded(3, |vb| Ok::<_, Error>((linear(40, 64, vb.pp("a"))?, linear(64, 40, vb.pp("b"))?)))
}

fn trained(strategy: &Strategy, steps: u64) -> Result<Vec<Vec<f32>>> {
    trained_with(strategy, &wide(strategy)?, steps)
}

/// Encodes and decodes `numbers`, which become the residual. Returns what was sent.
fn sent(codec: RangeCodec, numbers: &mut [f32]) -> Vec<f32> {
    let mut packet = vec![0; codec.packet_len(numbers.len())];
    codec.encode(numbers, &mut packet);
    let mut decoded = vec![0.; numbers.len()];
    codec.decode(&packet, &mut decoded).unwrap();
    decoded
}

/// Returns the weights of each worker after each step, with outer steps that are computed by hand.
fn by_hand(world: (usize, usize), of: LocalSteps, form: Compression, steps: u64) -> Vec<Vec<Vec<f32>>> {
    let alone = distribute::MirroredStrategy::cpus(1).unwrap();
    let variables = wide(&alone).unwrap().variables;
    let shapes: Vec<_> =
        variables.names().iter().map(|name| variables.get(name).unwrap().dims().to_vec()).collect();
    let workers = world.0 as f32;
    let (mut residuals, mut momentum) = (vec![Vec::new(); world.0], Vec::new());
    by_hand_with(world, wide, of.steps, steps, |agreed, after| {
        momentum.resize(agreed.len(), 0.);
        let mut from = 0;
        for dims in &shapes {
            let range = from..from + dims.iter().product::<usize>();
            from = range.end;
            let codec = form.codec(dims).map(|codec| match codec {
                Codec::EightBits => RangeCodec::EightBits,
                Codec::TopK => RangeCodec::TopK,
                Codec::LowRank(_) => panic!("no packets"),
            });
            let of_worker = |(after, residual): (&Vec<f32>, &mut Vec<f32>)| {
                residual.resize(agreed.len(), 0.);
                let changed = range.clone().map(|at| agreed[at] - after[at]);
                match codec {
                    Some(codec) => {
                        let residual = &mut residual[range.clone()];
                        residual.iter_mut().zip(changed).for_each(|(sum, x)| *sum += 1. / workers * x);
                        sent(codec, residual)
                    }
                    None => {
                        let mut changed: Vec<f32> = changed.collect();
                        if form.wire() != Wire::Full {
                            changed.iter_mut().for_each(|x| *x /= workers);
                        }
                        form.wire().round(&mut changed);
                        changed
                    }
                }
            };
            // Two or three workers are added in their order.
            let all = after.iter().zip(&mut residuals).map(of_worker);
            let add = |sum: Vec<f32>, more: Vec<f32>| sum.iter().zip(more).map(|(sum, x)| sum + x).collect();
            let mut mean = all.reduce(add).unwrap();
            if codec.is_none() {
                match form.wire() {
                    Wire::Full => mean.iter_mut().for_each(|sum| *sum /= workers),
                    wire => wire.round(&mut mean),
                }
            }
            for (at, mean) in range.zip(mean) {
                outer_step(of.outer, &mut agreed[at], &mut momentum[at], mean);
            }
        }
    })
}

// INV-98
#[test]
fn each_step_of_each_worker_is_that_of_a_training_computed_by_hand() {
    watched(|| {
        for form in [Compression::EightBits, Compression::TopK, Compression::Bf16] {
            for world in [(1, 2), (2, 1), (2, 2), (3, 1)] {
                for of in [local(3, Outer::Average), local(3, DILOCO), local(1, DILOCO)] {
                    let expected = by_hand(world, of, form, 7);
                    let found = on(world, (of, form), |strategy| trained(strategy, 7));
                    for (worker, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
                            let case = format!("{form}, {world:?}, {of:?}: worker {worker}, {step}");
                            assert!(bits(found) == bits(expected), "{case}");
                        }
                    }
                    let plain = on(world, (of, Compression::None), |strategy| trained(strategy, 7));
                    assert!(found != plain, "{form}, {world:?}, {of:?}: nothing has changed");
                }
            }
        }
    });
}

// INV-98
#[test]
fn all_links_give_the_same_bits_in_all_forms() {
    watched(|| {
        for form in LOSSY.into_iter().chain([Compression::F16]) {
            let train = |links| {
                let builder =
                    MultiWorkerMirroredStrategy::builder().local_steps(local(2, DILOCO)).compression(form);
                builder.on_threads(links, 3, |strategy| trained(strategy, 6)).unwrap()
            };
            let memory = train(Links::Memory);
            for step in [2, 4, 6] {
                let of_step: Vec<_> = memory.iter().map(|of| bits(&of[step - 1])).collect();
                assert!(of_step.iter().all(|of| *of == of_step[0]), "{form}: step {step}");
            }
            for links in [Links::Tcp, Links::Tls, Links::Shared] {
                assert!(train(links) == memory, "{form}, {links:?}");
            }
        }
    });
}

#[test]
fn one_step_and_an_average_are_compressed_lock_step() {
    watched(|| {
        for form in LOSSY {
            let lock_step = MultiWorkerMirroredStrategy::builder().compression(form);
            let lock_step = lock_step.on_threads(Links::Memory, 2, |strategy| trained(strategy, 4)).unwrap();
            assert!(lock_step[0] == lock_step[1]);
            let of = local(1, Outer::Average);
            assert!(on((2, 1), (of, form), |strategy| trained(strategy, 4)) == lock_step, "{form}");
        }
    });
}

/// Returns the weights after some steps of SGD.
fn by_sgd(strategy: &Strategy) -> Result<Vec<f32>> {
    let model = wide(strategy)?;
    let optimizer = Sgd::new(&model.variables, 0.5)?;
    for step in 1..=6 {
        strategy.run(&model, |ctx, layers| {
            let (loss, _) = loss(layers, step, ctx.replica_id_in_sync_group())?;
            optimizer.minimize(ctx, loss, 4)
        })?;
    }
    weights(&model)
}

#[test]
fn an_outer_step_of_each_gradient_is_compressed_lock_step_within_rounding() {
    watched(|| {
        let form = Compression::LowRank { rank: 2 };
        let each = local(1, Outer::Nesterov { learning_rate: 1., momentum: 0. });
        let of = |of, form| on((2, 1), (of, form), by_sgd).remove(0);
        let [found, expected] = [of(each, form), of(local(1, Outer::Average), form)];
        let plain = of(each, Compression::None);
        let distance =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        let (close, far) = (distance(&found, &expected), distance(&found, &plain));
        assert!(close < 1e-5 && far > 1e-3, "{close} and {far}");
    });
}

#[test]
fn small_variables_and_those_of_f64_are_sent_as_they_are() {
    watched(|| {
        let of = |form| {
            on((3, 1), (local(2, DILOCO), form), |strategy| {
                let model = strategy.replicate(|vb| {
                    let wide = vb.to_dtype(DType::F64).get_with_hints(2000, "wide", Init::Const(0.1))?;
                    Ok::<_, Error>((wide, vb.get_with_hints(1023, "small", Init::Const(0.1))?))
                })?;
                let optimizer = Sgd::new(&model.variables, 1.)?;
                let slope = [0.3, 0.7, 0.1][strategy.world().worker()];
                for _ in 0..4 {
                    strategy.run(&model, |ctx, (wide, small)| {
                        let loss = (wide.sum_all()?.to_dtype(DType::F32)? + small.sum_all()?)?;
                        optimizer.minimize(ctx, (loss * slope)?, 1)
                    })?;
                }
                model.variables.sha256()
            })
        };
        let plain = of(Compression::None);
        assert!(plain[0] == plain[1] && plain[0] == plain[2]);
        for form in LOSSY {
            assert_eq!(of(form), plain, "{form}");
        }
    });
}

/// Trains a weight by steps of SGD that change it by `change` on each worker. Returns the weight.
fn changed_by(strategy: &Strategy, change: f64) -> Result<(f32, Result<()>)> {
    let model = strategy.replicate(|vb| vb.get_with_hints((), "w", Init::Const(0.)))?;
    let optimizer = Sgd::new(&model.variables, 1.)?;
    let made = (0..2).try_for_each(|_| {
        strategy.run(&model, |ctx, w| optimizer.minimize(ctx, (w * -change)?, 1)).map(drop)
    });
    Ok((model.variables.get("w")?.to_scalar::<f32>()?, made))
}

#[test]
fn a_mean_that_f16_contains_is_exact_and_a_larger_one_is_an_error_that_changes_nothing() {
    watched(|| {
        let of = (local(2, Outer::Average), Compression::F16);
        for world in [(1, 1), (2, 1), (4, 1)] {
            for (weight, made) in on(world, of, |strategy| changed_by(strategy, 20_000.)) {
                made.unwrap();
                assert_eq!(weight, 40_000., "{world:?}");
            }
            let too_large = on(world, of, |strategy| changed_by(strategy, 200_000.));
            for (weight, made) in too_large {
                let error = made.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotFinite, "{error}");
                let text = error.to_string();
                assert!(text.contains("\"w\"") && text.contains("Bf16"), "{text}");
                assert_eq!(weight, 200_000., "{world:?}: of the first local step");
            }
        }
    });
}

#[test]
fn a_weight_that_is_infinite_stays_so_and_changes_no_other() {
    watched(|| {
        for form in [Compression::EightBits, Compression::TopK, Compression::F16] {
            for outer in [Outer::Average, DILOCO] {
                on((2, 1), (local(2, outer), form), |strategy| {
                    let model = strategy.replicate(|vb| vb.get_with_hints(2048, "w", Init::Const(0.)))?;
                    let mut values = vec![0.5f32; 2048];
                    values[7] = f32::NEG_INFINITY;
                    model.variables.set("w", &Tensor::from_vec(values, 2048, &Device::Cpu)?)?;
                    let optimizer = Sgd::new(&model.variables, 0.1)?;
                    for _ in 0..4 {
                        strategy.run(&model, |ctx, w| {
                            optimizer.minimize(ctx, w.narrow(0, 100, 1000)?.sqr()?.sum_all()?, 1)
                        })?;
                    }
                    let after = model.variables.get("w")?.to_vec1::<f32>()?;
                    assert!(after[7] == f32::NEG_INFINITY, "{form}: {}", after[7]);
                    assert!(after.iter().all(|x| !x.is_nan()) && after[100] < 0.5, "{form}");
                    Ok(())
                });
            }
        }
    });
}

// INV-94
#[test]
fn variables_that_are_not_frozen_keep_their_residuals() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        for (name, of) in [("lock", local(1, Outer::Average)), ("local", local(2, Outer::Average))] {
            let path = |what: &str| folder.path().join(format!("{name}-{what}"));
            on((2, 1), (of, Compression::TopK), |strategy| {
                let model = wide(strategy)?;
                let mut optimizer = Adam::new(&model.variables, 0.01)?;
                for step in 1..=4 {
                    strategy.run(&model, |ctx, layers| {
                        step_of(ctx, &optimizer, layers, step, ctx.replica_id_in_sync_group())
                    })?;
                }
                Checkpoint::new().part("optimizer", &optimizer).save(path("before"))?;
                optimizer = optimizer.freeze(|name| name.starts_with("a."))?;
                Checkpoint::new().part("optimizer", &optimizer).save(path("after"))
            });
            let (before, count) = residuals(&path("before"));
            assert!(count == 2 && before.iter().any(|x| *x != 0.), "{name}");
            assert_eq!(residuals(&path("after")), (before, 2), "{name}");
            let after = Reader::open(path("after")).unwrap();
            assert!(!after.names().any(|name| name.ends_with("/a.weight")), "{name}");
        }
    });
}

#[test]
fn an_outer_step_sends_few_bytes() {
    watched(|| {
        for workers in [2, 3] {
            let bytes = |steps, form| bytes_of_ten_steps(local(steps, DILOCO), form, workers);
            let calls = bytes(100, Compression::None);
            let full = bytes(10, Compression::None) - calls;
            let others = workers * (workers - 1);
            // 25,600 weights, and 300 biases that are sent as they are, to which the bytes of calls are added.
            let rest = others * (2 * 4 * 300 + 500);
            for (form, of_weights) in [(Compression::EightBits, 1.016), (Compression::TopK, 0.0366)] {
                let found = bytes(10, form) - calls;
                let expected = (25_600. * of_weights) as usize * others;
                println!("{workers} workers, 10 local steps, {form}: {found} of {full} bytes");
                let range = expected..expected + rest;
                assert!(range.contains(&found), "{workers} workers, {form}: {found}, {range:?} expected");
            }
        }
    });
}

#[test]
fn workers_with_different_forms_get_one_error_in_the_outer_step_which_changes_nothing() {
    watched(|| {
        on_groups(
            groups::groups(Links::Memory, 2, 1).unwrap(),
            |worker, builder| {
                let form = [Compression::EightBits, Compression::None][worker];
                builder.local_steps(local(2, Outer::Average)).compression(form)
            },
            |strategy| {
                let model = wide(strategy)?;
                let optimizer = Adam::new(&model.variables, 0.01)?;
                let step = |number| {
                    strategy.run(&model, |ctx, layers| {
                        step_of(ctx, &optimizer, layers, number, ctx.replica_id_in_sync_group())
                    })
                };
                step(1)?;
                let before = bits(&weights(&model)?);
                let error = step(2).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
                let names_both =
                    error.to_string().contains("compression: 8bit on worker 0, none on worker 1");
                assert!(names_both && bits(&weights(&model)?) == before, "{error}");
                Ok(())
            },
        );
    });
}

/// A section of a training: the checkpoint that it resumes from, its steps, and where it saves.
#[derive(Clone)]
struct Run<'a> {
    from: Option<&'a Path>,
    steps: RangeInclusive<u64>,
    to: Option<&'a Path>,
}

/// Trains as `run` says, and returns the bits of this worker's weights. One worker skips a step.
fn train(strategy: &Strategy, run: &Run<'_>) -> Result<Vec<u32>> {
    let model = wide(strategy)?;
    let optimizer = Adam::new(&model.variables, 0.01)?.on_not_finite(NotFinite::Skip);
    let parts = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
    run.from.map_or(Ok(()), |path| parts.restore(path).map(drop))?;
    for step in run.steps.clone() {
        strategy.run(&model, |ctx, layers| {
            let id = ctx.replica_id_in_sync_group();
            let (loss, rows) = loss(layers, step, id)?;
            let loss = if step == 2 && id == 0 { (loss * f64::NAN)? } else { loss };
            optimizer.minimize(ctx, loss, rows)
        })?;
    }
    run.to.map_or(Ok(()), |path| parts.save(path))?;
    Ok(bits(&weights(&model)?))
}

const fn run(steps: RangeInclusive<u64>) -> Run<'static> {
    Run { from: None, steps, to: None }
}

// INV-94, INV-98
#[test]
fn a_training_that_is_resumed_after_an_outer_step_is_one_without_interruption() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        for form in LOSSY {
            for world in [(1, 2), (2, 1), (2, 2), (3, 1)] {
                for of in [local(3, Outer::Average), local(3, DILOCO)] {
                    let with = (of, form);
                    let undisturbed = on(world, with, |strategy| train(strategy, &run(1..=9)));
                    let path = folder.path().join(format!("{form}-{world:?}-{}", of.outer));
                    let to = Run { to: Some(&path), ..run(1..=6) };
                    on(world, with, |strategy| train(strategy, &to));
                    let from = Run { from: Some(&path), ..run(7..=9) };
                    let resumed = on(world, with, |strategy| train(strategy, &from));
                    assert!(resumed == undisturbed, "{form}, {world:?}, {of:?}");
                }
            }
        }
    });
}

#[test]
fn a_single_worker_resumes_between_outer_steps() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        for form in [Compression::TopK, Compression::Bf16] {
            let with = (local(3, Outer::Average), form);
            let train = |run: &Run<'_>| on((1, 2), with, |strategy| train(strategy, run));
            let path = folder.path().join(form.to_string());
            train(&Run { to: Some(&path), ..run(1..=5) });
            assert!(train(&Run { from: Some(&path), ..run(6..=8) }) == train(&run(1..=8)), "{form}");
        }
        // Averages alone begin at no weights.
        let path = folder.path().join("none");
        let plain = (local(3, Outer::Average), Compression::None);
        on((1, 1), plain, |strategy| train(strategy, &Run { to: Some(&path), ..run(1..=5) }));
        let compressed = (local(3, Outer::Average), Compression::TopK);
        let from = Run { from: Some(&path), ..run(6..=6) };
        let errors = on((1, 1), compressed, |strategy| Ok(train(strategy, &from).unwrap_err()));
        assert!(errors[0].to_string().contains("Average with compression topk needs"), "{}", errors[0]);
    });
}

/// Returns the sum of a variable's residuals over all workers, and their number.
fn residuals(path: &Path) -> (Vec<f64>, usize) {
    let reader = Reader::open(path).unwrap();
    let is_one =
        |name: &&str| name.starts_with("optimizer/compression/residual/") && name.ends_with("/b.weight");
    let names: Vec<_> = reader.names().filter(is_one).collect();
    let mut sum = Vec::new();
    for name in &names {
        let one = reader.tensor(name).unwrap().into_vec::<f32>().unwrap();
        sum.resize(one.len(), 0.);
        sum.iter_mut().zip(one).for_each(|(sum, x)| *sum += f64::from(x));
    }
    (sum, names.len())
}

const NOTHING: RangeInclusive<u64> = RangeInclusive::new(1, 0);

#[test]
fn another_number_of_workers_keeps_the_sum_of_the_residuals() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        for form in LOSSY {
            let with = (local(2, DILOCO), form);
            let path = |what: &str| folder.path().join(format!("{form}-{what}"));
            let to = Run { to: Some(&path("4")), ..run(1..=6) };
            on((4, 2), with, |strategy| train(strategy, &to));
            let (four, count) = residuals(&path("4"));
            assert!(count == 4 && four.iter().any(|x| *x != 0.), "one for each worker, not for each replica");
            for workers in [1, 2, 3, 5] {
                let name = path(&workers.to_string());
                let again = Run { from: Some(&path("4")), steps: NOTHING, to: Some(&name) };
                on((workers, 1), with, |strategy| train(strategy, &again));
                let (sum, count) = residuals(&name);
                assert_eq!(count, workers, "{form}");
                let close = four.iter().zip(&sum).all(|(before, after)| (before - after).abs() < 1e-6);
                assert!(close && sum.len() == four.len(), "{form}: {workers}");
            }
        }
    });
}

// Residuals of gradients and of weights have no common unit.
#[test]
fn lock_step_and_local_steps_begin_without_the_residuals_of_each_other() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let of = [local(1, Outer::Average), local(2, DILOCO)];
        for form in LOSSY {
            for (first, second) in [(of[0], of[1]), (of[1], of[0])] {
                let path = |what: &str| folder.path().join(format!("{form}-{}-{what}", first.steps));
                let to = Run { to: Some(&path("first")), ..run(1..=4) };
                on((2, 1), (first, form), |strategy| train(strategy, &to));
                assert_eq!(residuals(&path("first")).1, 2);
                let again = Run { from: Some(&path("first")), steps: NOTHING, to: Some(&path("second")) };
                on((2, 1), (second, form), |strategy| train(strategy, &again));
                assert_eq!(residuals(&path("second")).1, 0, "{form}");
                let on = |from: Option<&Path>| {
                    let run = Run { from, ..run(5..=8) };
                    on((2, 1), (second, form), |strategy| train(strategy, &run))
                };
                let after = on(Some(&path("first")));
                assert!(after[0] == after[1] && after == on(Some(&path("second"))), "{form}");
            }
        }
    });
}
