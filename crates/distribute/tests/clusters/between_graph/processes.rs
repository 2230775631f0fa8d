//! Tasks that are processes, and that find their cluster in `TF_CONFIG`.

use crate::between_graph::support::PATIENCE;
use distribute::between_graph::{self, AsyncWorkerStrategy};
use distribute::cluster::resolver::TfConfigClusterResolver;
use distribute_testing::{Port, child, watched};

const STEPS: i64 = 30;

/// Runs a task of any kind: a parameter server or a worker.
fn program() -> distribute::Result<()> {
    if between_graph::serve(&TfConfigClusterResolver::from_env()?)?.has_served() {
        return Ok(());
    }
    let strategy = AsyncWorkerStrategy::new(0)?;
    let steps = strategy.global_step()?;
    strategy.ready(PATIENCE)?;
    while steps.read::<i64>()? < STEPS {
        strategy.run((), |_, ()| steps.assign_add(1i64))?;
    }
    println!("worker {} of {}: {}", strategy.worker(), strategy.workers(), strategy.is_chief());
    strategy.finish(PATIENCE)
}

// PSV1-1
#[test]
fn psv1_1_the_cluster_may_be_that_of_tf_config() {
    if child::part().is_some() {
        return program().unwrap_or_else(|error| panic!("{error}"));
    }
    watched(|| {
        let ports = [0; 3].map(|_| Port::reserve());
        let [first, second, server] = [0, 1, 2].map(|port: usize| ports[port].address().to_string());
        let task = |job: &str, index: usize| {
            let config = format!(
                r#"{{"cluster": {{"worker": ["{first}", "{second}"], "ps": ["{server}"]}}, "task": {{"type": "{job}", "index": {index}}}}}"#
            );
            let mut command = child::command(
                "between_graph::processes::psv1_1_the_cluster_may_be_that_of_tf_config",
                &format!("{job} {index}"),
            );
            command.env("TF_CONFIG", config);
            command
        };
        let tasks = [("ps", 0), ("worker", 1), ("worker", 0)].map(|(job, index)| task(job, index));
        // All processes run at the same time, start in any order and exit with success, including the server.
        let said = std::thread::scope(|scope| {
            let all = tasks.map(|task| scope.spawn(|| child::output(task, PATIENCE).0));
            all.map(|task| task.join().unwrap())
        });
        assert!(said[1].contains("worker 1 of 2: false"), "{}", said[1]);
        assert!(said[2].contains("worker 0 of 2: true"), "{}", said[2]);
    });
}
