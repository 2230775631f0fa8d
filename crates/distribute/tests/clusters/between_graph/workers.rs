//! The properties of a worker, the refusals of its constructor, and the end of a job.

use crate::between_graph::support::{PATIENCE, all, settings, worker};
use distribute::between_graph::AsyncWorkerStrategy;
use distribute::cluster::Job;
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::strategy::DeviceName;
use distribute::{Error, LocalCluster, prelude::*};
use distribute_testing::watched;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn of(cluster: &str, task: Option<distribute::cluster::Task>) -> distribute::Result<AsyncWorkerStrategy> {
    let resolver = SimpleClusterResolver::new(cluster.parse().unwrap());
    let resolver = match task {
        Some(task) => resolver.with_task(task),
        None => resolver,
    };
    let settings = distribute::ParameterServerStrategy::builder().cluster_resolver(resolver);
    AsyncWorkerStrategy::of(settings.join_timeout(Duration::from_millis(50)))
}

#[test]
fn psv1_2_a_cluster_needs_a_task_and_parameter_servers() {
    let both = r#"{"worker": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"]}"#;
    let error = of(both, None).unwrap_err();
    assert!(matches!(&error, Error::InvalidArgument { .. }), "{error:?}");
    assert!(error.to_string().contains("set the resolver's task_type and task_id"), "{error}");
    let error = of(r#"{"worker": ["127.0.0.1:1"]}"#, Some(Job::Worker.task(0))).unwrap_err();
    assert!(matches!(&error, Error::Cluster(_)) && error.to_string().contains("\"ps\""), "{error}");
    let error = of(both, Some(Job::Ps.task(0))).unwrap_err().to_string();
    assert!(error.contains("between_graph::serve"), "{error}");
    let error = of(both, Some(Job::Evaluator.task(0))).unwrap_err().to_string();
    assert!(error.contains("an evaluator"), "{error}");
}

#[test]
fn psv1_2_servers_that_cannot_be_reached_are_named() {
    watched(|| {
        let port = distribute_testing::Port::reserve();
        let cluster = format!(r#"{{"worker": ["127.0.0.1:1"], "ps": ["{}"]}}"#, port.address());
        let error = of(&cluster, Some(Job::Worker.task(0))).unwrap_err().to_string();
        assert!(error.contains("1 of 1 parameter servers cannot be reached"), "{error}");
        assert!(error.contains(&port.address().to_string()), "{error}");
    });
}

#[test]
fn psv1_3_replicas_in_sync_belong_to_one_worker() {
    let cluster = LocalCluster::new(3, 2).unwrap();
    let strategy = worker(&cluster, 1, 2);
    assert_eq!(strategy.num_replicas_in_sync(), 2);
    assert_eq!((strategy.workers(), strategy.worker()), (3, 1));
    let ids = strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group())).unwrap();
    assert_eq!(ids.values(), [0, 1]);
}

// PSV1-1, PSV1-3
#[test]
fn psv1_3_gpus_are_asked_for_by_their_number_and_none_is_the_cpu() {
    let cluster = LocalCluster::new(1, 1).unwrap();
    let with = |gpus| AsyncWorkerStrategy::of(settings(&cluster, 0).gpus_per_worker(gpus));
    let cpu = with(0).unwrap();
    assert_eq!(cpu.extended().worker_devices(), [DeviceName::cpu(0)]);
    match with(2) {
        Ok(two) => assert_eq!(two.extended().worker_devices(), [DeviceName::gpu(0), DeviceName::gpu(1)]),
        Err(error) => {
            assert!(matches!(&error, Error::Device { name, .. } if name.contains("gpu:")), "{error}")
        }
    }
}

#[test]
fn psv1_5_parameters_are_on_the_servers_and_computing_is_done_here() {
    let cluster = LocalCluster::new(2, 3).unwrap();
    let strategy = worker(&cluster, 0, 2);
    let servers = [0, 1, 2].map(DeviceName::of_server);
    assert_eq!(strategy.extended().parameter_devices(), servers);
    assert_eq!(servers[2].to_string(), "/job:ps/replica:0/task:2/device:CPU:0");
    assert_eq!(strategy.extended().worker_devices(), [DeviceName::cpu(0), DeviceName::cpu(1)]);
}

#[test]
fn psv1_6_nothing_is_reduced_to_another_worker() {
    let cluster = LocalCluster::new(2, 1).unwrap();
    let strategy = worker(&cluster, 1, 2);
    let ids = || strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group() as i64)).unwrap();
    let error =
        strategy.reduce_to(ReduceOp::Sum, ids(), "/job:worker/replica:0/task:0/device:CPU:0").unwrap_err();
    assert!(matches!(&error, Error::InvalidArgument { .. }), "{error:?}");
    assert!(error.to_string().contains("belongs to another worker"), "{error}");
    // Its own devices have a name in the cluster, too.
    let own = strategy.reduce_to(ReduceOp::Sum, ids(), "/job:worker/replica:0/task:1/device:CPU:1").unwrap();
    assert_eq!(*own.get(), 1);
    assert_eq!(strategy.reduce(ReduceOp::Sum, ids(), None).unwrap(), 1);
    // RED-8
    assert_eq!(strategy.reduce(ReduceOp::Mean, 7i64, None).unwrap(), 7);
    assert!(matches!(strategy.reduce(ReduceOp::Sum, 7i64, None), Err(Error::InvalidArgument { .. })));
}

// PSV1-11
#[test]
fn psv1_11_the_chief_alone_initializes_saves_and_writes_summaries() {
    let cluster = LocalCluster::new(2, 1).unwrap();
    for (number, chief) in [(0, true), (1, false)] {
        let strategy = worker(&cluster, number, 1);
        assert_eq!(strategy.is_chief(), chief, "worker {number}");
        assert_eq!(strategy.extended().independent().map(|of| of.worker), Some(number));
        let folder = tempfile::tempdir().unwrap();
        strategy.summary_writer(folder.path()).unwrap().close().unwrap();
        assert_eq!(folder.path().read_dir().unwrap().count(), usize::from(chief));
    }
    assert!(MirroredStrategy::cpus(2).unwrap().extended().independent().is_none());
}

// PSV1-9
#[test]
fn psv1_9_run_and_datasets_return_their_results() {
    let cluster = LocalCluster::new(1, 1).unwrap();
    let strategy = worker(&cluster, 0, 2);
    let batches = strategy.distribute_dataset(Dataset::range(4).batch(4)).unwrap();
    let sums = batches.iter().map(|batch| {
        let sums =
            strategy.run(batch.unwrap(), |_, ids| Ok(ids.to_vec::<i64>()?.iter().sum::<i64>())).unwrap();
        strategy.reduce(ReduceOp::Sum, sums, None).unwrap()
    });
    assert_eq!(sums.collect::<Vec<_>>(), [6]);
    let made = strategy.distribute_datasets_from_function(|_| Ok(Dataset::range(2).batch(1))).unwrap();
    assert_eq!(made.iter().count(), 1);
}

#[test]
fn psv1_13_configure_gives_the_strategy_of_another_cluster_with_these_devices() {
    let (here, there) = (LocalCluster::new(1, 1).unwrap(), LocalCluster::new(2, 3).unwrap());
    let before = worker(&here, 0, 2);
    let after = before.configure(there.resolver_of(Job::Worker.task(1))).unwrap();
    assert_eq!((after.workers(), after.worker(), after.num_replicas_in_sync()), (2, 1, 2));
    assert_eq!(
        (after.extended().parameter_devices().len(), before.extended().parameter_devices().len()),
        (3, 1)
    );
}

#[test]
fn the_chief_waits_for_all_workers_and_names_the_missing() {
    watched(|| {
        let cluster = LocalCluster::new(3, 1).unwrap();
        let [chief, first, second] = [0, 1, 2].map(|number| worker(&cluster, number, 1));
        first.finish(PATIENCE).unwrap();
        let error = chief.finish(Duration::from_millis(30)).unwrap_err().to_string();
        assert!(error.contains("worker 2 of 3") && error.contains("30ms"), "{error}");
        // A worker that was restarted has not finished.
        let again = worker(&cluster, 1, 1);
        let error = chief.finish(Duration::from_millis(30)).unwrap_err().to_string();
        assert!(error.contains("workers 1, 2 of 3"), "{error}");
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                chief.finish(PATIENCE).unwrap();
                assert!(ended.load(Ordering::SeqCst));
            });
            again.finish(PATIENCE).unwrap();
            ended.store(true, Ordering::SeqCst);
            second.finish(PATIENCE).unwrap();
        });
    });
}

// PSV1-4
#[test]
fn psv1_4_actions_of_the_first_replica_happen_once_in_a_step_of_each_worker() {
    watched(|| {
        let cluster = LocalCluster::new(2, 2).unwrap();
        let strategies = [0, 1].map(|number| worker(&cluster, number, 3));
        std::thread::scope(|scope| {
            for strategy in &strategies {
                scope.spawn(move || {
                    let step = strategy.global_step().unwrap();
                    for _ in 0..20 {
                        strategy.run((), |_, ()| step.assign_add(1i64)).unwrap();
                    }
                });
            }
        });
        // 20 steps of each of 2 workers, whatever the number of replicas.
        for strategy in &strategies {
            assert_eq!(strategy.global_step().unwrap().read::<i64>().unwrap(), 40);
            assert_eq!(strategy.steps(), 20);
        }
    });
}

// PSV1-3
#[test]
fn psv1_3_workers_run_the_program_independently() {
    watched(|| {
        // No worker waits for another: one makes a single step, the other 50.
        let steps = all(2, 1, |strategy| {
            let count = strategy.scope(|| Variable::builder("count", 0i64).get_or_create())?;
            let mine = if strategy.is_chief() { 1 } else { 50 };
            for _ in 0..mine {
                strategy.run((), |_, ()| count.assign_add(1i64))?;
            }
            strategy.finish(PATIENCE)?;
            Ok((strategy.steps(), strategy.is_chief().then(|| count.read::<i64>()).transpose()?))
        });
        assert_eq!(steps, [(1, Some(51)), (50, None)]);
    });
}

#[test]
fn workers_wait_until_the_chief_is_ready_and_log_it() {
    watched(|| {
        let cluster = LocalCluster::new(2, 1).unwrap();
        let [chief, other] = [0, 1].map(|number| worker(&cluster, number, 1));
        let error = other.ready(Duration::from_millis(30)).unwrap_err().to_string();
        assert!(error.contains("the chief has not called ready within 30ms"), "{error}");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| other.ready(PATIENCE));
            chief.ready(Duration::ZERO).unwrap();
            waits.join().unwrap().unwrap();
        });
        // A worker that starts later need not wait. After the chief is restarted, workers have to wait again.
        worker(&cluster, 1, 1).ready(Duration::ZERO).unwrap();
        let _again = worker(&cluster, 0, 1);
        assert!(worker(&cluster, 1, 1).ready(Duration::ZERO).is_err());
    });
}
