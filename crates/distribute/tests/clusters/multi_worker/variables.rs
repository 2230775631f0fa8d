//! Variables of several workers: created, written in replica context, and read outside; running statistics and metrics.

use crate::multi_worker::support::{
    LARGE, WORLDS, bits, number, one_message, rows, same_as_one_process, vector,
};
use candle_core::{Device, Tensor};
use candle_nn::{BatchNormConfig, Init, ModuleT, VarBuilder};
use distribute::checkpoint::{Checkpointed, Reader, Writer};
use distribute::metrics::Mean;
use distribute::strategy::CommunicationOptions;
use distribute::tensor::{DType, Leaf};
use distribute::variables::{VariableAggregation as Aggregation, VariableSynchronization as Synchronization};
use distribute::{Error, ErrorKind, Result, nn, prelude::*};
use distribute_testing::watched;
use std::time::Duration;

const AGGREGATIONS: [Aggregation; 3] = [Aggregation::Sum, Aggregation::Mean, Aggregation::OnlyFirstReplica];

/// Returns the lengths to test. Only one aggregation is tested with a large one, because all of them handle it in the
/// same way.
fn lens(aggregation: Aggregation) -> Vec<usize> {
    if aggregation == Aggregation::Mean { vec![2, LARGE] } else { vec![2] }
}

// ONR-2, ONR-3
#[test]
fn on_read_variables_are_read_as_the_aggregate_of_all_workers() {
    same_as_one_process(|strategy| {
        let mut all = Vec::new();
        for aggregation in AGGREGATIONS {
            for len in lens(aggregation) {
                let new = Variable::builder("seen", HostTensor::zeros(DType::F32, [len])?)
                    .synchronization(Synchronization::OnRead)
                    .aggregation(aggregation);
                let seen = strategy.scope(|| new.create())?;
                let inside = strategy.run((), |ctx, ()| {
                    seen.assign_add(vector(DType::F32, ctx.replica_id_in_sync_group(), len))?;
                    ctx.merge_call((), |_, _| Ok(bits(seen.read::<Leaf>()?)))
                })?;
                all.push(bits(seen.read::<Leaf>()?));
                assert_eq!(inside.values()[0], all[all.len() - 1]);
                // RED-9: the aggregation of the variable plays no part.
                all.push(bits(strategy.reduce(ReduceOp::Sum, &seen, None)?));
            }
        }
        Ok(all)
    });
}

// ONR-1
#[test]
fn a_value_assigned_to_a_sum_is_shared_out_over_the_replicas_of_all_workers() {
    same_as_one_process(|strategy| {
        let new = Variable::builder("count", HostTensor::vector(vec![0i64, 0]))
            .synchronization(Synchronization::OnRead)
            .aggregation(Aggregation::Sum);
        let count = strategy.scope(|| new.create())?;
        count.assign(HostTensor::vector(vec![17i64, -5]))?;
        let before = count.read::<HostTensor>()?.to_vec::<i64>()?;
        assert_eq!(before, [17, -5]);
        strategy.run((), |_, ()| count.assign_add(HostTensor::vector(vec![1i64, 2])))?;
        Ok(count.read::<HostTensor>()?.to_vec::<i64>()?)
    });
}

// WR-3
#[test]
fn writes_of_the_replicas_of_all_workers_are_combined() {
    same_as_one_process(|strategy| {
        let mut all = Vec::new();
        for aggregation in AGGREGATIONS {
            for len in lens(aggregation) {
                let start = vector(DType::F32, 9, len);
                let weight = strategy
                    .scope(|| Variable::builder("weight", start.clone()).aggregation(aggregation).create())?;
                strategy.run((), |ctx, ()| {
                    let mine = vector(DType::F32, ctx.replica_id_in_sync_group(), len);
                    weight.assign_add(mine.clone())?;
                    weight.assign_sub(mine.divide(3.)?)
                })?;
                assert!(weight.copies_agree()?);
                all.push(bits(weight.read::<Leaf>()?));
                strategy.run((), |ctx, ()| {
                    weight.assign(vector(DType::F32, ctx.replica_id_in_sync_group() + 1, len))
                })?;
                all.push(bits(weight.read::<Leaf>()?));
            }
        }
        Ok(all)
    });
}

// SC-1, SC-2, SC-3
#[test]
fn rows_that_the_replicas_of_all_workers_write_are_joined() {
    same_as_one_process(|strategy| {
        let mut all = Vec::new();
        for aggregation in AGGREGATIONS {
            let start = vector(DType::F32, 9, 10).reshape([5, 2])?;
            let table =
                strategy.scope(|| Variable::builder("table", start).aggregation(aggregation).create())?;
            strategy.run((), |ctx, ()| {
                let id = ctx.replica_id_in_sync_group();
                table.scatter_add(rows(id))?;
                table.scatter_mul(rows(id + 1))
            })?;
            if aggregation == Aggregation::OnlyFirstReplica {
                strategy.run((), |ctx, ()| table.scatter_update(rows(ctx.replica_id_in_sync_group() + 2)))?;
            }
            assert!(table.copies_agree()?);
            all.push(bits(table.read::<Leaf>()?));
        }
        Ok(all)
    });
}

// VAR-5
#[test]
fn worker_0_sends_the_initial_value_to_all() {
    watched(|| {
        for (workers, replicas) in WORLDS {
            let all = crate::multi_worker::on_threads(workers, replicas, |strategy| {
                let mine = number(strategy.world().worker(), 0);
                let in_scope = strategy.scope(|| Variable::new("in_scope", mine))?;
                let candle = Tensor::new(&[mine, 1.], &Device::Cpu)?;
                let tensor = strategy.scope(|| Variable::new("tensor", candle))?;
                assert!(matches!(tensor.read::<Leaf>()?, Leaf::Candle(_)));
                let in_run = strategy
                    .run((), |ctx, ()| Variable::new("in_run", number(ctx.replica_id_in_sync_group(), 1)))?;
                let values = [in_scope.copies::<f64>()?, in_run.values()[0].copies()?].concat();
                Ok((values, tensor.read::<Tensor>()?.to_vec1::<f64>()?))
            });
            let first = |i| vec![number(0, i); replicas];
            let expected = ([first(0), first(1)].concat(), vec![number(0, 0), 1.]);
            assert_eq!(all.unwrap(), vec![expected; workers]);
        }
    });
}

#[test]
fn workers_that_create_other_variables_get_one_error() {
    let text = one_message(2, 2, |strategy| {
        let len = 2 + strategy.world().worker();
        strategy.scope(|| Variable::new("weight", vector(DType::F32, 0, len))).map(drop)
    });
    for part in
        ["creation of a variable (weight float32[2]", "float32[3]", "replicas 2 and 3", "variables.rs"]
    {
        assert!(text.contains(part), "{text}");
    }
}

// INV-26
#[test]
fn workers_that_write_other_variables_get_one_error() {
    let text = one_message(2, 1, |strategy| {
        let new = |name| Variable::builder(name, 0f32).aggregation(Aggregation::Sum).create();
        let (first, second) = strategy.scope(|| Ok((new("same")?, new("same")?)))?;
        strategy.run((), |ctx, ()| match ctx.replica_id_in_sync_group() {
            0 => first.assign_add(1f32),
            _ => second.assign_add(1f32),
        })?;
        Ok(())
    });
    assert!(text.contains("variable 1") && text.contains("variable 2"), "{text}");
}

#[test]
fn a_worker_that_cannot_create_a_variable_notifies_the_others() {
    watched(|| {
        let texts = crate::multi_worker::on_threads(2, 1, |strategy| {
            let new = Variable::builder("weight", 0f32);
            let new = match strategy.world().worker() {
                0 => new,
                _ => new.synchronization(Synchronization::None),
            };
            Ok(strategy.scope(|| new.create()).unwrap_err().to_string())
        });
        let texts = texts.unwrap();
        assert!(texts[0].contains("replica 1 failed"), "{texts:#?}");
        assert!(texts[1].contains("synchronization NONE"), "{texts:#?}");
    });
}

#[test]
fn a_read_that_not_all_workers_make_is_an_error_at_the_deadline() {
    watched(|| {
        let options =
            CommunicationOptions { timeout: Some(Duration::from_millis(300)), ..Default::default() };
        let texts = crate::multi_worker::on_threads_with(options, 2, 2, |strategy| {
            let new = Variable::builder("seen", 0f32)
                .synchronization(Synchronization::OnRead)
                .aggregation(Aggregation::Sum);
            let seen = strategy.scope(|| new.create())?;
            let error = match strategy.world().worker() {
                0 => seen.read::<f32>().unwrap_err(),
                // This worker gets the error of the others in one of its next calls.
                _ => loop {
                    if let Err(error) = strategy.reduce(ReduceOp::Sum, 1f32, None) {
                        break error;
                    }
                },
            };
            // After the error, a call of all workers succeeds.
            assert_eq!(seen.read::<f32>()?, 0.);
            Ok(error.to_string())
        });
        let texts = texts.unwrap();
        assert!(texts[0].contains("read of a variable (seen"), "{texts:#?}");
        assert_eq!(texts[0], texts[1]);
    });
}

/// Returns the message of the error that all workers get for a model that depends on the worker. Checks that they can
/// build a model afterwards.
fn refused(
    workers: usize,
    replicas: usize,
    build: impl Fn(&Strategy, usize) -> Result<()> + Send + Sync + 'static,
) -> String {
    watched(move || {
        let texts = crate::multi_worker::on_threads(workers, replicas, |strategy| {
            let error = build(strategy, strategy.world().worker()).expect_err("the models differ");
            assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
            strategy.replicate(|vb: VarBuilder| vb.get_with_hints(3, "w", Init::Const(1.)))?;
            Ok(error.to_string())
        });
        let mut texts = texts.unwrap();
        texts.dedup();
        assert_eq!(texts.len(), 1, "{texts:#?}");
        texts.remove(0)
    })
}

#[test]
fn models_that_differ_are_refused_by_all_workers_and_named() {
    let normal = Init::Randn { mean: 0., stdev: 1. };
    let of = |model: Result<distribute::Replicated<Tensor>>| model.map(drop);
    let text = refused(2, 2, move |strategy, worker| {
        of(strategy.replicate_seeded(worker as u64, move |vb: VarBuilder| vb.get_with_hints(3, "w", normal)))
    });
    for part in [
        "seed: 0 on worker 0, 1 on worker 1; variable w: float32[3] of SHA-256 ",
        "on worker 0, float32[3] of SHA-256",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let text = refused(2, 1, move |strategy, worker| {
        let value = Init::Const(worker as f64);
        of(strategy.replicate(move |vb: VarBuilder| vb.get_with_hints(3, "w", value)))
    });
    assert!(
        text.starts_with("replicate: the workers have built different models: variable w: float32[3] of"),
        "{text}"
    );
    // A layer that one worker names otherwise, and one of another size.
    let text = refused(3, 1, move |strategy, worker| {
        of(strategy.replicate(move |vb: VarBuilder| {
            vb.get_with_hints(2, "same", Init::Const(1.))?;
            vb.get_with_hints(2 + worker / 2, "size", Init::Const(1.))?;
            vb.get_with_hints(2, if worker == 1 { "fc2" } else { "fc1" }, Init::Const(1.))
        }))
    });
    for part in [
        "variable fc1: float32[2] of SHA-256 ",
        " on workers 0 and 2, none on worker 1; variable size: float32[2] of SHA-256 ",
        " on workers 0 and 1, float32[3] of SHA-256 ",
        "; variable fc2: none on workers 0 and 2, float32[2] of SHA-256 ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("same:") && !text.contains("seed:"), "{text}");
}

/// Checks candle's batch norm, which sets the running statistics of its own replica only. Some replicas get no
/// examples.
#[test]
fn running_statistics_are_the_mean_over_the_replicas_of_all_workers() {
    same_as_one_process(|strategy| {
        let model =
            strategy.replicate(|vb| candle_nn::batch_norm(2, BatchNormConfig::default(), vb.pp("bn")))?;
        let mut all = Vec::new();
        for seen in [0, 1, 2, 3] {
            strategy.run(&model, |ctx, bn| {
                let id = ctx.replica_id_in_sync_group();
                if id % 4 < seen {
                    let x: Vec<f32> = (0..6).map(|i| number(id, i) as f32).collect();
                    bn.forward_t(&Tensor::from_vec(x, (3, 2), &Device::Cpu)?, true)?;
                }
                Ok(())
            })?;
            for name in ["bn.running_mean", "bn.running_var", "bn.weight"] {
                all.push(bits(Leaf::Candle(model.variables.get(name)?)));
            }
        }
        let snapshot = model.variables.sha256()?;
        model.variables.set("bn.running_mean", &Tensor::new(&[1f32, 2.], &Device::Cpu)?)?;
        all.push(bits(Leaf::Candle(model.variables.get("bn.running_mean")?)));
        let merged = model.merged()?;
        all.push(bits(Leaf::Candle(merged.running_mean().clone())));
        Ok((all, snapshot))
    });
}

#[test]
fn batch_norm_over_all_replicas_sets_the_same_running_statistics_on_all_workers() {
    same_as_one_process(|strategy| {
        let model = strategy.replicate(|vb| nn::batch_norm(2, BatchNormConfig::default(), vb.pp("bn")))?;
        strategy.run(&model, |ctx, bn| {
            let id = ctx.replica_id_in_sync_group();
            let rows = (id * 3) % 4;
            let x: Vec<f32> = (0..2 * rows).map(|i| number(id, i) as f32).collect();
            bn.forward_t(&Tensor::from_vec(x, (rows, 2), &Device::Cpu)?, true)?;
            Ok(())
        })?;
        let own = model.models().values()[0].running_mean().clone();
        let read = model.variables.get("bn.running_mean")?;
        assert_eq!(bits(Leaf::Candle(own)), bits(Leaf::Candle(read)));
        model.variables.sha256()
    });
}

#[test]
fn metrics_count_the_replicas_of_all_workers() {
    same_as_one_process(|strategy| {
        let mean = Mean::new(strategy, "loss")?;
        let mut all = Vec::new();
        for _ in 0..2 {
            strategy.run((), |ctx, ()| {
                let id = ctx.replica_id_in_sync_group();
                let losses: Vec<f64> = (0..id % 3).map(|i| number(id, i)).collect();
                mean.update(&Tensor::new(losses, &Device::Cpu)?)
            })?;
            all.push(mean.result()?.to_bits());
        }
        mean.reset()?;
        all.push(mean.result()?.to_bits());
        Ok(all)
    });
}

#[test]
fn a_variable_without_aggregation_is_refused_without_asking_other_workers() {
    watched(|| {
        let all = crate::multi_worker::on_threads(2, 2, |strategy| {
            let new = Variable::builder("own", 1f32).synchronization(Synchronization::OnRead);
            let own = strategy.scope(|| new.create())?;
            let error = own.read::<f32>().unwrap_err();
            assert!(matches!(error, Error::VariableAccess { .. }), "{error}");
            let weight = strategy.scope(|| Variable::new("weight", 1f32))?;
            let error = strategy.run((), |_, ()| weight.assign(2f32)).unwrap_err();
            assert!(matches!(error.root_cause(), Error::VariableAccess { .. }), "{error}");
            // Each worker writes its own copies.
            weight.assign(3f32)?;
            weight.copies::<f32>()
        });
        assert_eq!(all.unwrap(), [[3., 3.], [3., 3.]]);
    });
}

/// Checks the copies of all workers. Each worker writes separate files here, so that the test can compare them.
#[test]
fn the_copies_of_all_workers_are_saved_and_restored_on_the_same_number() {
    same_as_one_process(|strategy| {
        let new = Variable::builder("seen", 0f64)
            .synchronization(Synchronization::OnRead)
            .aggregation(Aggregation::Sum);
        let seen = strategy.scope(|| new.create())?;
        let model =
            strategy.replicate(|vb| candle_nn::batch_norm(2, BatchNormConfig::default(), vb.pp("bn")))?;
        strategy.run(&model, |ctx, bn| {
            let id = ctx.replica_id_in_sync_group();
            let x: Vec<f32> = (0..6).map(|i| number(id, i) as f32).collect();
            bn.forward_t(&Tensor::from_vec(x, (3, 2), &Device::Cpu)?, true)?;
            seen.assign_add(number(id, 0))
        })?;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let mut writer = Writer::new();
        seen.save("seen", &mut writer)?;
        Checkpointed::save(&model.variables, "model", &mut writer)?;
        writer.save(&path, 1)?;
        let own = |model: &Replicated<candle_nn::BatchNorm>| -> Vec<_> {
            model.models().iter().map(|bn| bits(Leaf::Candle(bn.running_mean().clone()))).collect()
        };
        let (before, copies, means) = (seen.read::<f64>()?, seen.copies::<f64>()?, own(&model));
        seen.assign(0f64)?;
        model.variables.set("bn.running_mean", &Tensor::new(&[0f32, 0.], &Device::Cpu)?)?;
        let reader = Reader::open(&path)?;
        seen.restore("seen", &reader)?()?;
        Checkpointed::restore(&model.variables, "model", &reader)?()?;
        assert_eq!((seen.read::<f64>()?, seen.copies::<f64>()?, own(&model)), (before, copies, means));
        let saved = reader.tensor("seen/per_replica")?;
        Ok((before.to_bits(), bits(saved), model.variables.sha256()?))
    });
}
