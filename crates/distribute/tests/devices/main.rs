//! Replicas whose devices have separate memory. They compute with copies of the weights and with candle's operations,
//! and train to the weights of replicas on the CPU. A process with `DISTRIBUTE_GENERIC_DEVICES=1` treats CPUs as such
//! devices.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod gpus;
mod memory;
mod training;

use candle_core::{Device, Tensor, Var};
use candle_nn::{Init, Module, VarBuilder};
use distribute::nn::{self, Embedding};
use distribute::optimizer::rules::{Adagrad, Adam, Momentum, Sgd};
use distribute::optimizer::{Gradients, NotFinite, Transform};
use distribute::tensor::IndexedSlices;
use distribute::{
    Checkpoint, HostTensor, LocalCluster, MirroredStrategy, MultiWorkerMirroredStrategy, OneDeviceStrategy,
    Optimizer, ParameterServerStrategy, ReduceOp, ReplicaContext, Result, Strategy, Variables,
};
use distribute_testing::{child, watched};
use std::time::Duration;
use training::{Trained, train};

const SWITCH: &str = "DISTRIBUTE_GENERIC_DEVICES";
const GENERIC: &str = "generic";

fn mirrored() -> Strategy {
    MirroredStrategy::cpus(2).unwrap()
}

/// Runs all trainings, on the CPUs of this process.
fn trained() -> Vec<Trained> {
    let mut all = training::by_two(&mirrored());
    let alone: Strategy = OneDeviceStrategy::new("cpu:0").unwrap();
    all.extend(training::by_one(&alone));
    for (dtype, limit) in training::TYPES {
        let workers = MultiWorkerMirroredStrategy::on_threads(2, 1, |strategy| {
            train(strategy, Momentum::default(), 0.1, false, dtype)
        });
        all.push((format!("two workers {dtype:?}"), limit, workers.unwrap().remove(1)));
        let cluster = LocalCluster::new(1, 2).unwrap();
        let servers = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver()).build();
        let weights = train(&servers.unwrap().into(), Adagrad::default(), 0.1, false, dtype);
        all.push((format!("servers {dtype:?}"), limit, weights.unwrap()));
    }
    all
}

// INV-68
#[test]
fn replicas_with_separate_memory_train_to_the_weights_of_those_on_the_cpu() {
    const TEST: &str = "replicas_with_separate_memory_train_to_the_weights_of_those_on_the_cpu";
    if child::part().is_some() {
        for (what, limit, weights) in trained() {
            for (name, values) in weights {
                let bits: Vec<String> = values.iter().map(|x| format!("{:x}", x.to_bits())).collect();
                println!("weights|{what}|{limit}|{name}|{}", bits.join(","));
            }
        }
        return;
    }
    let weights = |switch| -> Vec<Trained> {
        let mut command = child::command(TEST, GENERIC);
        command.env(SWITCH, switch);
        let (said, _) = child::output(command, Duration::from_secs(100));
        let mut all: Vec<Trained> = Vec::new();
        for line in said.lines().filter_map(|line| Some(line.split_once("weights|")?.1)) {
            let [what, limit, name, bits] = line.split('|').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let number = |bits| f64::from_bits(u64::from_str_radix(bits, 16).unwrap());
            let values = (name.to_owned(), bits.split(',').map(number).collect());
            match all.last_mut() {
                Some((last, _, weights)) if last == what => weights.push(values),
                _ => all.push((what.to_owned(), limit.parse().unwrap(), vec![values])),
            }
        }
        all
    };
    // Else one process has computed as the other did.
    assert!(training::differing(&weights("0"), &weights("1")) > 0);
}

/// Runs a test in a process that treats CPUs as devices with separate memory.
fn generic(test: &str, body: impl FnOnce() + Send + 'static) {
    if child::part().is_some() {
        return watched(body);
    }
    let mut command = child::command(test, GENERIC);
    command.env(SWITCH, "1");
    child::output(command, Duration::from_secs(100));
}

// INV-68
#[test]
fn each_replica_computes_with_a_fresh_copy() {
    generic("each_replica_computes_with_a_fresh_copy", || {
        let strategy = mirrored();
        let model = strategy.replicate(|vb| vb.get_with_hints(2, "w", Init::Const(1.))).unwrap();
        let [a, b] = model.models().values() else { panic!() };
        let own = model.variables.trainable().unwrap().remove(0).1;
        assert!(a.id() != b.id() && a.id() != own.id() && b.id() != own.id());
        let values = |tensor: &Tensor| tensor.to_vec1::<f32>().unwrap();

        // Outside of runs, writes are visible at once; in a run, after the update and after the merge.
        model.variables.set("w", &Tensor::new(&[2f32, 3.], &Device::Cpu).unwrap()).unwrap();
        assert_eq!((values(a), values(b)), (vec![2., 3.], vec![2., 3.]));
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
        let seen = strategy.run(&model, |ctx, w| {
            optimizer.minimize(ctx, w.sum_all()?, 1)?;
            let behind_step = values(w);
            let variable = model.variables.variable("w")?;
            ctx.merge_call((), |_, _| variable.assign(Tensor::new(&[7f32, 8.], &Device::Cpu)?))?;
            Ok((behind_step, values(w)))
        });
        assert_eq!(seen.unwrap().into_values(), vec![(vec![1., 2.], vec![7., 8.]); 2]);
        // Writes by candle's own calls are only noticed for variables that `trainable` has returned.
        own.set(&Tensor::new(&[4f32, 5.], &Device::Cpu).unwrap()).unwrap();
        let seen = strategy.run(&model, |_, w| Ok(values(w))).unwrap();
        assert_eq!(seen.into_values(), [[4., 5.], [4., 5.]]);
    });
}

#[test]
fn a_restored_model_is_restored_on_every_replica() {
    generic("a_restored_model_is_restored_on_every_replica", || {
        let folder = tempfile::tempdir().unwrap();
        let strategy = mirrored();
        let model = strategy.replicate(|vb| vb.get_with_hints(2, "w", Init::Const(1.))).unwrap();
        let saved = Checkpoint::new().part("model", &model.variables);
        saved.save(folder.path().join("one")).unwrap();
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
        strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sum_all()?, 1)).unwrap();
        saved.restore(folder.path().join("one")).unwrap();
        for w in model.models() {
            assert_eq!(w.to_vec1::<f32>().unwrap(), [1., 1.]);
        }
    });
}

#[test]
fn custom_gradients_are_of_the_replicas_copy() {
    generic("custom_gradients_are_of_the_replicas_copy", || {
        let strategy = mirrored();
        let model = strategy.replicate(|vb| vb.get_with_hints(1, "w", Init::Const(1.))).unwrap();
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
        strategy
            .run(&model, |ctx, w| {
                let id = ctx.replica_id_in_sync_group() as f64;
                let store = (w.sum_all()? * (1. + id))?.backward()?;
                let gradients = Gradients::from_store(&optimizer, &store)?;
                assert_eq!(gradients.iter().count(), 1);
                optimizer.apply_gradients(ctx, gradients, ReduceOp::Sum)
            })
            .unwrap();
        assert_eq!(model.variables.get("w").unwrap().to_vec1::<f32>().unwrap(), [1. - 3.]);
    });
}

/// Checks a model that uses a table both by row and completely, like a language model with tied weights.
#[test]
fn a_table_used_for_lookups_and_products_gets_both_gradients() {
    generic("a_table_used_for_lookups_and_products_gets_both_gradients", || {
        let strategy = mirrored();
        let tied = |vb: VarBuilder<'static>| -> candle_core::Result<(Embedding, Tensor)> {
            let rows = nn::embedding(3, 2, vb.pp("table"))?;
            Ok((rows, vb.pp("table").get((3, 2), "weight")?))
        };
        let model = strategy.replicate(tied).unwrap();
        let before = model.variables.get("table.weight").unwrap().to_vec2::<f32>().unwrap();
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
        let ids = Tensor::new(&[1u32], &Device::Cpu).unwrap();
        strategy
            .run(&model, |ctx, (rows, whole)| {
                let loss = (rows.forward(&ids)?.sum_all()? + (whole.sum_all()? * 10.)?)?;
                optimizer.minimize(ctx, loss, 1)
            })
            .unwrap();
        let after = model.variables.get("table.weight").unwrap().to_vec2::<f32>().unwrap();
        for (row, (before, after)) in before.iter().zip(&after).enumerate() {
            let gradient = if row == 1 { 11. } else { 10. };
            for (before, after) in before.iter().zip(after) {
                assert!((before - gradient - after).abs() < 1e-5, "{row}: {before} {after}");
            }
        }
    });
}

/// Checks a layer whose complete table is used in a product.
#[test]
fn the_complete_table_of_a_layer_is_the_replicas_copy() {
    generic("the_complete_table_of_a_layer_is_the_replicas_copy", || {
        let cluster = LocalCluster::new(1, 1).unwrap();
        let servers = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver());
        for strategy in [mirrored(), servers.build().unwrap().into()] {
            let model = strategy.replicate(|vb: VarBuilder| nn::embedding(3, 2, vb)).unwrap();
            let before = model.variables.get("weight").unwrap().to_vec2::<f32>().unwrap();
            let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
            let ids = Tensor::new(&[1u32], &Device::Cpu).unwrap();
            let seen = strategy.run(&model, |ctx, rows| {
                let loss = (rows.forward(&ids)?.sum_all()? + (rows.embeddings().sum_all()? * 10.)?)?;
                optimizer.minimize(ctx, loss, 1)?;
                Ok(rows.embeddings().to_vec2::<f32>()?)
            });
            let after = model.variables.get("weight").unwrap().to_vec2::<f32>().unwrap();
            assert!(seen.unwrap().iter().all(|seen| *seen == after));
            for (row, (before, after)) in before.iter().zip(&after).enumerate() {
                let gradient = if row == 1 { 11. } else { 10. };
                assert!((before[0] - gradient - after[0]).abs() < 1e-5, "{row}: {before:?} {after:?}");
            }
        }
    });
}

// INV-68
#[test]
fn copies_have_an_aggregated_write_at_once() {
    generic("copies_have_an_aggregated_write_at_once", || {
        let strategy = mirrored();
        let model = strategy.replicate(|vb| vb.get_with_hints(1, "w", Init::Const(1.))).unwrap();
        let seen = strategy.run(&model, |ctx, w| {
            let variable = model.variables.variable("w")?;
            // A write in a merge function that then fails.
            let failed = ctx.merge_call((), |_, _| -> Result<()> {
                variable.assign(Tensor::new(&[3f32], &Device::Cpu)?)?;
                Err(distribute::Error::other("no"))
            });
            Ok((failed.is_err(), w.to_vec1::<f32>()?))
        });
        assert_eq!(
            seen.map_or(vec![3.; 2], |seen| seen.iter().map(|(_, w)| w[0]).collect::<Vec<_>>()),
            [3., 3.]
        );
        assert!(model.models().iter().all(|w| w.to_vec1::<f32>().unwrap() == [3.]));
    });
}

#[test]
fn collectives_have_gradients_for_copies() {
    generic("collectives_have_gradients_for_copies", || {
        let strategy = mirrored();
        let gradients = strategy.run((), |ctx, ()| {
            let x = Var::new(&[1f32, 2.], &Device::Cpu)?;
            let sum = ctx.all_reduce(ReduceOp::Sum, x.as_tensor().clone())?;
            let gathered = ctx.all_gather(x.as_tensor().clone(), 0)?;
            let loss = (sum.sum_all()? + gathered.sum_all()?)?;
            Ok(loss.backward()?.remove(&x).unwrap().to_vec1::<f32>()?)
        });
        assert_eq!(gradients.unwrap().into_values(), [[4., 4.], [4., 4.]]);
    });
}

// INV-68, INV-69
#[test]
fn variables_updated_on_a_device_are_read_written_saved_and_trained_as_on_the_host() {
    generic("variables_updated_on_a_device_are_read_written_saved_and_trained_as_on_the_host", || {
        let folder = tempfile::tempdir().unwrap();
        let strategies: [Strategy; 2] = [OneDeviceStrategy::new("cpu:0").unwrap(), mirrored()];
        for (number, strategy) in strategies.into_iter().enumerate() {
            let built = || {
                let model = strategy.replicate(|vb| vb.get_with_hints(2, "w", Init::Const(8.))).unwrap();
                let optimizer = Optimizer::with_rule(Momentum::new(0.5), &model.variables, 1.).unwrap();
                (model, optimizer)
            };
            let value = |variables: &Variables| variables.get("w").unwrap().to_vec1::<f32>().unwrap();
            let slot = |optimizer: &Optimizer<Momentum>| {
                optimizer.slot("w", "accum").unwrap().to_vec1::<f32>().unwrap()
            };
            let (model, optimizer) = built();
            let step = |model, optimizer: &Optimizer<Momentum>| {
                strategy.run(model, |ctx, w: &Tensor| optimizer.minimize(ctx, w.sum_all()?, 1)).unwrap();
            };
            // accum: 1, 1.5, 1.75, …
            step(&model, &optimizer);
            step(&model, &optimizer);
            assert_eq!((value(&model.variables), slot(&optimizer)), (vec![5.5; 2], vec![1.5; 2]));
            assert!(model.models().iter().all(|w| w.to_vec1::<f32>().unwrap() == [5.5; 2]));

            let checkpoint = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
            let path = folder.path().join(format!("{number}"));
            checkpoint.save(&path).unwrap();
            step(&model, &optimizer);
            assert_eq!(value(&model.variables), [3.75; 2]);
            checkpoint.restore(&path).unwrap();
            assert_eq!((value(&model.variables), slot(&optimizer)), (vec![5.5; 2], vec![1.5; 2]));
            step(&model, &optimizer);
            assert_eq!((value(&model.variables), slot(&optimizer)), (vec![3.75; 2], vec![1.75; 2]));

            // Written from outside, and in part.
            step(&model, &optimizer);
            let variable = model.variables.variable("w").unwrap();
            variable.assign_add(Tensor::new(&[0f32, 1.], &Device::Cpu).unwrap()).unwrap();
            assert_eq!(value(&model.variables), [1.875, 2.875]);
            step(&model, &optimizer);
            assert_eq!((value(&model.variables), slot(&optimizer)), (vec![-0.0625, 0.9375], vec![1.9375; 2]));

            // A rule of one's own goes by the host, on the same variables.
            let by_closure = Optimizer::with_rule(Sgd, &model.variables, 1.)
                .unwrap()
                .after_reduce(Transform::each(|_, gradient| Ok(gradient)))
                .unwrap();
            strategy.run(&model, |ctx, w| by_closure.minimize(ctx, w.sum_all()?, 1)).unwrap();
            assert_eq!(value(&model.variables), [-1.0625, -0.0625]);
            step(&model, &optimizer);
            // A program that has candle's variable may use it at any time, so slots are on the host from now on.
            let trainable = model.variables.trainable().unwrap();
            let w = &trainable[0].1;
            assert_eq!(w.to_vec1::<f32>().unwrap(), value(&model.variables));
            w.set(&Tensor::new(&[4f32, 5.], &Device::Cpu).unwrap()).unwrap();
            step(&model, &optimizer);
            let accum = 2. - 1. / 64.;
            assert_eq!(
                (w.to_vec1::<f32>().unwrap(), slot(&optimizer)),
                (vec![4. - accum, 5. - accum], vec![accum; 2])
            );
        }
    });
}

#[test]
fn a_step_that_is_not_finite_is_skipped_on_devices_and_its_error_names_the_tensor() {
    generic("a_step_that_is_not_finite_is_skipped_on_devices_and_its_error_names_the_tensor", || {
        let strategy: Strategy = OneDeviceStrategy::new("cpu:0").unwrap();
        let model = strategy.replicate(|vb| vb.get_with_hints(2, "w", Init::Const(8.))).unwrap();
        let made = |how| {
            let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap().on_not_finite(how);
            let step = |factor: f64| {
                strategy.run(&model, |ctx, w| optimizer.minimize(ctx, (w.sum_all()? * factor)?, 1)).map(drop)
            };
            let steps = [step(1.), step(f64::NAN), step(1.)];
            (steps, optimizer.skipped_steps(), model.variables.get("w").unwrap().to_vec1::<f32>().unwrap())
        };
        let (steps, skipped, w) = made(NotFinite::Skip);
        assert_eq!((steps.iter().all(Result::is_ok), skipped, w), (true, 1, vec![6.; 2]));
        let ([_, bad, _], _, w) = made(NotFinite::Error);
        let error = bad.unwrap_err().to_string();
        assert!(
            error.contains("the loss is NaN") && error.contains("first by name w: NaN at element 0"),
            "{error}"
        );
        assert_eq!(w, [4.; 2]);
    });
}

// INV-68
#[test]
fn a_weight_in_a_penalty_is_that_of_the_step() {
    generic("a_weight_in_a_penalty_is_that_of_the_step", || {
        let strategy: Strategy = OneDeviceStrategy::new("cpu:0").unwrap();
        let model = strategy.replicate(|vb| vb.get_with_hints(1, "w", Init::Const(8.))).unwrap();
        let optimizer = Optimizer::with_rule(Momentum::new(0.5), &model.variables, 1.).unwrap();
        let w = model.variables.variable("w").unwrap();
        let step = |penalty: bool| {
            let step = |ctx: &ReplicaContext, of_model: &Tensor| {
                let of_model = of_model.sum_all()?;
                let loss = if penalty { (of_model + w.as_tensor()?.sqr()?.sum_all()?)? } else { of_model };
                optimizer.minimize(ctx, loss, 1).map(drop)
            };
            strategy.run(&model, step).unwrap();
            model.variables.get("w").unwrap().to_vec1::<f32>().unwrap()[0]
        };
        // accum: 1, then 0.5 + 1 + 2 · 7, then 7.75 + 1 + 2 · −8.5.
        assert_eq!((step(false), step(true), step(true)), (7., -8.5, -0.25));
    });
}

#[test]
fn a_gradient_of_no_rows_is_a_gradient_on_devices() {
    generic("a_gradient_of_no_rows_is_a_gradient_on_devices", || {
        let strategy: Strategy = OneDeviceStrategy::new("cpu:0").unwrap();
        let table = strategy.replicate(|vb| vb.get_with_hints((3, 1), "table", Init::Const(8.))).unwrap();
        for (rule, after) in [(Adam::lazy(), [8.; 3]), (Adam::default(), [7.9328; 3])] {
            let optimizer = Optimizer::with_rule(rule, &table.variables, 0.1)
                .unwrap()
                .before_reduce(Transform::weight_decay(0.))
                .unwrap()
                .after_reduce(Transform::clip_by_global_norm(1.))
                .unwrap();
            table.variables.set("table", &Tensor::full(8f32, (3, 1), &Device::Cpu).unwrap()).unwrap();
            let step = |rows: &[i64]| {
                strategy.run((), |ctx, ()| {
                    let values = HostTensor::new(vec![1f32; rows.len()], [rows.len(), 1])?;
                    let indices = HostTensor::vector(rows.to_vec());
                    let mut gradients = Gradients::new(&optimizer);
                    gradients.insert("table", IndexedSlices::new(values, indices, None)?)?;
                    optimizer.apply_gradients(ctx, gradients, ReduceOp::Sum)
                })
            };
            if after[0] != 8. {
                step(&[0, 1, 2]).unwrap();
                table.variables.set("table", &Tensor::full(8f32, (3, 1), &Device::Cpu).unwrap()).unwrap();
            }
            step(&[]).unwrap();
            let values =
                table.variables.get("table").unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let near =
                values.iter().zip(after).all(|(value, after): (&f32, f32)| (value - after).abs() < 1e-2);
            assert!(near && optimizer.finished_steps() > 0, "{values:?}");
        }
    });
}
