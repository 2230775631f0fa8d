//! Members of the replica context, and `merge_call`.

use crate::contexts::{is_wrong_context, mirrored, one_device, per_replica};
use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use distribute::cluster::Fault;
use distribute::{
    ContextKind, DeviceName, Error, Mirrored, ReduceOp, Result, Strategy, StrategyExtended,
    get_replica_context, get_strategy, has_strategy, in_cross_replica_context,
};
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
    });
}

#[test]
fn rctx_4_devices_name_the_device_of_this_replica() {
    watched(|| {
        let devices = mirrored(2).run((), |ctx, ()| ctx.devices()).unwrap();
        let full = |i| vec![format!("/job:localhost/replica:0/task:0/device:CPU:{i}")];
        assert_eq!(devices.values(), [full(0), full(1)]);
        assert_eq!(one_device().run((), |ctx, ()| ctx.devices()).unwrap().values(), [full(0)]);
        assert_eq!(get_replica_context().unwrap().devices().unwrap().len(), 1);
    });
}

/// `tf.device`: a closure computes on the devices of its tensors. A model's variables are on the replica's device.
#[test]
fn rctx_4_operations_run_where_their_tensors_are_and_variables_are_on_the_replicas_device() {
    /// A strategy whose second replica has a device that is not here.
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
            Ok((ctx.devices()?, (&here + &here)?.device().is_cpu()))
        });
        let named = |device: &str| (vec![format!("/job:localhost/replica:0/task:0/device:{device}")], true);
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
    watched(|| {
        let (strategy, calls) = (mirrored(3), AtomicUsize::new(0));
        let sums = strategy.run((), |ctx, ()| {
            ctx.merge_call((ctx.replica_id_in_sync_group(), "same"), |current, values| {
                calls.fetch_add(1, Ordering::SeqCst);
                assert!(current == &strategy && in_cross_replica_context());
                assert_eq!(values.values(), [(0, "same"), (1, "same"), (2, "same")]);
                Ok(values.iter().map(|v| v.0).sum::<usize>())
            })
        });
        assert_eq!(sums.unwrap().values(), [3, 3, 3]);
        assert_eq!(calls.into_inner(), 1);
    });
}

#[test]
fn mc_2_it_is_replica_0s_function_that_is_called() {
    watched(|| {
        let made = mirrored(2).run((), |ctx, ()| {
            let mine = ctx.replica_id_in_sync_group();
            ctx.merge_call((), move |_, _| Ok(mine))
        });
        assert_eq!(made.unwrap().values(), [0, 0]);
    });
}

#[test]
fn mc_3_of_distributed_results_each_replica_gets_its_part() {
    watched(|| {
        let strategy = mirrored(2);
        let parts = strategy.run((), |ctx, ()| {
            ctx.merge_call(ctx.replica_id_in_sync_group() as i32, |_, ids| {
                Ok((ids.map(|id| id * 10), Mirrored::new(7i32), vec![per_replica(["a", "b"])], 1.5f64))
            })
        });
        assert_eq!(parts.unwrap().values(), [(0, 7, vec!["a"], 1.5), (10, 7, vec!["b"], 1.5)]);
        let error =
            strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| Ok(per_replica([1i32, 2, 3])))).unwrap_err();
        assert!(
            error.to_string().contains("3 parts") && error.to_string().contains("2 local replicas"),
            "{error}"
        );
    });
}

#[test]
fn mc_4_different_numbers_of_merge_calls_name_who_made_fewer() {
    watched(|| {
        let strategy = mirrored(2);
        for fewer in [0, 1] {
            let error = strategy.run((), |ctx, ()| {
                ctx.merge_call((), |_, _| Ok(()))?;
                if ctx.replica_id_in_sync_group() != fewer {
                    ctx.merge_call((), |_, _| Ok(()))?;
                }
                Ok(())
            });
            let error = error.unwrap_err();
            let blame = error.blame().unwrap();
            assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Returned, &[fewer][..]), "{error}");
            assert!(error.to_string().contains("contexts/replica.rs"), "{error}");
        }
        assert_eq!(strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1)).unwrap().values(), [2, 2]);
    });
}

#[test]
fn mc_5_an_error_of_the_merge_function_comes_out_of_run() {
    watched(|| {
        let strategy = mirrored(2);
        let error =
            strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| Err::<i32, _>(Error::other("nope"))));
        assert_eq!(error.unwrap_err().root_cause().to_string(), "nope");
        let error = strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| -> Result<i32> { panic!("boom") }));
        assert_eq!(error.unwrap_err().root_cause().to_string(), "panicked: boom");
        assert!(strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| Ok(1i32))).is_ok());
    });
}

#[test]
fn mc_6_inside_there_is_no_replica_context_and_no_nested_merge() {
    watched(|| {
        let strategy = mirrored(2);
        let nested = strategy.run((), |ctx, ()| {
            ctx.merge_call((), |strategy, _| {
                assert!(get_replica_context().is_none());
                let error = ctx.merge_call((), |_, _| Ok(())).unwrap_err();
                assert!(is_wrong_context(&error, ContextKind::Replica, ContextKind::CrossReplica), "{error}");
                // But a nested run is allowed: it has its own team.
                let inner = strategy.run((), |ctx, ()| {
                    ctx.all_reduce(ReduceOp::Sum, 1 + ctx.replica_id_in_sync_group() as i32)
                })?;
                Ok(inner)
            })
        });
        assert_eq!(nested.unwrap().values(), [3, 3]);
    });
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
