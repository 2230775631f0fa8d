//! SIGTERM to one worker of several, or to a single process: all save after the same step, exit successfully,
//! and resume. Their final weights are those of an uninterrupted training.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod processes;

use distribute_testing::watched;
use processes::{Workers, example, figures, terminate, text};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// The number of epochs: enough for a training of some seconds, which does not end before the signal arrives, even on a
/// busy machine.
const EPOCHS: &str = "120";

fn arguments(folder: &Path) -> Vec<&str> {
    vec!["--epochs", EPOCHS, "--json", "--checkpoints", folder.to_str().unwrap()]
}

/// Returns the figures of an uninterrupted training with `replicas` replicas.
fn undisturbed(replicas: &str) -> Value {
    let mut command = Command::new(example("resume"));
    figures(&command.args(["--replicas", replicas, "--epochs", EPOCHS, "--json"]).output().unwrap())
}

/// Waits until a process has printed its first epoch. Returns the reader of its further output.
fn in_the_middle(child: &mut Child) -> impl Read + use<> {
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("epoch") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it has ended");
    }
    said
}

/// Waits until a process has ended. Returns its output, of which `rest` is the part that has not been read.
fn ended(child: Child, mut rest: impl Read) -> Output {
    let mut stdout = Vec::new();
    rest.read_to_end(&mut stdout).unwrap();
    Output { stdout, ..child.wait_with_output().unwrap() }
}

fn sigterm_to(signalled: &'static [usize]) {
    watched(move || {
        let folder = tempfile::tempdir().unwrap();
        let arguments = [&["--replicas", "1"], &arguments(folder.path())[..]].concat();
        let mut workers = Workers::start(2, "resume", &arguments);
        let rest = in_the_middle(&mut workers.0[0]);
        signalled.iter().for_each(|worker| terminate(&workers.0[*worker]));
        let [chief, other] = <[Child; 2]>::try_from(std::mem::take(&mut workers.0)).unwrap();
        let outputs = [ended(chief, rest), other.wait_with_output().unwrap()];
        let [first, second] = outputs.each_ref().map(figures);
        assert_eq!(first["steps"], second["steps"], "after the same step");
        assert_eq!(first["weights_sha256"], second["weights_sha256"]);
        let (chief, log) = (text(&outputs[0].stderr), text(&outputs[signalled[0]].stderr));
        assert!(log.contains("SIGTERM: "), "{log}");
        assert!(chief.contains(&format!("after step {}, ", first["steps"])), "{chief}");

        let again = Workers::start(2, "resume", &arguments).end();
        let [first_again, second_again] = [&again[0], &again[1]].map(figures);
        assert_eq!(first_again["resumed_after"], first["steps"]);
        let through = undisturbed("2");
        assert!(first["steps"].as_u64() < through["steps"].as_u64(), "it was through before the signal");
        for again in [first_again, second_again] {
            assert_eq!(again["steps"], through["steps"]);
            assert_eq!(again["weights_sha256"], through["weights_sha256"]);
        }
    });
}

#[test]
fn sigterm_to_one_worker_of_two_stops_both_after_one_step_and_they_resume_to_the_same_weights() {
    sigterm_to(&[1]);
}

#[test]
fn sigterm_to_the_chief_does_the_same() {
    sigterm_to(&[0]);
}

#[test]
fn sigterm_to_all_does_the_same() {
    sigterm_to(&[0, 1]);
}

#[test]
fn sigterm_to_a_single_process_saves() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let command = || {
            let mut command = Command::new(example("resume"));
            command.args(["--replicas", "2"]).args(arguments(folder.path()));
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command
        };
        let mut workers = Workers(vec![command().spawn().unwrap()], None);
        let rest = in_the_middle(&mut workers.0[0]);
        terminate(&workers.0[0]);
        let output = ended(workers.0.remove(0), rest);
        let first = figures(&output);
        let again = figures(&command().output().unwrap());
        assert_eq!(again["resumed_after"], first["steps"]);
        assert_eq!(again["weights_sha256"], undisturbed("2")["weights_sha256"]);
        assert_ne!(again["weights_sha256"], json!(null));
    });
}
