//! Options of a strategy, and of a single call.

use super::algorithms::hosts;
use crate::cross_device::{mirrored, per_replica};
use crate::everywhere::{each, everywhere};
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterSpec, Fault, Job};
use distribute::strategy::{CommunicationImplementation, CommunicationOptions, NcclAllReduce};
use distribute::tensor::Leaf;
use distribute::{Error, Result, prelude::*};
use distribute_testing::watched;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn bytes(bytes_per_pack: usize) -> CommunicationOptions {
    CommunicationOptions { bytes_per_pack, ..Default::default() }
}

fn within(timeout: Duration) -> CommunicationOptions {
    CommunicationOptions { timeout: Some(timeout), ..Default::default() }
}

/// Returns many values of several dtypes, some of them sparse.
fn values(replica: usize) -> Vec<Leaf> {
    let value = |i: usize| match i % 4 {
        3 => crate::cross_device::rows(vec![0.1; replica + 1], vec![2; replica + 1]),
        kind => {
            let number = |at: usize| ((at * 31 + i * 7 + replica * 17) % 23) as f64 / 3.;
            let numbers = HostTensor::vector((0..i * 5 % 37).map(number).collect::<Vec<_>>());
            use distribute::tensor::DType::{F32, F64, I32};
            Leaf::Host(numbers.cast([F32, F64, I32][kind]).unwrap())
        }
    };
    (0..40).map(value).collect()
}

// INV-7
#[test]
fn co_4_and_co_5_packs_hold_one_dtype_and_change_no_bit() {
    watched(|| {
        for replicas in [2, 3] {
            let all = || per_replica((0..replicas).map(values));
            for op in [ReduceOp::Sum, ReduceOp::Mean] {
                let plain = mirrored(replicas).run(all(), |ctx, mine| ctx.all_reduce(op, mine)).unwrap();
                for size in [1, 64, 300, 1 << 20] {
                    let names: Vec<String> = (0..replicas).map(|i| format!("cpu:{i}")).collect();
                    let strategy = MirroredStrategy::builder()
                        .devices(names.iter().map(String::as_str))
                        .communication_options(bytes(size))
                        .build()
                        .unwrap();
                    let packed = strategy.run(all(), |ctx, mine| ctx.all_reduce(op, mine)).unwrap();
                    let called = mirrored(replicas)
                        .run(all(), |ctx, mine| ctx.with_options(bytes(size))?.all_reduce(op, mine))
                        .unwrap();
                    for ((plain, packed), called) in plain.iter().zip(&packed).zip(&called) {
                        assert_eq!(hosts(plain), hosts(packed));
                        assert_eq!(hosts(plain), hosts(called));
                    }
                }
            }
        }
        everywhere(|strategy| {
            let sums = |size: Option<usize>| {
                let sums = strategy.run(each(strategy, values), |ctx, mine| match size {
                    Some(size) => ctx.with_options(bytes(size))?.all_reduce(ReduceOp::Sum, mine),
                    None => ctx.all_reduce(ReduceOp::Sum, mine),
                });
                sums.unwrap().into_values().iter().map(|sums| hosts(sums)).collect::<Vec<_>>()
            };
            assert_eq!(sums(None), sums(Some(64)), "{strategy}");
        });
    });
}

#[test]
fn co_4_replicas_that_pack_differently_are_named() {
    watched(|| {
        let error = mirrored(2).run((), |ctx, ()| {
            let size = [1 << 20, 1 << 10][ctx.replica_id_in_sync_group()];
            ctx.with_options(bytes(size))?.all_reduce(ReduceOp::Sum, vec![1f32, 2.])
        });
        let error = error.unwrap_err();
        assert_eq!(error.blame().unwrap().fault, Fault::Mismatch);
        assert!(error.to_string().contains("1048576") && error.to_string().contains("1024"), "{error}");
    });
}

/// Returns the error of a step with two replicas, of which the second makes its call after the first has timed out.
fn error_of_straggler(strategy: &Strategy, call: impl Fn(&ReplicaContext) -> Result<f32> + Sync) -> Error {
    let (tell, wait) = mpsc::channel();
    let (tell, wait) = (Mutex::new(tell), Mutex::new(wait));
    let error = strategy.run((), |ctx, ()| {
        let is_late = ctx.replica_id_in_sync_group() == 1;
        if is_late {
            wait.lock().unwrap().recv_timeout(MINUTE).unwrap();
        }
        let result = call(ctx);
        if !is_late {
            tell.lock().unwrap().send(()).unwrap();
        }
        result
    });
    error.unwrap_err()
}

#[test]
fn co_6_a_call_gives_up_at_its_own_timeout_and_names_the_late_replica() {
    watched(|| {
        let strategy = mirrored(2);
        let hurried = |ctx: &ReplicaContext| ctx.with_options(within(Duration::from_millis(50)));
        let error = error_of_straggler(&strategy, |ctx| hurried(ctx)?.all_reduce(ReduceOp::Sum, 1f32));
        let blame = error.blame().unwrap();
        assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::TimedOut, &[1][..]), "{error}");
        assert!(error.to_string().contains("waited 50ms in all_reduce"), "{error}");
        assert!(error.to_string().contains("options.rs:"), "{error}");
        // The same in a merge function.
        let error = error_of_straggler(&strategy, |ctx| hurried(ctx)?.merge_call((), |_, _| Ok(1f32)));
        assert!(error.to_string().contains("waited 50ms in merge_call"), "{error}");
        strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32)).unwrap();
    });
}

#[test]
fn co_6_a_call_may_wait_longer_than_the_strategy() {
    watched(|| {
        let hasty: Strategy = MirroredStrategy::builder()
            .devices(["cpu:0", "cpu:1"])
            .timeout(Duration::from_millis(50))
            .build()
            .unwrap();
        let sums = hasty.run((), |ctx, ()| {
            let patient = ctx.with_options(within(MINUTE))?;
            if ctx.replica_id_in_sync_group() == 1 {
                // Two others of the same timeout give up meanwhile, one after the other.
                std::thread::scope(|threads| {
                    threads.spawn(|| {
                        error_of_straggler(&hasty, |ctx| ctx.all_reduce(ReduceOp::Sum, 1f32));
                        error_of_straggler(&hasty, |ctx| ctx.all_reduce(ReduceOp::Sum, 1f32));
                    });
                });
            }
            patient.all_reduce(ReduceOp::Sum, 1f32)
        });
        assert_eq!(sums.unwrap().values(), [2., 2.]);
    });
}

#[test]
fn co_2_a_view_keeps_the_settings_that_its_options_omit() {
    watched(|| {
        let error = mirrored(2).run((), |ctx, ()| {
            let packed = ctx.with_options(bytes(8))?.with_options(within(MINUTE))?;
            match ctx.replica_id_in_sync_group() {
                0 => packed.all_reduce(ReduceOp::Sum, 1f32),
                _ => ctx.all_reduce(ReduceOp::Sum, 1f32),
            }
        });
        assert!(error.unwrap_err().to_string().contains("in packs of 8 bytes"));
    });
}

#[test]
fn co_6_a_timeout_of_zero_is_refused_where_it_is_given() {
    watched(|| {
        let zero = within(Duration::ZERO);
        let builder = || MirroredStrategy::builder().devices(["cpu:0", "cpu:1"]);
        for result in
            [builder().timeout(Duration::ZERO).build(), builder().communication_options(zero).build()]
        {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
            assert!(error.to_string().contains("zero expires before"), "{error}");
        }
        let error = mirrored(2).run((), |ctx, ()| Ok(ctx.with_options(zero)?.replica_id_in_sync_group()));
        assert!(error.unwrap_err().to_string().contains("with_options: a timeout of zero"));
    });
}

#[test]
fn co_3_an_implementation_that_one_process_does_not_have_is_refused_where_it_is_asked_for() {
    watched(|| {
        use CommunicationImplementation::{Auto, Nccl, Ring};
        let options = |implementation| CommunicationOptions { implementation, ..Default::default() };
        let builder = || MirroredStrategy::builder().devices(["cpu:0", "cpu:1"]);
        let strategy: Strategy = builder().communication_options(options(Auto)).build().unwrap();
        for (implementation, name) in [(Ring, "RING"), (Nccl, "NCCL")] {
            let built = builder().communication_options(options(implementation)).build().unwrap_err();
            let called = strategy.run((), |ctx, ()| {
                ctx.with_options(options(implementation))?.all_reduce(ReduceOp::Sum, 1f32)
            });
            for error in [built, called.unwrap_err()] {
                assert!(matches!(error.root_cause(), Error::InvalidArgument { .. }), "{error}");
                assert!(
                    error.to_string().contains(&format!("CommunicationImplementation {name}:")),
                    "{error}"
                );
            }
        }
        let sums = strategy
            .run((), |ctx, ()| ctx.with_options(options(Auto))?.all_reduce(ReduceOp::Sum, 1f32))
            .unwrap();
        assert_eq!(sums.values(), [2., 2.]);
        // The links between workers are chosen when they join.
        let workers = |implementation| {
            let cluster: ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse().unwrap();
            let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(0));
            let builder = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver);
            builder.communication_options(options(implementation)).build()
        };
        assert_eq!(workers(Ring).unwrap().extended().communication_options().implementation, Auto);
        assert!(workers(Nccl).unwrap_err().to_string().contains("CommunicationImplementation NCCL:"));
    });
}

#[test]
fn xd_4_unavailable_packs_are_refused() {
    watched(|| {
        for num_packs in [0, 1] {
            let strategy = crate::cross_device::with_ops(2, NcclAllReduce { num_packs });
            assert_eq!(strategy.reduce(ReduceOp::Sum, per_replica([1f32, 2.]), None).unwrap(), 3.);
        }
        // It is checked when the strategy is built, because trainings by an optimizer never call these operations.
        let builder = MirroredStrategy::builder().devices(["cpu:0", "cpu:1"]);
        let error = builder.cross_device_ops(NcclAllReduce { num_packs: 2 }).build().unwrap_err();
        assert!(error.to_string().contains("num_packs is 2"), "{error}");
    });
}
