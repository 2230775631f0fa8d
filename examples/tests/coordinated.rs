//! Tests `packages` with steps scheduled by a coordinator: with all tasks in one process, and with each in
//! its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod processes;

use distribute_launch::{Launch, Layout, Output, Plan, Stream};
use distribute_testing::{watched, watched_for};
use processes::{example, figures, text};
use serde_json::{Value, json};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The arguments of a training. It has two epochs: in a single one, a worker that starts late leaves its half to the
/// other, which then sees its own twice.
const ARGUMENTS: [&str; 5] = ["--strategy", "ps", "--epochs", "2", "--json"];

/// Checks the result of a training by two workers with two servers.
fn check(found: &Value) {
    assert_eq!((&found["workers"], &found["servers"]), (&json!(2), &json!(2)), "{found}");
    let [accuracy, of_one] = ["accuracy", "accuracy_of_one_device"].map(|it| found[it].as_f64().unwrap());
    assert!(accuracy > 0.8 && (accuracy - of_one).abs() <= 0.01, "{found}");
    for rows in ["rows_read", "rows_pushed"] {
        let of_servers: Vec<_> =
            found[rows].as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).collect();
        assert!(of_servers.len() == 2 && of_servers.iter().all(|rows| *rows > 10_000), "{found}");
    }
}

#[test]
fn workers_of_one_process_reach_the_accuracy_of_one_device() {
    watched_for(MINUTES, || {
        let output = Command::new(example("packages")).args(ARGUMENTS).output().unwrap();
        check(&figures(&output));
        // The output is a pipe, so lines are printed, with the state of workers and servers.
        let said = text(&output.stdout);
        let line = said.lines().find(|line| line.contains(" queued, ")).unwrap_or_else(|| panic!("{said}"));
        assert!(line.starts_with("2 workers, 2 servers: epoch 1 of 2 ("), "{line}");
        assert!(line.contains(" steps/s, ") && line.contains(", staleness "), "{line}");
        assert!(line.contains(", rows/s of servers ") && line.contains(" + "), "{line}");
        assert!(!said.contains('\r'), "{said:?}");
    });
}

const MINUTES: Duration = Duration::from_secs(180);

#[test]
fn processes_under_a_launcher_reach_the_same_weights_and_exit() {
    watched_for(MINUTES, || {
        let said = Arc::new(Mutex::new(Vec::new()));
        let lines = said.clone();
        let plan = Plan::new(&Layout::new(2).with_chief().ps(2)).unwrap();
        let launch = Launch::new(plan).command(example("packages"), [&ARGUMENTS[..], &["--quiet"]].concat());
        let launch = launch.output(move |output| {
            if let Output::Line { task, stream, text, .. } = output {
                lines.lock().unwrap().push((task.to_string(), stream, processes::text(text)));
            }
        });
        let outcome = launch.run().unwrap();
        let said = said.lock().unwrap();
        assert_eq!(outcome.exit_code(), 0, "{outcome}: {said:?}");
        // Other tasks print on standard error where they serve.
        let results: Vec<_> = said.iter().filter(|(_, stream, _)| *stream == Stream::Out).collect();
        let [(task, _, line)] = results.as_slice() else { panic!("{said:?}") };
        assert_eq!(task, "chief 0");
        check(&serde_json::from_str(line).unwrap());
    });
}

#[test]
fn options_that_are_not_for_it_are_refused() {
    watched(|| {
        let output =
            Command::new(example("packages")).args(ARGUMENTS).args(["--replicas", "2"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(
            text(&output.stderr).contains("--replicas is not for --strategy ps"),
            "{}",
            text(&output.stderr)
        );
    });
}
