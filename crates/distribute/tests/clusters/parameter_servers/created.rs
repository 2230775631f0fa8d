//! Variables that are created, found, waited for, or refused.

use crate::parameter_servers::channels::{channels, logged};
use crate::parameter_servers::support::servers;
use crate::support::log_of;
use distribute::cluster::Job;
use distribute::parameter_server::FixedShardsPartitioner;
use distribute::tensor::IndexedSlices;
use distribute::{HostTensor, LocalCluster, ParameterServerStrategy, Strategy, Variable};
use distribute_ps_tables::{Channel, Request};
use distribute_testing::watched;
use std::sync::Arc;
use std::time::Duration;

fn numbers(count: i64) -> HostTensor {
    HostTensor::vector((0..count).collect::<Vec<_>>())
}

/// Creates one task of a cluster with channels to its servers, and with variables in two shards.
fn task(task: distribute::cluster::Task, channels: &[Arc<dyn Channel>]) -> ParameterServerStrategy {
    let cluster = LocalCluster::new(1, channels.len()).unwrap();
    ParameterServerStrategy::builder()
        .cluster_resolver(cluster.resolver_of(task))
        .channels(channels.to_vec())
        .partitioner(FixedShardsPartitioner::new(2).unwrap())
        .build()
        .unwrap()
}

fn make(strategy: &Strategy, name: &str) -> distribute::Result<Variable> {
    strategy.scope(|| Variable::new(name, numbers(5)))
}

// PLACE-1
#[test]
fn place_1_a_variable_that_could_not_be_made_has_no_place() {
    watched(|| {
        let (builder, log) = logged(3);
        let strategy = builder.build().unwrap();
        *log.lost.lock().unwrap() = Some("create");
        make(&strategy, "w").unwrap_err();
        assert!(strategy.placement().placed().is_empty());
        *log.lost.lock().unwrap() = None;
        make(&strategy, "w").unwrap();
        let placed = strategy.placement();
        assert_eq!(placed.of("w").unwrap()[0].server, 0);
        assert_eq!(placed.placed().len(), 1);
    });
}

#[test]
fn a_worker_waits_for_the_coordinators_variables() {
    watched(|| {
        let (channels, log) = channels(2);
        let worker = task(Job::Worker.task(0), &channels);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| make(&worker, "w"));
            let asked = || log.asked.lock().unwrap().iter().any(|(_, request)| *request == Request::List);
            while !asked() && !waits.is_finished() {
                std::thread::yield_now();
            }
            let whole = make(&task(Job::Chief.task(0), &channels), "w").unwrap();
            let found = waits.join().unwrap().unwrap();
            found.assign_add(numbers(5)).unwrap();
            assert_eq!(whole.gather(&[4]).unwrap(), HostTensor::vector(vec![8i64]));
        });
        // A worker does not request the list again for variables that it contains.
        let chief = task(Job::Chief.task(0), &channels);
        let _made = ["w", "a", "b"].map(|name| make(&chief, name).unwrap());
        log.take();
        let _made = ["a", "b"].map(|name| make(&worker, name).unwrap());
        let lists = log.take().into_iter().filter(|(_, request)| *request == Request::List).count();
        assert_eq!(lists, 2, "one of each server");
    });
}

// SHARD-4
#[test]
fn shard_4_no_variable_is_called_as_the_shard_of_another() {
    let strategy = servers(2, 2);
    for names in [["a", "a/part_0"], ["b/part_1", "b"]] {
        let one = |name| strategy.scope(|| Variable::new(name, HostTensor::vector(vec![1i64])));
        let all =
            names.map(|name| if name.contains('/') { one(name) } else { make(&strategy, name) }.unwrap());
        for variable in &all {
            variable.assign_add(variable.read::<HostTensor>().unwrap()).unwrap();
        }
        let values = all.map(|variable| variable.read::<HostTensor>().unwrap().to_vec::<i64>().unwrap());
        let sum: i64 = values.iter().flatten().sum();
        assert_eq!(sum, 22, "{names:?}: {values:?}");
    }
}

// SC-1
#[test]
fn rows_are_divided_in_all_shards_or_in_none() {
    let strategy = servers(2, 2);
    let v = make(&strategy, "v").unwrap();
    let rows = |values: Vec<i64>| {
        IndexedSlices::new(HostTensor::vector(values), HostTensor::vector(vec![2i64, 4]), None).unwrap()
    };
    let error = v.scatter_div(rows(vec![2, 0])).unwrap_err().to_string();
    assert!(error.contains('v') && error.contains("0"), "{error}");
    assert_eq!(v.read::<HostTensor>().unwrap(), numbers(5));
    v.scatter_div(rows(vec![2, 4])).unwrap();
    assert_eq!(v.read::<HostTensor>().unwrap(), HostTensor::vector(vec![0i64, 1, 1, 3, 1]));
}

#[test]
fn a_coordinator_reports_the_restored_variables_and_a_missing_half_of_one() {
    watched(|| {
        let (channels, lost) = channels(2);
        let chief = || task(Job::Chief.task(0), &channels);
        let before = log_of(|| {
            let first = chief();
            // An attempt that fails on one server does not count as an earlier training.
            *lost.down.lock().unwrap() = Some("ps 1".into());
            make(&first, "a").unwrap_err();
            *lost.down.lock().unwrap() = None;
            let _made = ["a", "b"].map(|name| make(&first, name).unwrap());
        });
        assert_eq!(before.matches("WARN").count(), 0, "{before}");
        let found = log_of(|| {
            let second = chief();
            let _made = ["a", "b", "c"].map(|name| make(&second, name).unwrap());
        });
        assert_eq!(found.matches("WARN").count(), 1, "{found}");
        assert!(found.contains("a/part_0, a/part_1, b/part_0, b/part_1;"), "{found}");
        let remove = Request::Remove { table: "a/part_1".into() };
        channels[1].start(remove, Duration::from_secs(60)).unwrap().wait().unwrap();
        let half = log_of(|| drop(make(&chief(), "a").unwrap()));
        assert!(half.contains("variable a: servers had a/part_0 but not a/part_1"), "{half}");
        assert!(half.contains("restore a checkpoint"), "{half}");
    });
}
