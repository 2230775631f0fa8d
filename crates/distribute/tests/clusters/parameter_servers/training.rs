//! Checks that one worker with servers, and an unchanged model, train bit-identically to one device.

use crate::parameter_servers::support::{Net, WORDS, servers, state, train};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::optimizer::rules::{
    Adagrad, Adam, AdamW, Averaged, Float, Formula, Ftrl, Lamb, Lion, Momentum, NAdam, RmsProp, RowAdagrad,
    Rule, Sgd, SlotSpec, Step,
};
use distribute::optimizer::{Gradients, Transform, schedules};
use distribute::parameter_server::{FixedShardsPartitioner, MinSizePartitioner};
use distribute::tensor::IndexedSlices;
use distribute::{
    Error, HostTensor, LocalCluster, MirroredStrategy, OneDeviceStrategy, Optimizer, ParameterServerStrategy,
    ReduceOp, Strategy, nn,
};
use distribute_testing::watched;
use std::sync::Arc;

fn trained<R: Rule>(strategy: &Strategy, rule: R) -> (Vec<f32>, Vec<(String, Vec<u32>)>) {
    let model = strategy.replicate_seeded(7, Net::new).unwrap();
    let optimizer = Optimizer::with_rule(rule, &model.variables, 0.05).unwrap();
    let losses = train(strategy, &model, &optimizer, 0..5);
    (losses, state(&model, &optimizer))
}

// INV-7, INV-8, INV-11, INV-56
#[test]
fn weights_and_slots_are_bit_identical_to_one_device() {
    fn check<R: Rule + Clone>(rule: &R) {
        let one = trained(&OneDeviceStrategy::new("cpu:0").unwrap(), rule.clone());
        for shards in [1, 2, 3, 5] {
            let strategy = servers(3, shards);
            let found = trained(&strategy, rule.clone());
            assert_eq!(found, one, "{} in {shards} shards", rule.name());
            let placed = strategy.placement();
            assert_eq!(placed.of("words.weight").unwrap().len(), shards);
        }
    }
    watched(|| {
        check(&Sgd);
        check(&Momentum::new(0.9));
        check(&Momentum::nesterov(0.9));
        check(&Adam::default());
        check(&Adam::lazy());
        check(&AdamW::default());
        check(&Adagrad::default());
        check(&RmsProp::default());
        check(&Ftrl { l1: 0.01, ..Ftrl::default() });
        check(&NAdam::default());
        check(&Lion { lazy: true, weight_decay: 0.1, ..Lion::default() });
        check(&RowAdagrad::default());
        check(&Averaged { rule: Arc::new(Adam::lazy()), momentum: 0.9 });
        check(&Averaged { rule: Arc::new(RowAdagrad::default()), momentum: 0.9 });
    });
}

#[test]
fn two_replicas_of_a_worker_train_as_two_that_are_mirrored() {
    watched(|| {
        let mirrored = trained(&MirroredStrategy::cpus(2).unwrap(), Adam::default());
        let builder = ParameterServerStrategy::builder()
            .cluster_resolver(LocalCluster::new(1, 2).unwrap().resolver())
            .partitioner(FixedShardsPartitioner::new(2).unwrap());
        let strategy = builder.devices(["cpu:0", "cpu:1"]).build().unwrap();
        assert_eq!(trained(&strategy, Adam::default()), mirrored);
    });
}

#[test]
fn settings_of_the_optimizer_apply_on_servers() {
    watched(|| {
        let train = |strategy: Strategy| {
            let model = strategy.replicate(Net::new).unwrap();
            let optimizer = distribute::Adam::new(&model.variables, 0.)
                .unwrap()
                .with_schedule(schedules::Warmup::new(0., 3, 0.1))
                .unwrap()
                .freeze(|name| name == "stock.weight")
                .unwrap()
                .rate_factor(|name| name.ends_with("bias"), 0.5)
                .unwrap()
                .with_rule_for(|name| name.starts_with("words"), Adam::lazy())
                .unwrap()
                .before_reduce(Transform::clip_by_global_norm(0.3))
                .unwrap()
                .after_reduce(Transform::clip_by_norm(0.1))
                .unwrap()
                .after_reduce(Transform::each(|_, gradient| Ok(gradient)))
                .unwrap()
                .after_reduce(Transform::clip_by_value(-0.05, 0.05))
                .unwrap();
            let losses = train(&strategy, &model, &optimizer, 0..6);
            let slots = optimizer.slot("words.weight", "m").unwrap().flatten_all().unwrap();
            (losses, model.variables.sha256().unwrap(), slots.to_vec1::<f32>().unwrap())
        };
        assert_eq!(train(servers(2, 2).into()), train(OneDeviceStrategy::new("cpu:0").unwrap()));
    });
}

#[test]
fn custom_gradients_are_sent_dense_and_by_row() {
    watched(|| {
        let train = |strategy: Strategy| {
            let build =
                |vb: VarBuilder| vb.to_dtype(DType::F64).get_with_hints((9, 2), "table", Init::Const(1.));
            let model = strategy.replicate(build).unwrap();
            let optimizer = distribute::optimizer::Momentum::new(&model.variables, 0.5).unwrap();
            for step in 0..4 {
                let run = strategy.run((), |ctx, ()| {
                    let mut gradients = Gradients::new(&optimizer);
                    if step % 2 == 0 {
                        let values = HostTensor::new((0..6).map(f64::from).collect::<Vec<_>>(), [3, 2])?;
                        let rows = IndexedSlices::new(values, HostTensor::vector(vec![8i64, 0, 8]), None)?;
                        gradients.insert("table", rows)?;
                    } else {
                        gradients.insert("table", Tensor::ones((9, 2), DType::F64, &Device::Cpu)?)?;
                    }
                    optimizer.apply_gradients(ctx, gradients, ReduceOp::Sum)
                });
                run.unwrap();
            }
            model.variables.sha256().unwrap()
        };
        assert_eq!(train(servers(3, 4).into()), train(OneDeviceStrategy::new("cpu:0").unwrap()));
    });
}

#[test]
fn transforms_of_all_gradients_and_custom_rules_are_refused() {
    let strategy = servers(2, 2);
    let model = strategy.replicate(Net::new).unwrap();
    let optimizer = || distribute::Sgd::new(&model.variables, 0.1).unwrap();
    let refused = |error: Error, texts: [&str; 2]| {
        let text = error.to_string();
        assert!(matches!(error, Error::NotSupported { .. }), "{text}");
        assert!(texts.iter().all(|part| text.contains(part)), "{text}");
    };
    let clipped = optimizer().after_reduce(Transform::clip_by_global_norm(1.));
    refused(clipped.unwrap_err(), ["global norm", "clip_by_norm"]);
    let decayed = optimizer().after_reduce(Transform::weight_decay(0.1));
    refused(decayed.unwrap_err(), ["weight decay", "AdamW"]);
    let rule = Optimizer::with_rule(Mine, &model.variables, 0.1);
    refused(rule.unwrap_err(), ["custom rules", "Transform::each"]);
    let rule = Optimizer::with_rule(Lamb::default(), &model.variables, 0.1);
    refused(rule.unwrap_err(), ["need complete variables", "RowAdagrad"]);
    refused(model.variables.trainable().unwrap_err(), ["through candle", "set"]);
}

/// A rule that is code of the program, so servers cannot apply it.
#[derive(Clone, Debug)]
struct Mine;

impl Formula for Mine {
    type Slots<T: Copy> = [T; 0];
    fn label(&self) -> &'static str {
        "mine"
    }
    fn layout(&self) -> [SlotSpec; 0] {
        []
    }
    fn kernel<F: Float>(&self, _: Step) -> impl Fn(F, F, [F; 0]) -> (F, [F; 0]) {
        |var, grad, []| (var - grad, [])
    }
}

/// Checks two layers that share one table: one looks up rows, and the other multiplies by the complete table.
#[test]
fn a_table_that_is_also_used_completely_is_fetched_completely() {
    struct Tied(nn::Embedding);
    watched(|| {
        let train = |strategy: Strategy| {
            let model = strategy
                .replicate(|vb: VarBuilder| Ok::<_, candle_core::Error>(Tied(nn::embedding(WORDS, 4, vb)?)))
                .unwrap();
            let optimizer = distribute::optimizer::Adagrad::new(&model.variables, 0.1).unwrap();
            let ids = Tensor::new(&[3u32, 22, 3], &Device::Cpu).unwrap();
            for _ in 0..4 {
                let run = strategy.run(&model, |ctx, Tied(words)| {
                    // All replicas request the complete table at the same time, and wait for it before they compute.
                    ctx.all_reduce(ReduceOp::Sum, 1f32)?;
                    let logits = words.forward(&ids)?.matmul(&words.embeddings().t()?)?;
                    optimizer.minimize(ctx, nn::loss::cross_entropy(&logits, &ids)?, 3)
                });
                run.unwrap();
            }
            model.variables.sha256().unwrap()
        };
        assert_eq!(train(servers(2, 3).into()), train(OneDeviceStrategy::new("cpu:0").unwrap()));
        for _ in 0..10 {
            let builder = ParameterServerStrategy::builder()
                .cluster_resolver(LocalCluster::new(1, 2).unwrap().resolver())
                .partitioner(FixedShardsPartitioner::new(3).unwrap());
            let strategy = builder.devices(["cpu:0", "cpu:1", "cpu:2"]).build().unwrap();
            assert_eq!(train(strategy.into()), train(MirroredStrategy::cpus(3).unwrap()));
        }
    });
}

#[test]
fn several_workers_train_one_model_without_waiting_for_each_other() {
    watched(|| {
        let cluster = LocalCluster::new(2, 2).unwrap();
        let partitioner = MinSizePartitioner::new(64, 2).unwrap();
        let strategy = |task| ParameterServerStrategy::new(cluster.resolver_of(task), partitioner).unwrap();
        let chief = strategy(distribute::cluster::Job::Chief.task(0));
        let whole = chief.replicate_seeded(7, Net::new).unwrap();
        let before = whole.variables.sha256().unwrap();
        let steps = 30;
        std::thread::scope(|scope| {
            for worker in 0..2 {
                let strategy = strategy(distribute::cluster::Job::Worker.task(worker));
                scope.spawn(move || {
                    let model = strategy.replicate_seeded(7, Net::new).unwrap();
                    let optimizer = distribute::optimizer::Adagrad::new(&model.variables, 0.1).unwrap();
                    for _ in 0..steps {
                        let step = strategy
                            .run(&model, |ctx, model| optimizer.minimize(ctx, model.loss(5, worker)?, 5));
                        step.unwrap();
                    }
                });
            }
        });
        // The coordinator's model has the updates of both workers.
        assert_ne!(whole.variables.sha256().unwrap(), before);
        let losses = chief.run(&whole, |_, model| Ok(model.loss(5, 0)?.to_scalar::<f32>()?)).unwrap();
        assert!(losses.values()[0] < 0.5, "{losses:?}");
    });
}

#[test]
fn workers_use_the_coordinators_variables() {
    let cluster = LocalCluster::new(1, 2).unwrap();
    let partitioner = FixedShardsPartitioner::new(2).unwrap();
    let worker = ParameterServerStrategy::builder()
        .cluster_resolver(cluster.resolver_of(distribute::cluster::Job::Worker.task(0)))
        .partitioner(partitioner)
        .join_timeout(std::time::Duration::from_millis(50))
        .build()
        .unwrap();
    let missing = worker.replicate(Net::new).map(drop).unwrap_err().to_string();
    assert!(missing.contains("bags.weight/part_0") || missing.contains("words.weight/part_0"), "{missing}");
    assert!(missing.contains("the chief creates variables"), "{missing}");
}

/// Creates the strategy of a worker with two replicas and two servers.
fn two_replicas() -> Strategy {
    let builder = ParameterServerStrategy::builder()
        .cluster_resolver(LocalCluster::new(1, 2).unwrap().resolver())
        .partitioner(FixedShardsPartitioner::new(2).unwrap());
    builder.devices(["cpu:0", "cpu:1"]).build().unwrap().into()
}

// INV-79
#[test]
fn a_model_built_per_thread_trains_like_a_shared_one() {
    watched(|| {
        let steps = |strategy: &Strategy,
                     variables: &distribute::Variables,
                     step: &dyn Fn(&distribute::Adam, usize)| {
            let optimizer = distribute::Adam::new(variables, 0.05).unwrap();
            (0..4).for_each(|number| step(&optimizer, number));
            assert_eq!(strategy.num_replicas_in_sync(), 2);
            variables.sha256().unwrap()
        };
        let strategy = two_replicas();
        let model = strategy.replicate_seeded(7, Net::new).unwrap();
        let shared = steps(&strategy, &model.variables, &|optimizer, number| {
            strategy.run(&model, |ctx, model| optimizer.minimize(ctx, model.loss(5, number)?, 5)).unwrap();
        });
        // Tables are requested in the first step, by threads that have not built a model.
        let strategy = two_replicas();
        let model = strategy.replicate_seeded(7, |vb| nn::per_thread(vb, Net::new)).unwrap();
        let built = steps(&strategy, &model.variables, &|optimizer, number| {
            let run = strategy.run(&model, |ctx, model| {
                let model = model.get()?;
                optimizer.minimize(ctx, model.loss(5, number)?, 5)
            });
            run.unwrap();
        });
        assert_eq!(built, shared);
    });
}

#[test]
fn frozen_weights_of_half_precision_are_unchanged_on_servers() {
    watched(|| {
        let strategy = two_replicas();
        let build = |vb: VarBuilder| -> candle_core::Result<[Tensor; 2]> {
            let normal = Init::Randn { mean: 0., stdev: 1. };
            let base = vb.get_with_hints_dtype((4, 3), "base", normal, DType::BF16)?;
            Ok([base, vb.get_with_hints((4, 3), "adapter", Init::Const(0.))?])
        };
        let model = strategy.replicate(build).unwrap();
        let before = model.variables.get("base").unwrap().to_dtype(DType::F32).unwrap();
        let optimizer = distribute::Adam::new(&model.variables, 0.1).unwrap();
        let step = |optimizer: &distribute::Adam| {
            strategy.run(&model, |ctx, [base, adapter]| {
                let weight = (base.to_dtype(DType::F32)? + adapter)?;
                optimizer.minimize(ctx, weight.sqr()?.mean_all()?, 1)
            })
        };
        let error = step(&optimizer).unwrap_err().to_string();
        assert!(error.contains("BF16: base") && error.contains("freeze"), "{error}");
        let optimizer = optimizer.freeze(|name| name == "base").unwrap();
        (0..3).for_each(|_| drop(step(&optimizer).unwrap()));
        let of = |name: &str| {
            let value = model.variables.get(name).unwrap().to_dtype(DType::F32).unwrap();
            value.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        assert_eq!(of("base"), before.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        assert!(of("adapter").iter().any(|x| x.abs() > 0.05));
    });
}
