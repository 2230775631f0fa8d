//! Runs jobs under a launcher whose tasks are parts of the test that starts them.

use distribute_launch::{Launch, Output, Plan};
use distribute_testing::child;
use std::sync::{Arc, Mutex};

/// Runs a job whose tasks run `part` of `test`, and returns the lines that they and the launcher print.
///
/// # Panics
/// Panics if the job fails.
pub fn launched(plan: Plan, test: &str, part: &str, settings: impl FnOnce(Launch) -> Launch) -> String {
    let lines = Arc::new(Mutex::new(String::new()));
    let printed = lines.clone();
    let task = child::command(test, part);
    let mut launch = Launch::new(plan).command(task.get_program(), task.get_args()).output(move |output| {
        let line = match output {
            Output::Line { task, text, .. } => format!("{task}: {}\n", String::from_utf8_lossy(text)),
            Output::Notice(notice) => format!("{notice}\n"),
        };
        printed.lock().unwrap().push_str(&line);
    });
    for (name, value) in task.get_envs() {
        launch = match value {
            Some(value) => launch.env(name, value),
            None => launch.env_remove(name),
        };
    }
    let outcome = settings(launch).run().unwrap();
    let lines = lines.lock().unwrap().clone();
    assert_eq!(outcome.exit_code(), 0, "{lines}");
    lines
}
