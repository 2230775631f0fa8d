//! A server that is killed under load restarts with all acknowledged changes.
//!
//! `DISTRIBUTE_TEST_KILLS=100 cargo test -p distribute-ps-server --test it killed -- --nocapture` kills it more often,
//! and prints how long it was unavailable.

use crate::support::{PATIENCE, cluster, connection, count, counters, dynamic, push, rows, server, until};
use distribute_cluster::Stopwatch;
use distribute_net::Identity;
use distribute_ps_server::{ParameterServer, ServerOptions};
use distribute_ps_tables::{Channel, Request};
use distribute_testing::child::{Killed, command, part};
use distribute_testing::{Port, SplitMix, watched};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const TEST: &str = "killed::a_killed_server_restarts_with_all_acknowledged_changes";

/// The longest time until a change is acknowledged again.
const AWAY: Duration = Duration::from_secs(10);

/// Runs a server that constantly saves its tables, in a separate process.
fn serve(part: &str) -> ! {
    let (port, folder) = part.split_once(' ').unwrap();
    let options = ServerOptions::new(folder).snapshot_every(Duration::from_millis(10));
    let tables = ParameterServer::open(options).unwrap();
    let server = server(cluster(port.parse().unwrap()), tables, Identity::None);
    println!("at {}", server.address());
    let _ = server.join();
    unreachable!("nobody ends it");
}

/// Starts this server in a process, and waits until it listens.
fn process(port: u16, folder: &Path) -> Killed {
    let mut child = Killed(command(TEST, &format!("{port} {}", folder.display())).spawn().unwrap());
    // The watchdog of the test ends a process that prints nothing.
    let mut out = BufReader::new(child.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(out.any(|line| line.contains("at 127.0.0.1:")), "the server has ended");
    child
}

/// Kills a server `kills` times while three clients count, and compares the counts. Returns how long it was unavailable
/// each time.
fn account(kills: u64, seed: u64) -> Vec<Duration> {
    let folder = tempfile::tempdir().unwrap();
    let reserved = Port::reserve();
    let port = reserved.number();
    let known = cluster(port);
    let mut running = Some(process(port, folder.path()));
    let first = connection(&known, 0);
    first.call(counters("n", 3), PATIENCE).unwrap();
    first.call(dynamic("ids"), PATIENCE).unwrap();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut away = Vec::new();
    let counted: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|worker| {
                let (known, stop, done) = (&known, &stop, &done);
                scope.spawn(move || {
                    let ps = connection(known, worker as usize);
                    let mut counted = 0;
                    while !stop.load(Ordering::SeqCst) {
                        let both = Request::Batch(vec![count("n", worker), push("ids", worker)]);
                        let calls = [count("n", worker), push("ids", worker), both]
                            .map(|request| ps.start(request, PATIENCE).unwrap());
                        calls.into_iter().for_each(|call| drop(call.wait().unwrap()));
                        counted += 2;
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                    counted
                })
            })
            .collect();
        let mut random = SplitMix(seed);
        for _ in 0..kills {
            let before = done.load(Ordering::SeqCst);
            let some = 10 + random.below(500) as u64;
            until("progress", || done.load(Ordering::SeqCst) >= before + some);
            drop(running.take());
            let (gone, before) = (Stopwatch::start(), done.load(Ordering::SeqCst));
            running = Some(process(port, folder.path()));
            // Up to three responses may have been sent before the server was killed.
            until("progress", || done.load(Ordering::SeqCst) > before + 3);
            away.push(gone.elapsed());
        }
        stop.store(true, Ordering::SeqCst);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // Restarted once more, while no request is in flight.
    drop(running.take());
    let _running = process(port, folder.path());
    let expected: Vec<i64> = counted.iter().map(|n| *n as i64).collect();
    assert_eq!(rows(&first, "n", vec![0, 1, 2]).to_vec::<i64>().unwrap(), expected);
    let expected: Vec<f64> = counted.iter().map(|n| *n as f64).collect();
    assert_eq!(rows(&first, "ids", vec![0, 1, 2]).to_vec::<f64>().unwrap(), expected);
    away
}

// INV-53
#[test]
fn a_killed_server_restarts_with_all_acknowledged_changes() {
    if let Some(part) = part() {
        serve(&part);
    }
    let kills = std::env::var("DISTRIBUTE_TEST_KILLS").map_or(10, |kills| kills.parse().unwrap());
    let mut away = Vec::new();
    for round in 0..u64::div_ceil(kills, 10) {
        away.extend(watched(move || account(10, round)));
    }
    away.sort();
    eprintln!("{kills} times away: median {:?}, at most {:?}", away[away.len() / 2], away[away.len() - 1]);
    assert!(away[away.len() - 1] < AWAY, "{away:?}");
}
