//! The workers are processes, which are killed and stopped.

use crate::program::{Place, Task, program};
use distribute::cluster::Deadline;
use distribute_testing::{child, watched};
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::ChildStderr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long one process may take.
const PATIENCE: Duration = Duration::from_secs(100);

/// What happens to a worker in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Killed(Place),
    Stopped(Place),
}

/// A worker's process: `worker workers port fault`.
fn worker(part: &str) {
    let words: Vec<&str> = part.split(' ').collect();
    let number = |at: usize| words[at].parse::<usize>().unwrap();
    let task = Task { worker: number(0), workers: number(1), replicas: 1, port: number(2) as u16 };
    let happened = AtomicBool::new(false);
    let lost = |place: Place| {
        for (fault, signal) in [(Fault::Killed(place), Signal::KILL), (Fault::Stopped(place), Signal::STOP)] {
            if format!("{fault:?}") == words[3] && !happened.swap(true, Ordering::SeqCst) {
                kill_process(getpid(), signal).unwrap();
            }
        }
        Ok(())
    };
    let (sha256, generation) = program(task, lost).unwrap_or_else(|error| panic!("{error}"));
    println!("ended {sha256} {generation}");
}

/// A worker's process, and the lines that it writes on standard error.
struct Worker {
    process: child::Killed,
    said: Receiver<String>,
}

fn start(test: &str, (worker, workers): (usize, usize), port: u16, fault: Option<Fault>) -> Worker {
    let fault = fault.map_or("None".to_owned(), |fault| format!("{fault:?}"));
    let mut command = child::command(test, &format!("{worker} {workers} {port} {fault}"));
    let mut process = child::Killed(command.spawn().unwrap());
    let said = lines(process.0.stderr.take().unwrap());
    Worker { process, said }
}

fn lines(pipe: ChildStderr) -> Receiver<String> {
    let (line, lines) = channel();
    std::thread::spawn(move || {
        BufReader::new(pipe).lines().map_while(Result::ok).try_for_each(|said| line.send(said))
    });
    lines
}

impl Worker {
    /// Waits until it says this.
    fn wait_for(&self, text: &str) -> String {
        let until = Deadline::after(PATIENCE);
        loop {
            let line = self
                .said
                .recv_timeout(until.remaining())
                .unwrap_or_else(|_| panic!("it doesn't say {text:?}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    /// What its training has come to.
    fn ended(mut self) -> (String, String) {
        let mut out = String::new();
        let pipe = self.process.0.stdout.take().unwrap();
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if let Some((_, ended)) = line.split_once("ended ") {
                out = ended.to_owned();
            }
        }
        let status = self.process.0.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.said.iter().collect::<Vec<_>>().join("\n"));
        let (sha256, generation) = out.split_once(' ').unwrap();
        (sha256.to_owned(), generation.to_owned())
    }
}

/// Three processes of which one meets these faults, in one life after another. Gives the sum of their weights, and how long the
/// others were without it, as they say.
fn train(test: &str, faulty: usize, faults: &[Fault]) -> (String, String) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let first = |worker: usize| faults.first().copied().filter(|_| worker == faulty);
    let mut workers: Vec<_> = (0..3).map(|worker| start(test, (worker, 3), port, first(worker))).collect();
    for (life, fault) in faults.iter().enumerate() {
        match fault {
            Fault::Killed(_) => {
                let status = workers[faulty].process.0.wait().unwrap();
                assert!(!status.success());
                workers[faulty] = start(test, (faulty, 3), port, faults.get(life + 1).copied());
            }
            Fault::Stopped(_) => {
                let other = (faulty + 1) % 3;
                let line = workers[other].wait_for("the training stops after step ");
                assert!(line.contains(&format!("worker {faulty} ")), "{line}");
                let pid = Pid::from_raw(workers[faulty].process.0.id() as i32).unwrap();
                kill_process(pid, Signal::CONT).unwrap();
            }
        }
    }
    let mut gap = String::new();
    if !faults.is_empty() {
        gap = workers[(faulty + 1) % 3].wait_for("the training goes on after step ");
    }
    let ended: Vec<_> = workers.into_iter().map(Worker::ended).collect();
    assert!(ended.iter().all(|worker| *worker == ended[0]), "{ended:?}");
    println!("worker {faulty} {faults:?}: {gap}");
    (ended[0].0.clone(), gap)
}

/// With these faults of the chief and of another worker, the weights are those without.
fn same_weights(test: &'static str, all: &'static [&'static [Fault]]) {
    if let Some(part) = child::part() {
        return worker(&part);
    }
    watched(move || {
        let (undisturbed, _) = train(test, 0, &[]);
        for faults in all {
            for faulty in [0, 2] {
                assert_eq!(train(test, faulty, faults).0, undisturbed, "worker {faulty}: {faults:?}");
            }
        }
    });
}

// INV-42
#[test]
fn killed_before_and_between_steps() {
    same_weights(
        "processes::killed_before_and_between_steps",
        &[&[Fault::Killed(Place::First)], &[Fault::Killed(Place::Between)], &[Fault::Killed(Place::AtEnd)]],
    );
}

// INV-42
#[test]
fn killed_in_a_step() {
    same_weights(
        "processes::killed_in_a_step",
        &[&[Fault::Killed(Place::InStep)], &[Fault::Killed(Place::AfterUpdate)]],
    );
}

// INV-42
#[test]
fn killed_again_while_the_others_wait_for_it() {
    same_weights(
        "processes::killed_again_while_the_others_wait_for_it",
        &[&[Fault::Killed(Place::Between), Fault::Killed(Place::Setup), Fault::Killed(Place::InStep)]],
    );
}

// INV-42
#[test]
fn stopped_until_the_others_have_given_it_up() {
    same_weights("processes::stopped_until_the_others_have_given_it_up", &[&[Fault::Stopped(Place::InStep)]]);
}
