//! A coordinator whose workers and parameter servers are processes. Any of them may be killed, including the
//! coordinator.

mod counters;
mod datasets;
mod files;
mod kills;
mod restarts;
mod support;

use crate::support::cluster::{Cluster, is_task};
use crate::support::on_cluster;
use counters::{count, make_counters, patient};
use distribute::cluster::Job;
use distribute::remote::WorkerContext;
use distribute::{ClusterCoordinator, Error, Result};
use distribute_testing::watched;
use support::strategy;

#[distribute::remote]
fn refuse(_worker: &WorkerContext) -> Result<()> {
    Err(Error::OutOfRange { operation: "refuse" })
}

#[test]
fn cc_1_and_cc_7_of_a_strategy_there_is_one_coordinator_and_errors_are_typed() {
    watched(|| {
        let strategy = on_cluster(2, 1);
        let coordinator = ClusterCoordinator::new(&strategy).unwrap();
        assert!(ClusterCoordinator::new(&strategy).unwrap() == coordinator);
        coordinator.schedule(refuse, ()).unwrap();
        let error = coordinator.join().unwrap_err();
        let Error::Coordinator(distribute_coordinator::Error::Failed(failure)) = &error else {
            panic!("{error}")
        };
        assert_eq!(failure.kind, distribute_coordinator::FailureKind::EndOfData);
        assert!(
            error.to_string().starts_with("clusters::coordinator::refuse (closure 0) on worker "),
            "{error}"
        );
    });
}

#[test]
fn a_builder_refuses_other_settings_than_those_of_the_strategys_coordinator() {
    watched(|| {
        let strategy = on_cluster(1, 1);
        let coordinator = ClusterCoordinator::builder(&strategy).queue(9).build().unwrap();
        let error = ClusterCoordinator::builder(&strategy).queue(10).build().unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains("whose queue is 9, not 10"), "{error}");
        let the_same = ClusterCoordinator::builder(&strategy).queue(9).build().unwrap();
        assert!(the_same == coordinator && ClusterCoordinator::new(&strategy).unwrap() == coordinator);
        // Without a handle, the strategy has no coordinator, and a new one takes any settings.
        drop((coordinator, the_same));
        ClusterCoordinator::builder(&strategy).queue(10).build().unwrap();
    });
}

// T3: the constructor waits only for the tasks that it needs.
#[test]
fn t3_an_evaluator_of_the_cluster_is_not_waited_for() {
    if is_task() {
        return;
    }
    watched(|| {
        const TEST: &str = "coordinator::t3_an_evaluator_of_the_cluster_is_not_waited_for";
        let cluster = Cluster::builder(TEST, 1, 1).with(Job::Evaluator).start();
        let strategy = strategy(cluster.spec());
        let coordinator = patient(&strategy);
        let counters = coordinator.create_per_worker_value(make_counters, ()).unwrap();
        let row = coordinator.schedule(count, (&counters, 3)).unwrap();
        coordinator.join().unwrap();
        assert_eq!(row.fetch().unwrap(), 3);
        assert_eq!(coordinator.status().workers.len(), 1);
        drop((coordinator, counters));
        strategy.end_servers().unwrap();
        cluster.wait_for_exit();
    });
}
