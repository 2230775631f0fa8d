//! Tests `packages` with the loop of `runner::run`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod processes;

use distribute_testing::watched_for;
use processes::{example, figures, text};
use std::process::Command;
use std::time::Duration;

const MINUTES: Duration = Duration::from_secs(180);

#[test]
fn packages_trained_in_one_call_have_the_weights_of_one_replica() {
    watched_for(MINUTES, || {
        let arguments = ["--runner", "--replicas", "2", "--epochs", "1", "--json", "--quiet"];
        let found = figures(&Command::new(example("packages")).args(arguments).output().unwrap());
        let number = |name: &str| found[name].as_f64().unwrap();
        assert!(number("accuracy") > 0.8, "{found}");
        // The order of sums differs.
        assert!(number("largest_difference_of_weights") < 1e-2, "{found}");
    });
}

#[test]
fn workers_out_of_step_are_refused() {
    watched_for(MINUTES, || {
        for strategy in ["ps", "between-graph"] {
            let arguments = ["--runner", "--strategy", strategy];
            let output = Command::new(example("packages")).args(arguments).output().unwrap();
            let said = text(&output.stderr);
            assert!(!output.status.success() && said.contains("--runner is for workers in step"), "{said}");
        }
    });
}
