//! Closures that run again on another worker: each change on servers is applied once.

use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::cluster::Job;
use distribute::nn::{self, BagMode};
use distribute::optimizer::rules::{Adagrad, Adam, AdamW, Ftrl, Momentum, Rule};
use distribute::parameter_server::FixedShardsPartitioner;
use distribute::{
    Error, ErrorKind, HostTensor, LocalCluster, OneDeviceStrategy, Optimizer, ParameterServerStrategy,
    Replicated, Result, Strategy, Variable,
};
use distribute_ps_tables::Origin;
use distribute_testing::{SplitMix, watched};
use std::collections::BTreeMap;

/// A model whose gradients do not depend on its values. Weights and slots then depend only on the number of times that
/// each step was made.
struct Linear {
    words: nn::Embedding,
    bags: nn::EmbeddingBag,
    whole: Tensor,
}

impl Linear {
    fn new(vb: VarBuilder) -> candle_core::Result<Self> {
        Ok(Self {
            words: nn::embedding(9, 3, vb.pp("words"))?,
            bags: nn::embedding_bag(7, 3, BagMode::Sum, vb.pp("bags"))?,
            whole: vb.get_with_hints((4, 3), "whole", Init::Const(1.))?,
        })
    }

    fn loss(&self, of: u64) -> Result<Tensor> {
        let ids = |rows: u64, more: u64| (0..4).map(move |i| ((of * 5 + i * i + more) % rows) as u32);
        let words: Vec<u32> = ids(9, 0).collect();
        let bags = Tensor::from_vec(ids(7, 1).collect(), (2, 2), &Device::Cpu)?;
        let words = self.words.forward(&Tensor::new(words, &Device::Cpu)?)?.sum_all()?;
        Ok(((words + self.bags.forward(&bags)?.sum_all()?)? + self.whole.sum_all()?.affine(0.5, 0.)?)?)
    }
}

/// The objects with which a worker, or a single device, trains.
struct Worker<R: Rule> {
    strategy: Strategy,
    model: Replicated<Linear>,
    optimizer: Optimizer<R>,
    counted: Variable,
}

/// The number of operations in a closure, which alternately count and make a step.
const OPERATIONS: u64 = 6;

impl<R: Rule> Worker<R> {
    fn new(strategy: &Strategy, rule: R) -> Self {
        let model = strategy.replicate_seeded(7, Linear::new).unwrap();
        let optimizer = Optimizer::with_rule(rule, &model.variables, 0.05).unwrap();
        let counted =
            strategy.scope(|| Variable::new("counted", HostTensor::vector(vec![0i64; 40]))).unwrap();
        Self { strategy: strategy.clone(), model, optimizer, counted }
    }

    /// Performs the first operations of a closure.
    fn work(&self, closure: u64, operations: u64) -> Result<()> {
        for operation in 0..operations {
            if operation % 2 == 0 {
                let mut one = vec![0i64; 40];
                one[closure as usize] = 1;
                self.counted.assign_add(HostTensor::vector(one))?;
            } else {
                let examples = closure * OPERATIONS + operation;
                self.strategy
                    .run(&self.model, |ctx, model| self.optimizer.minimize(ctx, model.loss(examples)?, 1))?;
            }
        }
        Ok(())
    }

    fn state(&self) -> BTreeMap<String, Vec<u32>> {
        let bits = |tensor: Tensor| {
            let values = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
            values.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let mut all = BTreeMap::new();
        for name in self.model.variables.names() {
            for slot in self.optimizer.slot_names() {
                let found = self.optimizer.slot(&name, slot).unwrap();
                all.insert(format!("{name} {slot}"), bits(found));
            }
            all.insert(name.clone(), bits(self.model.variables.get(&name).unwrap()));
        }
        all
    }
}

fn origin(job: u64, closure: u64) -> Origin {
    Origin { job, closure, floor: closure.saturating_sub(1) }
}

/// Runs closures one after another. For each, some workers run its first operations, and then one worker runs it
/// completely.
fn trained<R: Rule + Copy>(rule: R, staleness: usize, seed: u64) {
    const CLOSURES: u64 = 12;
    let cluster = LocalCluster::new(3, 2).unwrap();
    let strategy = |task| {
        let partitioner = FixedShardsPartitioner::new(3).unwrap();
        let builder = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver_of(task));
        builder.partitioner(partitioner).staleness(staleness).build().unwrap()
    };
    let chief = strategy(Job::Chief.task(0));
    let chief = Worker::new(&chief, rule);
    let workers: Vec<_> =
        (0..3).map(|worker| Worker::new(&strategy(Job::Worker.task(worker)), rule)).collect();
    let servers = chief.strategy.extended().parameter_servers().unwrap();
    let job = servers.begin_job().unwrap();
    let mut random = SplitMix(seed);
    for closure in 0..CLOSURES {
        for _ in 0..random.below(3) {
            let worker = &workers[random.below(3)];
            let servers = worker.strategy.extended().parameter_servers().unwrap();
            let running = servers.run_closure(origin(job, closure)).unwrap();
            worker.work(closure, random.below(OPERATIONS as usize + 1) as u64).unwrap();
            // The attempt is lost, and another one begins from the start.
            drop(running);
        }
        let worker = &workers[random.below(3)];
        let servers = worker.strategy.extended().parameter_servers().unwrap();
        let running = servers.run_closure(origin(job, closure)).unwrap();
        assert!(servers.run_closure(origin(job, closure)).is_err(), "two at once");
        worker.work(closure, OPERATIONS).unwrap();
        running.end().unwrap();
    }
    for worker in &workers {
        worker
            .strategy
            .extended()
            .parameter_servers()
            .unwrap()
            .run_closure(origin(job, 0))
            .unwrap()
            .end()
            .unwrap();
    }
    let alone = Worker::new(&OneDeviceStrategy::new("cpu:0").unwrap(), rule);
    (0..CLOSURES).for_each(|closure| alone.work(closure, OPERATIONS).unwrap());
    let counted = chief.counted.read::<HostTensor>().unwrap().to_vec::<i64>().unwrap();
    assert_eq!(counted[..CLOSURES as usize], [OPERATIONS as i64 / 2; CLOSURES as usize]);
    assert_eq!(chief.state(), alone.state());
}

// INV-59
#[test]
fn weights_and_slots_equal_those_of_closures_that_ran_once() {
    watched(|| {
        for seed in 0..4 {
            trained(Adagrad::default(), 0, seed);
        }
        trained(Momentum::new(0.9), 0, 10);
        trained(Ftrl::default(), 0, 11);
        // Their updates depend on how many there have been.
        (0..4).for_each(|seed| trained(Adam::default(), 0, seed));
        trained(AdamW::default(), 0, 12);
        trained(Adam::default(), 2, 13);
    });
}

// INV-59: of one worker, too, that runs a closure again and again, and of rows that not each step has.
#[test]
fn steps_of_a_closure_that_is_run_again_are_counted_once() {
    watched(|| {
        let cluster = LocalCluster::new(1, 2).unwrap();
        let partitioner = FixedShardsPartitioner::new(3).unwrap();
        let strategy = ParameterServerStrategy::new(cluster.resolver(), partitioner).unwrap();
        let servers = strategy.extended().parameter_servers().unwrap();
        let worker = Worker::new(&strategy, Adam::lazy());
        let job = servers.begin_job().unwrap();
        let mut random = SplitMix(3);
        for closure in 0..12 {
            for _ in 0..random.below(4) {
                let _running = servers.run_closure(origin(job, closure)).unwrap();
                worker.work(closure, random.below(OPERATIONS as usize + 1) as u64).unwrap();
            }
            assert_eq!(worker.optimizer.finished_steps(), closure * OPERATIONS / 2);
            let running = servers.run_closure(origin(job, closure)).unwrap();
            worker.work(closure, OPERATIONS).unwrap();
            running.end().unwrap();
        }
        let alone = Worker::new(&OneDeviceStrategy::new("cpu:0").unwrap(), Adam::lazy());
        (0..12).for_each(|closure| alone.work(closure, OPERATIONS).unwrap());
        assert_eq!(worker.optimizer.finished_steps(), alone.optimizer.finished_steps());
        assert_eq!(worker.state(), alone.state());
    });
}

// INV-59
#[test]
fn pending_updates_at_the_end_belong_to_their_closure() {
    watched(|| (0..4).for_each(|seed| trained(Momentum::nesterov(0.9), 2, seed)));
}

// INV-59
#[test]
fn a_replaced_worker_gets_an_error_and_changes_nothing() {
    watched(|| {
        let cluster = LocalCluster::new(1, 2).unwrap();
        let strategy = |task| {
            let partitioner = FixedShardsPartitioner::new(2).unwrap();
            ParameterServerStrategy::new(cluster.resolver_of(task), partitioner).unwrap()
        };
        let chief = strategy(Job::Chief.task(0));
        let of_chief = Worker::new(&chief, Adam::default());
        let worker = strategy(Job::Worker.task(0));
        let worker = Worker::new(&worker, Adam::default());
        let (of_all, of_one) = (&chief, worker.strategy.extended().parameter_servers().unwrap());
        let of_all = of_all.extended().parameter_servers().unwrap();
        let work = |job, closure, floor| {
            let _running = of_one.run_closure(Origin { job, closure, floor }).unwrap();
            worker.work(closure, OPERATIONS)
        };
        let first = of_all.begin_job().unwrap();
        work(first, 5, 4).unwrap();
        let state = of_chief.state();
        let is_stale = |error: &Error| error.kind() == ErrorKind::Stale;
        let ended = work(first, 3, 0).unwrap_err();
        assert!(is_stale(&ended) && ended.to_string().contains("closure 3"), "{ended}");
        assert!(is_stale(&Error::Other(Box::new(ended))));
        // The coordinator starts again.
        let second = of_all.begin_job().unwrap();
        assert!(second > first);
        let replaced = work(first, 6, 4).unwrap_err();
        assert!(
            is_stale(&replaced) && replaced.to_string().contains("the coordinator was restarted"),
            "{replaced}"
        );
        assert_eq!(of_chief.state(), state);
        work(second, 0, 0).unwrap();
        assert_ne!(of_chief.state(), state);
        // Changes outside a closure belong to no job.
        worker.work(1, 2).unwrap();
        let other = worker.counted.assign(HostTensor::vector(vec![0i64])).unwrap_err();
        assert!(!is_stale(&other), "{other}");
    });
}
