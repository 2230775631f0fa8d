//! `distribute status` as users start it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use distribute::monitor::Monitor;
use distribute::prelude::*;
use distribute_testing::{Port, child};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn status(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_distribute"));
    command.arg("status").args(arguments);
    command
}

#[test]
fn a_running_job_is_told_as_a_table_and_as_json() {
    let strategy = MirroredStrategy::cpus(2).unwrap();
    let monitor = Monitor::builder(&strategy).address("127.0.0.1:0").start().unwrap();
    let address = monitor.address().unwrap().to_string();
    strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32)).unwrap();
    let deadline = distribute::cluster::Deadline::after(PATIENCE);
    while monitor.report().unwrap().progress.steps == 0 {
        assert!(!deadline.has_passed());
        std::thread::yield_now();
    }
    for address in [address.clone(), format!("http://{address}/")] {
        let (table, _) = child::output(status(&[&address]), PATIENCE);
        let first = table.lines().next().unwrap();
        assert!(first.contains(&format!("(process {})", std::process::id())), "{table}");
        assert!(first.contains("MirroredStrategy: 1 worker, 2 replicas"), "{table}");
        assert!(table.contains("steps  steps/s") && table.contains("replica  device"), "{table}");
        assert!(!table.contains('\x1b'), "{table:?}");
    }
    let (json, _) = child::output(status(&[&address, "--json"]), PATIENCE);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["progress"]["steps"], &json["world"]["replicas"]), (&1.into(), &2.into()));
}

#[test]
fn where_nobody_answers_that_is_said_with_the_address() {
    let port = Port::reserve();
    let address = port.address().to_string();
    let (out, error) = child::refused(status(&[&address]), PATIENCE);
    let expected = format!("status: no job answers at http://{address}: ");
    assert!(out.is_empty() && error.contains(&expected), "{error}");
    assert!(error.contains("is it running"), "{error}");
}

#[test]
fn what_is_no_monitor_is_told_as_such() {
    for (answer, reason) in [
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nnope\n", "it answers 404 Not Found: nope"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "missing field"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let (_, error) = child::refused(status(&[&address]), PATIENCE);
        other.join().unwrap();
        assert!(error.contains("is no monitor of this version") && error.contains(reason), "{error}");
    }
}
