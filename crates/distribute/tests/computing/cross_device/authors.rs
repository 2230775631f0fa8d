//! Custom algorithms, and their failures.

use crate::cross_device::{per_replica, with_ops};
use candle_core::{Device, Tensor, Var};
use distribute::strategy::{
    CommunicationOptions, CrossDeviceOps, DeviceName, NcclAllReduce, Reduction, ReductionToOneDevice,
    Replicas, StrategyExtended,
};
use distribute::tensor::{IndexedSlices, Leaf};
use distribute::{Error, HostTensor, MirroredStrategy, ReduceOp, Result, Strategy};
use distribute_testing::watched;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// An algorithm that reduces correctly until a test makes it fail.
#[derive(Debug, Default)]
struct Faulty {
    too_few: bool,
    fails: bool,
    instead: Option<Leaf>,
    calls: Arc<AtomicUsize>,
}

impl CrossDeviceOps for Faulty {
    fn reduce(
        &self,
        op: ReduceOp,
        value: &Reduction<'_>,
        options: &CommunicationOptions,
    ) -> Result<Vec<Leaf>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.fails && value.parts[0].dims().is_empty() {
            return Err(Error::other("the link is down"));
        }
        let mut copies = ReductionToOneDevice::default().reduce(op, value, options)?;
        if let (Some(instead), Some(last)) = (&self.instead, copies.last_mut()) {
            *last = instead.clone();
        }
        copies.truncate(if self.too_few { 1 } else { copies.len() });
        Ok(copies)
    }
}

#[test]
fn xd_9_an_algorithm_is_typed_and_makes_the_strategys_reductions() {
    watched(|| {
        let calls = Arc::new(AtomicUsize::new(0));
        let strategy = with_ops(2, Faulty { calls: calls.clone(), ..Faulty::default() });
        let value = per_replica([1f32, 2.]);
        let seen = |expected| assert_eq!(calls.swap(0, Ordering::Relaxed), expected);
        strategy.reduce_to(ReduceOp::Sum, &value, "cpu:0").unwrap();
        seen(1);
        strategy.batch_reduce_to(ReduceOp::Sum, [(&value, "cpu:0"), (&value, "cpu:1")]).unwrap();
        seen(2);
        strategy.reduce(ReduceOp::Sum, &value, None).unwrap();
        seen(1);
        strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, (1f32, 2f32))).unwrap();
        seen(2);
        // XD-8: one replica has nothing to reduce.
        let alone = with_ops(1, Faulty { calls: calls.clone(), ..Faulty::default() });
        assert_eq!(*alone.reduce_to(ReduceOp::Sum, per_replica([1f32]), "cpu:0").unwrap().get(), 1.);
        seen(0);
    });
}

#[test]
fn an_algorithm_that_returns_too_few_copies_is_named() {
    watched(|| {
        let strategy = with_ops(2, Faulty { too_few: true, ..Faulty::default() });
        let value = per_replica([1f32, 2.]);
        let error = strategy.reduce_to(ReduceOp::Sum, &value, &value).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { operation: "reduce_to", .. }), "{error}");
        assert!(error.to_string().contains("Faulty") && error.to_string().contains("one copy"), "{error}");
        let error = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32)).unwrap_err();
        assert!(error.to_string().contains("all_reduce") && error.to_string().contains("Faulty"), "{error}");
    });
}

#[test]
fn an_algorithm_that_returns_another_kind_shape_or_dtype_is_named() {
    watched(|| {
        let host = |values: Vec<f32>| Leaf::Host(HostTensor::vector(values));
        let slices = |width: usize| {
            let values = HostTensor::zeros(distribute::tensor::DType::F32, [1, width]).unwrap();
            Leaf::Slices(
                IndexedSlices::new(values, HostTensor::vector(vec![0i64]), Some(vec![5, width])).unwrap(),
            )
        };
        let candle = |values: &[f32]| Leaf::Candle(Tensor::new(values, &Device::Cpu).unwrap());
        let double = Leaf::Host(HostTensor::vector(vec![1f64, 2.]));
        let cases = [
            (host(vec![1., 2.]), host(vec![1.]), "float32[1]"),
            (host(vec![1., 2.]), double.clone(), "float64[2]"),
            (host(vec![1., 2.]), candle(&[1., 2.]), "a candle tensor"),
            (candle(&[1., 2.]), candle(&[1.]), "float32[1]"),
            (slices(2), slices(3), "[1, 3]"),
            (slices(2), host(vec![1., 2.]), "a host tensor"),
        ];
        for (part, instead, text) in cases {
            let strategy = with_ops(2, Faulty { instead: Some(instead), ..Faulty::default() });
            let reduced = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, part.clone()));
            let by_reduce =
                strategy.reduce_to(ReduceOp::Sum, per_replica([part.clone(), part.clone()]), "cpu:0");
            for error in [reduced.map(drop).unwrap_err(), by_reduce.map(drop).unwrap_err()] {
                let error = error.root_cause();
                assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
                let error = error.to_string();
                assert!(error.contains("Faulty") && error.contains(text), "{error}");
            }
        }
        // What Leaf::reduce gives always fits: more rows than any part, and the mean of integers, which is a float.
        let right = with_ops(2, Faulty::default());
        let sums = right.run((), |ctx, ()| {
            let row = crate::cross_device::rows(vec![1., 1.], vec![ctx.replica_id_in_sync_group() as i64, 2]);
            ctx.all_reduce(ReduceOp::Sum, row)
        });
        assert_eq!(sums.unwrap().values()[0].dims(), [3]);
        let mean = right.reduce_to(ReduceOp::Mean, per_replica([1i32, 4].map(HostTensor::scalar)), "cpu:0");
        assert_eq!(mean.unwrap().get().to_vec::<f64>().unwrap(), [2.5]);
    });
}

#[test]
fn an_algorithm_that_fails_fails_on_every_replica_and_the_next_call_works() {
    watched(|| {
        let strategy = with_ops(3, Faulty { fails: true, ..Faulty::default() });
        let outcomes = strategy.run((), |ctx, ()| {
            let failed = ctx.all_reduce(ReduceOp::Sum, 1f32).unwrap_err().to_string();
            let next = ctx.all_reduce(ReduceOp::Sum, distribute::HostTensor::vector(vec![1f32]))?;
            Ok((failed, next.to_vec::<f32>()?))
        });
        for outcome in outcomes.unwrap() {
            assert_eq!(outcome, ("the link is down".to_string(), vec![3.]));
        }
        let error = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32)).unwrap_err();
        assert!(matches!(error, Error::Replica { replica: 0, .. }), "{error}");
        assert!(matches!(error.root_cause(), Error::Other(_)), "{error}");
    });
}

/// A custom strategy that only defines how values are combined.
#[derive(Debug)]
struct Own(Vec<DeviceName>, Faulty);

impl StrategyExtended for Own {
    fn kind(&self) -> &'static str {
        "Own"
    }
    fn worker_devices(&self) -> &[DeviceName] {
        &self.0
    }
    fn cross_device_ops(&self) -> Option<&dyn CrossDeviceOps> {
        Some(&self.1)
    }
    fn communication_options(&self) -> CommunicationOptions {
        CommunicationOptions { timeout: Some(std::time::Duration::from_secs(7)), ..Default::default() }
    }
}

#[test]
fn a_custom_strategy_has_its_algorithm_and_options() {
    watched(|| {
        let calls = Arc::new(AtomicUsize::new(0));
        let ops = Faulty { calls: calls.clone(), ..Faulty::default() };
        let strategy = Strategy::new(Own(vec![DeviceName::cpu(0), DeviceName::cpu(1)], ops)).unwrap();
        let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32)).unwrap();
        assert_eq!((sums.values(), calls.load(Ordering::Relaxed)), (&[2., 2.][..], 1));
        assert_eq!(strategy.extended().timeout().as_secs(), 7);
    });
}

#[test]
fn co_3_options_of_a_custom_strategy_are_checked_for_availability() {
    use distribute::strategy::CommunicationImplementation::{Nccl, Ring};
    #[derive(Debug)]
    struct Asks(Vec<DeviceName>, CommunicationOptions, Option<NcclAllReduce>);
    impl StrategyExtended for Asks {
        fn kind(&self) -> &'static str {
            "Asks"
        }
        fn worker_devices(&self) -> &[DeviceName] {
            &self.0
        }
        fn communication_options(&self) -> CommunicationOptions {
            self.1
        }
        fn cross_device_ops(&self) -> Option<&dyn CrossDeviceOps> {
            self.2.as_ref().map(|ops| ops as &dyn CrossDeviceOps)
        }
    }
    let refused = |options, ops, texts: &[&str]| {
        let devices = vec![DeviceName::cpu(0), DeviceName::cpu(1)];
        let error = Strategy::new(Asks(devices, options, ops)).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        texts.iter().for_each(|text| assert!(error.to_string().contains(text), "{text:?} is not in {error}"));
    };
    let options = |implementation| CommunicationOptions { implementation, ..Default::default() };
    refused(options(Ring), None, &["Asks", "CommunicationImplementation RING", "use AUTO here"]);
    refused(options(Nccl), None, &["Asks", "CommunicationImplementation NCCL"]);
    refused(CommunicationOptions::default(), Some(NcclAllReduce { num_packs: 3 }), &["num_packs is 3"]);
}

/// An algorithm that records the destinations of results.
#[derive(Debug, Default, Clone)]
struct Destinations(Arc<Mutex<Vec<Vec<DeviceName>>>>);

impl CrossDeviceOps for Destinations {
    fn reduce(
        &self,
        op: ReduceOp,
        value: &Reduction<'_>,
        options: &CommunicationOptions,
    ) -> Result<Vec<Leaf>> {
        self.0.lock().unwrap().push(value.to.to_vec());
        ReductionToOneDevice::default().reduce(op, value, options)
    }
}

#[test]
fn red_2_the_result_of_reduce_is_on_the_host() {
    watched(|| {
        let asked = Destinations::default();
        let builder = MirroredStrategy::builder().devices(["cpu:3", "cpu:5"]);
        let strategy = builder.cross_device_ops(asked.clone()).build().unwrap();
        for axis in [None, Some(0)] {
            let value = per_replica([HostTensor::vector(vec![1f32]), HostTensor::vector(vec![2f32])]);
            strategy.reduce(ReduceOp::Sum, value, axis).unwrap();
        }
        strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32)).unwrap();
        let host = vec![DeviceName::cpu(0)];
        let replicas = [3, 5].map(DeviceName::cpu).to_vec();
        assert_eq!(*asked.0.lock().unwrap(), [host.clone(), host, replicas]);
        let tensors = per_replica([1f32, 2.].map(|x| Tensor::new(&[x], &Device::Cpu).unwrap()));
        assert!(strategy.reduce(ReduceOp::Sum, tensors, None).unwrap().device().is_cpu());
    });
}

/// A strategy that runs steps or rejects them, and counts them.
#[derive(Debug)]
struct Runner {
    devices: [DeviceName; 2],
    /// The sequence numbers of the requested steps.
    steps: Arc<Mutex<Vec<u64>>>,
    runs: bool,
}

impl StrategyExtended for Runner {
    fn kind(&self) -> &'static str {
        "Runner"
    }
    fn worker_devices(&self) -> &[DeviceName] {
        &self.devices
    }
    fn call_for_each_replica(&self, replicas: &Replicas<'_>) -> Result<()> {
        assert_eq!(replicas.count(), 2);
        self.steps.lock().unwrap().push(replicas.step());
        if self.runs { replicas.on_threads() } else { Ok(()) }
    }
}

#[test]
fn run_13_a_custom_strategy_decides_how_its_replicas_run() {
    watched(|| {
        for runs in [true, false] {
            let (steps, calls) = (Arc::new(Mutex::new(Vec::new())), AtomicUsize::new(0));
            let devices = [0, 1].map(DeviceName::cpu);
            let strategy = Strategy::new(Runner { devices, steps: steps.clone(), runs }).unwrap();
            for _ in 0..2 {
                let ids = strategy.run((), |ctx, ()| {
                    calls.fetch_add(1, Ordering::Relaxed);
                    Ok(ctx.replica_id_in_sync_group())
                });
                if runs {
                    assert_eq!(ids.unwrap().values(), [0, 1])
                } else {
                    // No closure ran, which is an error and not a step without results.
                    drop(ids.unwrap_err())
                }
            }
            assert_eq!(
                (steps.lock().unwrap().as_slice(), calls.into_inner()),
                (&[1, 2][..], if runs { 4 } else { 0 })
            );
        }
    });
}

/// An algorithm that accepts tensors on their devices, and records the devices.
#[derive(Debug)]
struct InPlace(Arc<Mutex<Vec<Vec<DeviceName>>>>);

impl CrossDeviceOps for InPlace {
    fn reduce(
        &self,
        op: ReduceOp,
        value: &Reduction<'_>,
        options: &CommunicationOptions,
    ) -> Result<Vec<Leaf>> {
        ReductionToOneDevice::default().reduce(op, value, options)
    }
    fn check(&self, devices: &[DeviceName]) -> Result<()> {
        self.0.lock().unwrap().push(devices.to_vec());
        Ok(())
    }
    fn takes_device_tensors(&self, devices: &[DeviceName]) -> bool {
        devices.len() > 1
    }
}

#[test]
fn an_algorithm_is_checked_with_its_devices_and_gradients_pass_through_parts_that_stay() {
    watched(|| {
        let checked = Arc::new(Mutex::new(Vec::new()));
        let strategy = with_ops(2, InPlace(checked.clone()));
        assert_eq!(*checked.lock().unwrap(), [[DeviceName::cpu(0), DeviceName::cpu(1)]]);
        let gradients = strategy
            .run((), |ctx, ()| {
                let x = Var::new(&[1f32, 2.], &Device::Cpu)?;
                let scale = ctx.replica_id_in_sync_group() as f64 + 1.;
                // A leaf on the host beside it stays on the host.
                let rows = HostTensor::vector(vec![1i64]);
                let (sum, rows) = ctx.all_reduce(ReduceOp::Sum, (x.as_tensor().affine(scale, 0.)?, rows))?;
                assert_eq!((sum.to_vec1::<f32>()?, rows.to_vec::<i64>()?), (vec![3., 6.], vec![2]));
                let gradient = sum.backward()?.remove(&x).map(|gradient| gradient.to_vec1::<f32>());
                Ok(gradient.transpose()?.unwrap_or_default())
            })
            .unwrap();
        // Each replica's loss depends on both parts, by its scale.
        assert_eq!(gradients.values(), [vec![2., 2.], vec![4., 4.]]);
    });
}
