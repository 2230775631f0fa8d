//! Checks that a process resumes after it was suspended for longer than its members wait for each other.

use distribute_cluster::{Fingerprint, Operation, Presence};
use distribute_collective::threads::{Member, Team};
use std::io::{BufRead, BufReader, Write};
use std::panic::Location;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// An environment variable that is set in the process that is suspended.
const STOPPED: &str = "DISTRIBUTE_TEST_STOPPED";
const TIMEOUT: Duration = Duration::from_secs(2);
const ROUNDS: usize = 2;

/// Lets time pass. Tests do not sleep.
fn pass(time: Duration) {
    let (_keep, never) = mpsc::channel::<()>();
    never.recv_timeout(time).unwrap_err();
}

/// Runs in the suspended process. Replica 0 waits in a call. Replica 1 joins after a line on standard input, which is
/// written after the suspension.
fn stopped() {
    let team = Arc::new(Team::new(2).unwrap());
    for step in 0..ROUNDS as u64 {
        team.run(step, TIMEOUT, &|member: Member| {
            if member.rank() == 1 {
                while !matches!(team.statuses()[0].presence, Presence::Waiting(_)) {
                    std::thread::yield_now();
                }
                println!("\nwaits");
                std::io::stdin().lock().read_line(&mut String::new()).unwrap();
                // This gives replica 0 time to read the clock.
                pass(TIMEOUT / 8);
            }
            let call = Fingerprint::new(Operation::Barrier, "", Location::caller());
            if let Err(blame) = member.all_gather_local(call, ()) {
                println!("\n{blame}");
                std::process::exit(3);
            }
            true
        });
    }
    println!("\nends");
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// INV-3
#[test]
fn time_in_which_the_process_is_suspended_is_no_replicas_fault() {
    if std::env::var_os(STOPPED).is_some() {
        return stopped();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "pause::time_in_which_the_process_is_suspended_is_no_replicas_fault",
            "--nocapture",
        ])
        .env(STOPPED, "1");
    let mut child = Killed(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let id = child.0.id().to_string();
    let signal = |signal: &str| {
        let kill = Command::new("kill").args([signal, &id]).status();
        assert!(kill.unwrap().success());
    };
    let (line, lines) = mpsc::channel();
    let out = BufReader::new(child.0.stdout.take().unwrap());
    std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|text| line.send(text)));
    let mut heard = Vec::new();
    let mut await_line = |wanted: &str| {
        while heard.last().is_none_or(|line| line != wanted) {
            let line = lines.recv_timeout(Duration::from_secs(60));
            heard.push(line.unwrap_or_else(|error| panic!("{error} before {wanted}: {heard:?}")));
        }
        heard.clear();
    };
    let mut stdin = child.0.stdin.take().unwrap();
    for _ in 0..ROUNDS {
        await_line("waits");
        signal("-STOP");
        pass(TIMEOUT * 3 / 2);
        signal("-CONT");
        writeln!(stdin, "go on").unwrap();
    }
    await_line("ends");
    assert!(child.0.wait().unwrap().success());
}
