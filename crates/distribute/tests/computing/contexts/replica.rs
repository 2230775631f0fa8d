//! Members of the replica context, and `merge_call`.

use crate::contexts::{each, everywhere, is_wrong_context, mirrored, of_all, one_device, per_replica};
use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use distribute::cluster::Fault;
use distribute::context::{
    ContextKind, get_replica_context, get_strategy, has_strategy, in_cross_replica_context,
};
use distribute::strategy::{DeviceName, StrategyExtended};
use distribute::values::Mirrored;
use distribute::{Error, ReduceOp, Result, Strategy};
use distribute_testing::watched;
use std::sync::atomic::{AtomicUsize, Ordering};

// 5. Members of the replica context

#[test]
fn rctx_2_ids_go_from_0_to_n_minus_1() {
    watched(|| {
        for n in [1, 2, 5] {
            let ids = mirrored(n).run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group())).unwrap();
            assert_eq!(ids.into_values(), (0..n).collect::<Vec<_>>());
        }
        assert_eq!(get_replica_context().unwrap().replica_id_in_sync_group(), 0);
        // Over the workers, each of which has its part.
        let found = everywhere(|strategy| {
            let ids = strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group())).unwrap();
            (ids.into_values(), strategy.num_replicas_in_sync())
        });
        for (name, workers) in found {
            let count = workers[0].1;
            let ids: Vec<usize> = workers.into_iter().flat_map(|(ids, _)| ids).collect();
            assert_eq!(ids, (0..count).collect::<Vec<_>>(), "{name}");
        }
    });
}

#[test]
fn rctx_4_device_returns_the_name_of_this_replicas_device() {
    watched(|| {
        let devices = mirrored(2).run((), |ctx, ()| ctx.device()).unwrap();
        let full = |i| format!("/job:localhost/replica:0/task:0/device:CPU:{i}");
        assert_eq!(devices.values(), [full(0), full(1)]);
        assert_eq!(one_device().run((), |ctx, ()| ctx.device()).unwrap().values(), [full(0)]);
        assert!(!get_replica_context().unwrap().device().unwrap().is_empty());
    });
}

/// Checks `tf.device`: a closure computes on the devices of its tensors, and a model's variables are on the replica's
/// device.
#[test]
fn rctx_4_operations_run_where_their_tensors_are_and_variables_are_on_the_replicas_device() {
    /// A strategy whose second replica has a device that does not exist.
    #[derive(Debug)]
    struct Mixed;
    impl StrategyExtended for Mixed {
        fn kind(&self) -> &'static str {
            "Mixed"
        }
        fn worker_devices(&self) -> &[DeviceName] {
            const DEVICES: [DeviceName; 2] = [DeviceName::cpu(0), DeviceName::gpu(99)];
            &DEVICES
        }
    }
    watched(|| {
        let strategy = Strategy::new(Mixed).unwrap();
        let devices = strategy.run((), |ctx, ()| {
            let here = Tensor::new(1f32, &Device::Cpu)?;
            Ok((ctx.device()?, (&here + &here)?.device().is_cpu()))
        });
        let named = |device: &str| (format!("/job:localhost/replica:0/task:0/device:{device}"), true);
        assert_eq!(devices.unwrap().values(), [named("CPU:0"), named("GPU:99")]);
        let model = strategy.replicate(|vb: VarBuilder| {
            assert!(vb.device().is_cpu(), "replica 0's");
            candle_nn::linear(1, 1, vb)
        });
        let error = model.map(drop).unwrap_err();
        assert!(matches!(error, Error::Candle(_) | Error::Device { .. }), "{error}");
    });
}

// 6. merge_call

#[test]
fn mc_1_the_merge_function_runs_once_with_all_values_in_cross_replica_context() {
    let check = |strategy: &Strategy| {
        let calls = AtomicUsize::new(0);
        // With several workers, it runs once on each of them, with the values of its replicas.
        let local = each(strategy, |id| (id, "same"));
        let sums = strategy.run((), |ctx, ()| {
            ctx.merge_call((ctx.replica_id_in_sync_group(), "same"), |current, values| {
                calls.fetch_add(1, Ordering::SeqCst);
                assert!(current == strategy && in_cross_replica_context());
                assert_eq!(values.values(), local.values(), "{strategy}");
                Ok(values.iter().map(|v| v.0).sum::<usize>())
            })
        });
        let sum = strategy.world().local_replicas().sum::<usize>();
        assert!(sums.unwrap().iter().all(|of_replica| *of_replica == sum), "{strategy}");
        assert_eq!(calls.into_inner(), 1, "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn mc_2_it_is_replica_0s_function_that_is_called() {
    let check = |strategy: &Strategy| {
        let made = strategy.run((), |ctx, ()| {
            let mine = ctx.replica_id_in_sync_group();
            ctx.merge_call((), move |_, _| Ok(mine))
        });
        // The result is that of the first replica of this worker.
        let first = strategy.world().local_replicas().start;
        assert!(made.unwrap().iter().all(|of| *of == first), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn mc_3_of_distributed_results_each_replica_gets_its_part() {
    let check = |strategy: &Strategy| {
        let words = || each(strategy, |id| format!("of replica {id}"));
        let parts = strategy.run((), |ctx, ()| {
            ctx.merge_call(ctx.replica_id_in_sync_group() as i32, |_, ids| {
                Ok((ids.map(|id| id * 10), Mirrored::new(7i32), vec![words()], 1.5f64))
            })
        });
        let expected = each(strategy, |id| (10 * id as i32, 7, vec![format!("of replica {id}")], 1.5));
        assert_eq!(parts.unwrap().values(), expected.values(), "{strategy}");
        let nine = || per_replica([0i32; 9]);
        let error =
            strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| Ok(nine()))).unwrap_err().to_string();
        assert!(error.contains("9 parts") && error.contains("local replica"), "{strategy}: {error}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn mc_4_different_numbers_of_merge_calls_name_the_replica_with_fewer() {
    let check = |strategy: &Strategy| {
        // A merge function belongs to one worker: if it has several replicas, the error names its own.
        if strategy.world().replicas() > 1 {
            for fewer in strategy.world().local_replicas() {
                let world = strategy.world();
                let local = |id: usize| id - world.local_replicas().start;
                let error = strategy.run((), |ctx, ()| {
                    ctx.merge_call((), |_, _| Ok(()))?;
                    if local(ctx.replica_id_in_sync_group()) != local(fewer) {
                        ctx.merge_call((), |_, _| Ok(()))?;
                    }
                    Ok(())
                });
                let error = error.unwrap_err();
                let blame = error.blame().unwrap();
                assert_eq!(blame.fault, Fault::Returned, "{strategy}: {error}");
                let culprits: Vec<_> = blame.culprits.iter().map(|id| id % world.replicas()).collect();
                assert_eq!(culprits, [local(fewer)], "{strategy}: {error}");
                assert!(error.to_string().contains("contexts/replica.rs"), "{strategy}: {error}");
            }
        }
        let count = strategy.num_replicas_in_sync() as i32;
        let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1)).unwrap();
        assert!(sums.iter().all(|sum| *sum == count), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn mc_5_an_error_of_the_merge_function_comes_out_of_run() {
    let check = |strategy: &Strategy| {
        let error =
            strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| Err::<i32, _>(Error::other("nope"))));
        assert_eq!(error.unwrap_err().root_cause().to_string(), "nope", "{strategy}");
        let error = strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| -> Result<i32> { panic!("boom") }));
        assert_eq!(error.unwrap_err().root_cause().to_string(), "panicked: boom", "{strategy}");
        assert!(strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| Ok(1i32))).is_ok(), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn mc_6_inside_there_is_no_replica_context_and_no_nested_merge() {
    let check = |strategy: &Strategy| {
        let nested = strategy.run((), |ctx, ()| {
            ctx.merge_call((), |strategy, _| {
                assert!(get_replica_context().is_none());
                let error = ctx.merge_call((), |_, _| Ok(())).unwrap_err();
                assert!(is_wrong_context(&error, ContextKind::Replica, ContextKind::CrossReplica), "{error}");
                // But a nested run is allowed: it has its own team.
                let inner = strategy.run((), |ctx, ()| {
                    ctx.all_reduce(ReduceOp::Sum, 1 + ctx.replica_id_in_sync_group() as i32)
                });
                if strategy.world().is_multi_worker() {
                    // Workers could make steps in different orders.
                    let error = inner.unwrap_err().to_string();
                    assert!(error.contains("steps run one after another"), "{strategy}: {error}");
                    return Ok(None);
                }
                Ok(Some(inner?))
            })
        });
        let sum = of_all(strategy, |id| 1 + id as i32).iter().sum();
        let sum = (!strategy.world().is_multi_worker()).then_some(sum);
        assert!(nested.unwrap().iter().all(|of| *of == sum), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn mc_7_in_the_default_context_and_on_one_device_the_function_is_called_directly() {
    let default = get_strategy();
    let value = get_replica_context().unwrap().merge_call(5i32, |strategy, values| {
        assert!(strategy == &default && in_cross_replica_context() && get_replica_context().is_none());
        assert!(!has_strategy());
        Ok(values.values()[0] + 1)
    });
    assert_eq!(value.unwrap(), 6);
    assert!(!in_cross_replica_context());
    let strategy = one_device();
    let value = strategy.run((), |ctx, ()| {
        ctx.merge_call(5i32, |current, values| {
            assert!(current == &strategy && in_cross_replica_context());
            Ok(values.values()[0] + 1)
        })
    });
    assert_eq!(value.unwrap().values(), [6]);
}

#[test]
fn rctx_6_summaries_of_a_run_are_written_by_replica_0() {
    let folder = tempfile::tempdir().unwrap();
    let summaries = mirrored(3).summary_writer(folder.path()).unwrap();
    let path = summaries.path().unwrap().to_path_buf();
    summaries.scalar("between", 1., 0).unwrap();
    let (strategy, inside) = (mirrored(3), &summaries);
    let made = strategy.run((), |ctx, ()| {
        inside.scalar("inside", 1., ctx.step())?;
        ctx.merge_call((), |_, _| Ok(inside.scalar("merged", 1., 1)?))
    });
    made.unwrap();
    summaries.close().unwrap();
    let mut reader =
        distribute::data::TfRecordReader::open(&path, distribute::data::Compression::None).unwrap();
    let records = reader.read(usize::MAX).unwrap();
    let of = |tag: &str| {
        records.iter().filter(|it| it.windows(tag.len()).any(|part| part == tag.as_bytes())).count()
    };
    assert_eq!((records.len(), of("between"), of("inside"), of("merged")), (4, 1, 1, 1));
}
