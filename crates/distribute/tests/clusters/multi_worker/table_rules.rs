//! Rules that a table on workers or servers does not support.

use super::tables::{PLACEMENTS, Tables, model, on_threads, train};
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterSpec, Job};
use distribute::optimizer::{Lamb, RowAdagrad};
use distribute::strategy::{HostedWeights, TableHosts, TableOptions};
use distribute::{MultiWorkerMirroredStrategy, Result, Strategy, prelude::*};
use distribute_testing::watched;
use std::time::Duration;

/// Checks LAMB, which needs the norm of a complete table. No worker has one, but other variables can be trained.
#[test]
fn rules_of_complete_variables_are_refused_for_shared_tables_on_all_workers() {
    fn body(strategy: &Strategy) -> Result<(String, String)> {
        let first = model(strategy)?;
        let before = first.variables.sha256()?;
        let all = Lamb::new(&first.variables, 0.05)?;
        let refused = train(strategy, &first, &all, 0..1);
        if refused.is_err() {
            assert_eq!((first.variables.sha256()?, all.finished_steps()), (before, 0));
        }
        let second = model(strategy)?;
        let dense = Lamb::new(&second.variables, 0.05)?.freeze(|name| !name.starts_with("out."))?;
        train(strategy, &second, &dense, 0..3)?;
        let tables = RowAdagrad::new(&second.variables, 0.05)?.freeze(|name| name.starts_with("out."))?;
        train(strategy, &second, &tables, 0..3)?;
        Ok((refused.map_or_else(|error| error.to_string(), |()| String::new()), second.variables.sha256()?))
    }
    watched(|| {
        let expected = body(&MirroredStrategy::cpus(4).unwrap()).unwrap();
        assert_eq!(expected.0, "");
        // The others store all weights with the tables.
        let tables = |tables: &Tables| !matches!(tables, Tables::AllOnWorkers(_) | Tables::AllOnServers(_));
        for tables in PLACEMENTS.into_iter().filter(tables) {
            for (error, sum) in on_threads(2, 2, tables, body).unwrap() {
                assert!(error.contains("need complete variables") && error.contains("RowAdagrad"), "{error}");
                assert_eq!(sum, expected.1, "{tables:?}");
            }
        }
    });
}

/// Checks that options are checked first: no other worker runs, so joining would fail with a different error.
#[test]
fn options_of_tables_are_checked_before_the_workers_join() {
    watched(|| {
        let workers = [(Job::Worker, ["127.0.0.1:1", "127.0.0.1:2"])];
        let resolver = SimpleClusterResolver::new(ClusterSpec::from_lists(workers).unwrap());
        let error = MultiWorkerMirroredStrategy::builder()
            .cluster_resolver(resolver.with_task(Job::Worker.task(1)))
            .join_timeout(Duration::from_millis(50))
            .tables(TableOptions { weights: HostedWeights::All, ..TableHosts::Mirrored.into() })
            .build()
            .unwrap_err()
            .to_string();
        assert!(error.contains("hosts is Mirrored"), "{error}");
    });
}
