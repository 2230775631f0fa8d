//! Replicas with separate threads and cores.

use candle_core::{Device, Module, Tensor};
use candle_nn::VarBuilder;
use distribute::nn::{linear, loss};
use distribute::prelude::*;
use distribute_testing::child::alone;
use distribute_testing::watched;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Returns a model's weights after three steps.
fn trained(strategy: &Strategy) -> Vec<f32> {
    let model = strategy.replicate(|vb: VarBuilder| linear(200, 160, vb.pp("a"))).unwrap();
    let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
    let x =
        Tensor::arange(0f32, 128. * 200., &Device::Cpu).unwrap().sin().unwrap().reshape((128, 200)).unwrap();
    let labels = Tensor::arange(0u32, 128, &Device::Cpu).unwrap();
    for _ in 0..3 {
        let step = |ctx: &ReplicaContext, model: &distribute::nn::Linear| {
            optimizer.minimize(ctx, loss::cross_entropy(&model.forward(&x)?, &labels)?, 128)
        };
        strategy.run(&model, step).unwrap();
    }
    model.variables.get("a.weight").unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn threads_and_cores_of_replicas_change_no_bit() {
    watched(|| {
        let plain = trained(&MirroredStrategy::cpus(2).unwrap());
        for (threads, pinned) in [(2, false), (1, cfg!(target_os = "linux")), (3, cfg!(target_os = "linux"))]
        {
            let builder = MirroredStrategy::builder().devices(["cpu:0", "cpu:1"]);
            let builder = builder.threads_per_replica(threads);
            let builder = if pinned { builder.pin_threads() } else { builder };
            let strategy = builder.build().unwrap();
            assert!(trained(&strategy) == plain, "{threads} threads, pinned: {pinned}");
        }
    });
}

#[test]
fn a_replica_has_a_thread_at_least() {
    let error = MirroredStrategy::builder().devices(["cpu:0"]).threads_per_replica(0).build().unwrap_err();
    assert!(error.to_string().contains("at least 1 thread"), "{error}");
}

/// Occupies a pool until `over` is set, and counts the number of times that its work runs during a step.
fn other_work<'s>(
    pool: &rayon::Scope<'s>,
    in_step: &'s AtomicBool,
    over: &'s AtomicBool,
    met: &'s AtomicUsize,
) {
    met.fetch_add(usize::from(in_step.load(Ordering::SeqCst)), Ordering::SeqCst);
    if !over.load(Ordering::SeqCst) {
        pool.spawn(move |pool| other_work(pool, in_step, over, met));
    }
}

#[test]
fn a_step_on_a_worker_of_a_pool_runs_none_of_its_other_tasks() {
    watched(|| {
        let expected = trained(&MirroredStrategy::cpus(1).unwrap());
        let builder = MirroredStrategy::builder().devices(["cpu:0"]);
        let strategy: Strategy = builder.threads_per_replica(2).build().unwrap();
        let (in_step, over, met) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        pool.scope(|pool| {
            pool.spawn(|pool| {
                pool.spawn(|pool| other_work(pool, &in_step, &over, &met));
                in_step.store(true, Ordering::SeqCst);
                assert!(trained(&strategy) == expected);
                in_step.store(false, Ordering::SeqCst);
                over.store(true, Ordering::SeqCst);
            });
        });
        assert_eq!(met.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn more_replicas_or_threads_than_a_process_can_have_are_refused() {
    alone("threads::more_replicas_or_threads_than_a_process_can_have_are_refused", || {
        let refused =
            |error: distribute::Error, words: &str| assert!(error.to_string().contains(words), "{error}");
        refused(MirroredStrategy::cpus(200_000).unwrap_err(), "200000 replicas: a process has 4096 at most");
        let names: Vec<_> = (0..5000).map(|i| format!("cpu:{i}")).collect();
        refused(MirroredStrategy::new(names.iter().map(String::as_str)).unwrap_err(), "4096 at most");
        let builder = MirroredStrategy::builder().devices(["cpu:0"]);
        refused(builder.threads_per_replica(usize::MAX).build().unwrap_err(), "at most 4096");

        #[derive(Debug)]
        struct Own(Vec<distribute::strategy::DeviceName>);
        impl distribute::strategy::StrategyExtended for Own {
            fn kind(&self) -> &'static str {
                "Own"
            }
            fn worker_devices(&self) -> &[distribute::strategy::DeviceName] {
                &self.0
            }
        }
        let own = Strategy::new(Own((0..5000).map(distribute::strategy::DeviceName::cpu).collect())).unwrap();
        let error = own.run((), |_, ()| Ok(())).unwrap_err();
        assert!(matches!(error, distribute::Error::Io { .. }), "{error}");
        refused(error, "starting 5000 replica threads");
    });
}
