//! Support for tests whose processes are started by `mpirun`: each test starts itself again.

#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use distribute_testing::child;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub const PATIENCE: Duration = Duration::from_secs(110);

/// The lock that lets only one `mpirun` run at a time, because the machine has two cores.
static TURN: Mutex<()> = Mutex::new(());

/// Returns the command that starts this test again as `ranks` processes, in each of which [`child::part`] is `part`.
pub fn mpirun(test: &str, ranks: usize, part: &str) -> Command {
    let own = child::command(test, part);
    let mut mpirun = Command::new("mpirun");
    // As root in a container; with more processes than cores; and its own watchdog, which also ends those that hang.
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--timeout", "100"]);
    mpirun.args(["-np", &ranks.to_string()]).arg(own.get_program()).args(own.get_args());
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => mpirun.env(name, value),
            None => mpirun.env_remove(name),
        };
    }
    mpirun
}

/// Calls `body` in all processes of one `mpirun`, for each of the given numbers of processes. All must succeed.
pub fn on_ranks(test: &str, ranks: &[usize], body: impl FnOnce()) {
    if child::part().is_some() {
        return body();
    }
    for ranks in ranks {
        started(mpirun(test, *ranks, "rank"), true);
    }
}

/// Runs a program, which must succeed if `well` and otherwise fail. Returns both outputs.
pub fn started(command: Command, well: bool) -> String {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (out, err) = if well { child::output(command, PATIENCE) } else { child::refused(command, PATIENCE) };
    out + &err
}
