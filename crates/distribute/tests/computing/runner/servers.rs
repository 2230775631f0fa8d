//! Several workers of parameter servers: workers that run the program independently, and workers that wait for a
//! coordinator.

use crate::runner::{GLOBAL_BATCH, ROWS, datasets, made, rows};
use distribute::between_graph::AsyncWorkerStrategy as Independent;
use distribute::cluster::Job;
use distribute::parameter_server::FixedShardsPartitioner;
use distribute::runner::{self, Datasets, History, Phase, Trainer};
use distribute::{Error, LocalCluster, ParameterServerStrategy, Result};
use distribute_testing::watched;
use std::sync::Mutex;
use std::time::Duration;

const WORKERS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the program on all workers at the same time, each on a thread, and returns the results.
fn on_all(program: impl Fn(&Independent) -> Result<History> + Sync) -> Vec<Result<History>> {
    let cluster = LocalCluster::new(WORKERS, 2).unwrap();
    std::thread::scope(|scope| {
        let run = |number| {
            let (cluster, program) = (&cluster, &program);
            scope.spawn(move || {
                let settings = ParameterServerStrategy::builder().join_timeout(PATIENCE);
                let resolver = cluster.resolver_of(Job::Worker.task(number));
                let strategy = Independent::of(settings.cluster_resolver(resolver)).unwrap();
                let history = program(&strategy);
                strategy.finish(PATIENCE).unwrap();
                history
            })
        };
        let running: Vec<_> = (0..WORKERS).map(run).collect();
        running.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

// PSV1-3
#[test]
fn independent_workers_use_each_example_once_in_an_epoch() {
    watched(|| {
        let seen = Mutex::new(Vec::new());
        let histories = on_all(|strategy| {
            let (model, optimizer) = made(strategy, 7);
            strategy.ready(PATIENCE)?;
            let numbered = Datasets::new(|context| {
                let numbered = rows(ROWS, 11).enumerate();
                Ok(numbered.shard(context.num_input_pipelines, context.input_pipeline_id).shuffle(ROWS, 5))
            });
            let trainer = Trainer::new(GLOBAL_BATCH).epochs(1);
            runner::run(&trainer, &model, &optimizer, &numbered, |net, (numbers, batch), phase| {
                assert_eq!(phase, Phase::Training);
                seen.lock().unwrap().extend(numbers.to_vec::<i64>()?);
                net.loss(&batch)
            })
        });
        histories.into_iter().for_each(|history| assert_eq!(history.unwrap().epochs.len(), 1));
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..ROWS as i64));
    });
}

#[test]
fn workers_that_wait_for_a_coordinator_exit() {
    watched(|| {
        let cluster = LocalCluster::new(WORKERS, 1).unwrap();
        let partitioner = FixedShardsPartitioner::new(1).unwrap();
        let strategy = ParameterServerStrategy::new(cluster.resolver(), partitioner).unwrap();
        let (model, optimizer) = made(&strategy, 7);
        let error =
            runner::run(&Trainer::new(GLOBAL_BATCH), &model, &optimizer, &datasets(), |net, batch, _| {
                net.loss(&batch)
            });
        let error = error.unwrap_err();
        assert!(matches!(error, Error::NotSupported { .. }), "{error}");
        assert!(error.to_string().contains("ClusterCoordinator"), "{error}");
    });
}
