//! A server that is killed and whose folder is gone continues with the copy on the next server.
//!
//! `DISTRIBUTE_TEST_KILLS=100 cargo test -p distribute-ps-server --test it replica -- --nocapture` kills them more
//! often, and prints how long they were unavailable.

mod ring;

use crate::support::{PATIENCE, count, counters, dynamic, patient, push, rows, until};
use distribute_cluster::{ClusterSpec, Job, Stopwatch};
use distribute_net::Identity;
use distribute_ps_server::{Connection, ParameterServer, REPLICAS, SERVICE, ServerOptions};
use distribute_ps_tables::{Channel, Request};
use distribute_rpc::{ClientBuilder, Server};
use distribute_testing::child::{Killed, command, part};
use distribute_testing::{Port, SplitMix, watched};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const TEST: &str = "replica::a_server_that_lost_its_folder_has_all_acknowledged_changes";

/// The longest time until changes are acknowledged again.
const AWAY: Duration = Duration::from_secs(10);

const SERVERS: usize = 2;

fn cluster(ports: &[u16]) -> ClusterSpec {
    let at = |port: &u16| format!("127.0.0.1:{port}");
    let workers = vec!["127.0.0.1:0".to_owned(); 3];
    ClusterSpec::from_lists([("ps", ports.iter().map(at).collect()), ("worker", workers)]).unwrap()
}

/// Runs a server that the next one replicates, in a separate process. Without a folder, its tables are in memory.
fn serve(part: &str) -> ! {
    let mut parts = part.split(' ');
    let number: usize = parts.next().unwrap().parse().unwrap();
    let ports: Vec<u16> = parts.next().unwrap().split(',').map(|port| port.parse().unwrap()).collect();
    let (cluster, task) = (cluster(&ports), Job::Ps.task(number));
    let tables = match parts.next().filter(|folder| !folder.is_empty()) {
        None => ParameterServer::new(),
        Some(folder) => {
            let options = ServerOptions::new(folder).snapshot_every(Duration::from_millis(20));
            ParameterServer::open(options).unwrap()
        }
    };
    let clients =
        ClientBuilder::new(cluster.clone(), task.clone()).credentials(Identity::None).settings(patient());
    let count = ports.len();
    let tables = tables.followed_by(clients.clone(), Job::Ps.task((number + 1) % count), number).unwrap();
    let replicas = tables.replicas(clients, Job::Ps.task((number + count - 1) % count)).unwrap();
    let builder = Server::builder(cluster).task(task).credentials(Identity::None).settings(patient());
    let server = builder.service(SERVICE, tables).service(REPLICAS, replicas).start().unwrap();
    println!("at {}", server.address());
    let _ = server.join();
    unreachable!("nobody ends it");
}

/// Starts this server in a process, and waits until it listens.
fn process(test: &str, number: usize, ports: &str, folder: Option<&Path>) -> Killed {
    let folder = folder.map(|folder| folder.display().to_string()).unwrap_or_default();
    let mut child = Killed(command(test, &format!("{number} {ports} {folder}")).spawn().unwrap());
    let mut out = BufReader::new(child.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(out.any(|line| line.contains("at 127.0.0.1:")), "the server has ended");
    child
}

/// Kills one of the servers at random, `kills` times, while three clients count on all servers, and compares the
/// counts. `kept` returns whether the folder of a killed server stays, or `None` if tables are in memory. Returns how
/// long a server was unavailable after each kill.
fn account(kills: u64, seed: u64, kept: impl Fn(&mut SplitMix) -> Option<bool>) -> Vec<Duration> {
    let folder = tempfile::tempdir().unwrap();
    let reserved: Vec<Port> = (0..SERVERS).map(|_| Port::reserve()).collect();
    let numbers: Vec<u16> = reserved.iter().map(Port::number).collect();
    let ports = numbers.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    let mut random = SplitMix(seed);
    let has_folders = kept(&mut random).is_some();
    let of = |number: usize| has_folders.then(|| folder.path().join(number.to_string()));
    let start = |number: usize| process(TEST, number, &ports, of(number).as_deref());
    let spec = cluster(&numbers);
    let connection = |worker: usize, number: usize| {
        let clients = ClientBuilder::new(spec.clone(), Job::Worker.task(worker)).credentials(Identity::None);
        Connection::new(clients.settings(patient()), Job::Ps.task(number))
    };
    let mut running: Vec<Option<Killed>> = (0..SERVERS).map(|number| Some(start(number))).collect();
    let first: Vec<Connection> = (0..SERVERS).map(|number| connection(0, number)).collect();
    for server in &first {
        server.call(counters("n", 3), PATIENCE).unwrap();
        server.call(dynamic("ids"), PATIENCE).unwrap();
    }
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut away = Vec::new();
    let counted: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|worker| {
                let (connection, stop, done) = (&connection, &stop, &done);
                scope.spawn(move || {
                    let all: Vec<Connection> =
                        (0..SERVERS).map(|number| connection(worker, number)).collect();
                    let mut counted = 0;
                    while !stop.load(Ordering::SeqCst) {
                        let row = worker as i64;
                        let both = || Request::Batch(vec![count("n", row), push("ids", row)]);
                        let requests = || [count("n", row), push("ids", row), both()];
                        let calls: Vec<_> = all
                            .iter()
                            .flat_map(|ps| requests().map(|request| ps.start(request, PATIENCE).unwrap()))
                            .collect();
                        calls.into_iter().for_each(|call| drop(call.wait().unwrap()));
                        counted += 2;
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                    counted
                })
            })
            .collect();
        for _ in 0..kills {
            let before = done.load(Ordering::SeqCst);
            let some = 10 + random.below(100) as u64;
            until("progress", || done.load(Ordering::SeqCst) >= before + some);
            let number = random.below(SERVERS);
            drop(running[number].take());
            if kept(&mut random) == Some(false) {
                std::fs::remove_dir_all(of(number).unwrap()).unwrap();
            }
            let (gone, before) = (Stopwatch::start(), done.load(Ordering::SeqCst));
            running[number] = Some(start(number));
            // Up to three responses may have been sent before the server was killed.
            until("progress", || done.load(Ordering::SeqCst) > before + 3);
            away.push(gone.elapsed());
        }
        stop.store(true, Ordering::SeqCst);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for number in 0..SERVERS {
        // Restarted once more, while no request is in flight.
        drop(running[number].take());
        running[number] = Some(start(number));
        let expected: Vec<i64> = counted.iter().map(|n| *n as i64).collect();
        assert_eq!(rows(&first[number], "n", vec![0, 1, 2]).to_vec::<i64>().unwrap(), expected);
        let expected: Vec<f64> = counted.iter().map(|n| *n as f64).collect();
        assert_eq!(rows(&first[number], "ids", vec![0, 1, 2]).to_vec::<f64>().unwrap(), expected);
        // Each server is followed again before the next one is killed.
        first[number].call(counters(&format!("again {number}"), 1), PATIENCE).unwrap();
        let other = (number + 1) % SERVERS;
        first[other].call(counters(&format!("followed {number}"), 1), PATIENCE).unwrap();
    }
    away
}

// INV-57
#[test]
fn a_server_that_lost_its_folder_has_all_acknowledged_changes() {
    if let Some(part) = part() {
        serve(&part);
    }
    let kills = std::env::var("DISTRIBUTE_TEST_KILLS").map_or(4, |kills| kills.parse().unwrap());
    let mut away = Vec::new();
    for round in 0..u64::div_ceil(kills, 10) {
        away.extend(watched(move || account(kills.min(10), round, |_| Some(false))));
    }
    // Folders stay or are removed, at random. Then servers have no folders.
    away.extend(watched(|| account(4, 1000, |random| Some(random.below(2) == 0))));
    away.extend(watched(|| account(4, 2000, |_| None)));
    away.sort();
    eprintln!(
        "{} times away: median {:?}, at most {:?}",
        away.len(),
        away[away.len() / 2],
        away[away.len() - 1]
    );
    assert!(away[away.len() - 1] < AWAY, "{away:?}");
}
