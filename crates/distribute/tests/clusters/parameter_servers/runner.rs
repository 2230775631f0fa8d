//! The strategy that is configured by the environment. The test runs in a separate process, because `TF_CONFIG` applies
//! to a process.

use distribute::{Error, HostTensor, LocalCluster, Variable, runner};
use distribute_testing::{child, watched};
use std::time::Duration;

/// Prints the number of shards of a variable of 1 MB, for several minimum sizes of a shard.
fn in_the_process(part: &str) {
    // The cluster is the first of its process, so it has the addresses in the environment.
    let _cluster = LocalCluster::new(2, 3).unwrap();
    if part == "without" {
        let error = runner::parameter_server_strategy_from_env(None).unwrap_err();
        assert!(matches!(&error, Error::Cluster(_)), "{error}");
        println!("refused: {error}");
        return;
    }
    assert!(matches!(runner::parameter_server_strategy_from_env(Some(0)), Err(Error::Params(_))));
    for min_shard_bytes in [None, Some(1), Some(600_000)] {
        let strategy = runner::parameter_server_strategy_from_env(min_shard_bytes).unwrap();
        let name = format!("of {min_shard_bytes:?}");
        let table =
            strategy.scope(|| Variable::new(name, HostTensor::new(vec![0f32; 250_000], [1000, 250])?));
        println!("{min_shard_bytes:?}: {}", table.unwrap().shards().len());
    }
}

// GNN-1
#[test]
fn gnn_1_the_runner_partitions_over_all_servers_of_tf_config() {
    if let Some(part) = child::part() {
        return in_the_process(&part);
    }
    watched(|| {
        let of = |part: &str, ps: &str| {
            let host = "cluster-1.in-process.invalid";
            let ps = ps.replace("HOST", host);
            let config = format!(
                r#"{{"cluster": {{"worker": ["{host}:1", "{host}:2"]{ps}}}, "task": {{"type": "chief", "index": 0}}}}"#
            );
            let mut command = child::command(
                "parameter_servers::runner::gnn_1_the_runner_partitions_over_all_servers_of_tf_config",
                part,
            );
            command.env("TF_CONFIG", config);
            child::output(command, Duration::from_secs(60)).0
        };
        let with = of("with", r#", "ps": ["HOST:32769", "HOST:32770", "HOST:32771"]"#);
        for line in ["None: 3", "Some(1): 3", "Some(600000): 2"] {
            assert!(with.contains(line), "{with}");
        }
        // This is checked first: the cluster also has no task for the chief.
        let without = of("without", "");
        assert!(without.contains("no job \"ps\""), "{without}");
    });
}
