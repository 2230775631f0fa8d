//! Tests of trainings that are watched while they run, and of their records for TensorBoard.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod processes;

use distribute::cluster::Deadline;
use distribute::data::{Compression, TfRecordReader};
use distribute_testing::watched;
use processes::{Workers, text};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

fn report(address: &str) -> Value {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /status.json HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

// INV-62
#[test]
fn the_chief_of_two_processes_shows_both_and_writes_for_both() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().join("logs");
        let arguments =
            ["--strategy", "multi-worker", "--replicas", "1", "--epochs", "100000", "--live", "0"];
        let arguments = [&arguments[..], &["--log-dir", logs.to_str().unwrap()]].concat();
        let mut workers = Workers::start(2, "digits", &arguments);
        let mut said = BufReader::new(workers.0[0].stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("watch it at http://").unwrap();
        let deadline = Deadline::after(PATIENCE);
        let shown = loop {
            let shown = report(address);
            if shown["progress"]["steps"].as_u64() > Some(20) {
                break shown;
            }
            assert!(!deadline.has_passed(), "{shown}");
        };
        assert_eq!(shown["strategy"], "MultiWorkerMirroredStrategy");
        assert_eq!(
            (
                shown["world"]["workers"].as_array().unwrap().len(),
                shown["replicas"].as_array().unwrap().len()
            ),
            (2, 1)
        );
        assert!(shown["progress"]["loss"].as_f64().unwrap() < 10.);
        // The last batch of an epoch has fewer examples.
        assert!(shown["progress"]["examples"].as_f64().unwrap() >= 19. * 128.);
        let others = workers.0.remove(1);
        drop(workers);
        let mut others = Workers(vec![others], None);
        others.0[0].kill().unwrap();
        let other = others.end().remove(0);
        assert_eq!(text(&other.stdout), "", "the chief alone tells");
        let runs: Vec<_> = fs::read_dir(&logs).unwrap().map(|run| run.unwrap().path()).collect();
        let [run] = &runs[..] else { panic!("{runs:?}") };
        let files: Vec<_> = fs::read_dir(run).unwrap().map(|file| file.unwrap().path()).collect();
        let [file] = &files[..] else { panic!("{files:?}") };
        let first = TfRecordReader::open(file, Compression::None).unwrap().read(1).unwrap();
        assert!(first.iter().next().unwrap().ends_with(b"brain.Event:2"));
    });
}
