//! SIGTERM to a process, which is a notice as long as a watch exists. Before and after that it kills the process.

use distribute::MirroredStrategy;
use distribute::cluster::Stopwatch;
use distribute::training::Preemption;
use distribute_testing::child::{Killed, command, part};
use distribute_testing::watched;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

const TEST: &str = "preemption::sigterm_is_a_notice_while_it_is_watched_and_terminates_the_process_after";
const PATIENCE: f64 = 30.;

/// Sends a line to the parent, and waits until the parent answers or kills this process.
fn notify(what: &str) {
    println!("\n{what}");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}

/// Runs in the process that receives SIGTERM.
fn child() {
    let strategy = MirroredStrategy::cpus(1).unwrap();
    let first = Preemption::watch(&strategy).unwrap();
    let second = Preemption::watch(&strategy).unwrap();
    drop(first);
    notify("one of two is left");
    let watch = Stopwatch::start();
    while !second.requested() {
        strategy.run((), |_, ()| Ok(())).unwrap();
        assert!(watch.seconds() < PATIENCE, "no notice");
    }
    drop(second);
    notify("none is left");
    unreachable!("it was to be killed");
}

#[test]
fn sigterm_is_a_notice_while_it_is_watched_and_terminates_the_process_after() {
    if part().is_some() {
        return child();
    }
    watched(|| {
        let mut process = Killed(command(TEST, "child").stderr(Stdio::inherit()).spawn().unwrap());
        let mut said = BufReader::new(process.0.stdout.take().unwrap());
        let mut until = |what: &str| {
            let mut line = String::new();
            while line.trim() != what {
                line.clear();
                assert!(said.read_line(&mut line).unwrap() > 0, "it has ended before {what:?}");
            }
        };
        let id = process.0.id().to_string();
        let terminate = || assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        until("one of two is left");
        terminate();
        process.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        until("none is left");
        terminate();
        assert_eq!(process.0.wait().unwrap().signal(), Some(15));
    });
}
