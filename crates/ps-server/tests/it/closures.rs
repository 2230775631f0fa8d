//! Checks that each change of a closure is counted once, even if the closure runs several times while servers restart.
//!
//! `DISTRIBUTE_TEST_KILLS=100 cargo test -p distribute-ps-server --test it closures -- --nocapture` kills the servers
//! more often.

use crate::support::{PATIENCE, count, counters, dynamic, patient, push, rows, until};
use distribute_cluster::{ClusterSpec, Job, Task};
use distribute_net::Identity;
use distribute_ps_server::{Connection, ParameterServer, REPLICAS, Replicas, SERVICE, ServerOptions};
use distribute_ps_tables::{Channel, ChannelError, Origin, RefusalKind, Request, Response};
use distribute_rpc::{ClientBuilder, Server};
use distribute_testing::child::{Killed, command, part};
use distribute_testing::{Port, SplitMix, watched};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TEST: &str = "closures::changes_of_closures_are_applied_once_over_restarts_of_a_server";
const SERVERS: usize = 2;
const WORKERS: usize = 3;

/// The number of changes that a closure makes on each server: one of a counter, and one of an id.
const CHANGES: u64 = 2;

/// The way in which a server keeps its tables.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Persistence {
    /// A folder.
    Folder,
    /// A replica on the next server. The server's own folder is emptied.
    Replica,
}

fn cluster(ports: &[Port]) -> ClusterSpec {
    let at = |port: &Port| port.address().to_string();
    let workers = vec!["127.0.0.1:0".to_owned(); WORKERS];
    ClusterSpec::from_lists([("ps", ports.iter().map(at).collect()), ("worker", workers)]).unwrap()
}

/// Runs a server that constantly saves its tables, in a separate process.
fn serve(part: &str) -> ! {
    let [number, cluster, folder, kept] = part.split('\n').collect::<Vec<_>>().try_into().unwrap();
    let (number, cluster): (usize, ClusterSpec) = (number.parse().unwrap(), cluster.parse().unwrap());
    let task = Job::Ps.task(number);
    let options = ServerOptions::new(folder).snapshot_every(Duration::from_millis(10));
    let mut tables = ParameterServer::open(options).unwrap();
    if kept == "followed" {
        let clients = ClientBuilder::new(cluster.clone(), task.clone()).credentials(Identity::None);
        let next = Job::Ps.task((number + 1) % SERVERS);
        tables = tables.followed_by(clients.settings(patient()), next, number).unwrap();
    }
    let builder = Server::builder(cluster).task(task).credentials(Identity::None).settings(patient());
    let server = builder.service(SERVICE, tables).service(REPLICAS, Replicas::new()).start().unwrap();
    println!("at {}", server.address());
    let _ = server.join();
    unreachable!("nobody ends it");
}

/// The state of closures, shared by all threads that run them.
#[derive(Debug, Default)]
struct Closures {
    /// Closures that no execution has finished, with the number of their remaining runs.
    open: BTreeMap<u64, usize>,
    next: u64,
    /// The acknowledged changes on each server, by closure and number.
    made: [BTreeSet<(u64, u64)>; SERVERS],
}

impl Closures {
    /// Returns the next closure, whether this is its last run, and the number below which all closures have ended.
    /// Several threads may run one closure at the same time.
    fn take(&mut self, random: &mut SplitMix) -> (u64, bool, u64) {
        let again: Vec<u64> = self.open.iter().filter(|(_, left)| **left > 0).map(|(id, _)| *id).collect();
        let closure = match again.first() {
            Some(_) if random.below(3) > 0 => random.of(&again),
            _ => {
                self.open.insert(self.next, 1 + random.below(3));
                self.next += 1;
                self.next - 1
            }
        };
        let left = self.open.get_mut(&closure).unwrap();
        *left -= 1;
        (closure, *left == 0, *self.open.first_key_value().unwrap().0)
    }
}

/// Kills one of the servers at random, `kills` times, while workers run closures, many of them two or three times. Then
/// compares the counts.
fn account(kills: u64, seed: u64, kept: Persistence) {
    let folder = tempfile::tempdir().unwrap();
    let ports: Vec<Port> = (0..SERVERS).map(|_| Port::reserve()).collect();
    let cluster = cluster(&ports);
    let text = {
        let ps: Vec<String> = ports.iter().map(|port| port.address().to_string()).collect();
        format!("{{\"worker\": [\"127.0.0.1:0\", \"127.0.0.1:0\", \"127.0.0.1:0\"], \"ps\": {ps:?}}}")
    };
    let of = |number: usize| folder.path().join(number.to_string());
    let process = |number: usize| {
        let followed = if kept == Persistence::Replica { "followed" } else { "alone" };
        let part = format!("{number}\n{text}\n{}\n{followed}", of(number).display());
        let mut child = Killed(command(TEST, &part).spawn().unwrap());
        let mut out = BufReader::new(child.0.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(out.any(|line| line.contains("at 127.0.0.1:")), "the server has ended");
        child
    };
    let connections = |task: Task| -> Vec<Connection> {
        let clients = || ClientBuilder::new(cluster.clone(), task.clone()).credentials(Identity::None);
        let connection = |number| Connection::new(clients().settings(patient()), Job::Ps.task(number));
        (0..SERVERS).map(connection).collect()
    };
    let mut running: Vec<Option<Killed>> = (0..SERVERS).map(|number| Some(process(number))).collect();
    let first = connections(Job::Chief.task(0));
    for server in &first {
        server.call(counters("n", 1), PATIENCE).unwrap();
        server.call(dynamic("ids"), PATIENCE).unwrap();
        assert_eq!(server.call(Request::BeginJob { job: 3 }, PATIENCE), Ok(Response::Job { newest: 3 }));
    }
    let (known, stop) = (Mutex::new(Closures::default()), AtomicBool::new(false));
    let lock = || known.lock().unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (connections, lock, stop) = (&connections, &lock, &stop);
                scope.spawn(move || {
                    let mut random = SplitMix(seed * 100 + worker as u64);
                    let mut all = connections(Job::Worker.task(worker));
                    while !stop.load(Ordering::SeqCst) {
                        let (closure, last, floor) = lock().take(&mut random);
                        let origin = Origin { job: 3, closure, floor };
                        let once =
                            |number, change| Request::Once { origin, number, change: Box::new(change) };
                        for (server, ps) in all.iter().enumerate() {
                            // A lost attempt may have made only some of the changes.
                            for number in 0..if last { CHANGES } else { random.below(3) as u64 } {
                                let both = vec![once(number, count("n", 0)), once(number, push("ids", 7))];
                                match ps.call(Request::Batch(both), PATIENCE).unwrap() {
                                    Response::Batch(answers) if answers.iter().all(Result::is_ok) => {
                                        lock().made[server].insert((closure, number));
                                    }
                                    // Another worker has completed the closure in the meantime.
                                    Response::Batch(answers) => {
                                        let refusals: Vec<_> =
                                            answers.into_iter().filter_map(Result::err).collect();
                                        assert!(
                                            refusals.iter().all(|refusal| refusal.kind == RefusalKind::Stale)
                                        );
                                    }
                                    other => panic!("{other:?}"),
                                }
                            }
                        }
                        if last {
                            lock().open.remove(&closure);
                        } else if random.below(4) == 0 {
                            // The replacement of a lost worker is another client.
                            all = connections(Job::Worker.task(worker));
                        }
                    }
                })
            })
            .collect();
        let mut random = SplitMix(seed);
        for _ in 0..kills {
            let before = lock().next;
            let some = 5 + random.below(40) as u64;
            until("progress", || lock().next >= before + some || threads.iter().any(|one| one.is_finished()));
            let number = random.below(SERVERS);
            drop(running[number].take());
            if kept == Persistence::Replica {
                std::fs::remove_dir_all(of(number)).unwrap();
            }
            running[number] = Some(process(number));
        }
        stop.store(true, Ordering::SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let known = known.into_inner().unwrap();
    for (number, made) in known.made.iter().enumerate() {
        // Restarted once more, while no request is in flight.
        drop(running[number].take());
        running[number] = Some(process(number));
        let expected = made.len();
        assert!(expected as u64 > known.next, "{expected} changes of {} closures", known.next);
        assert_eq!(rows(&first[number], "n", vec![0]).to_vec::<i64>().unwrap(), [expected as i64]);
        assert_eq!(rows(&first[number], "ids", vec![7]).to_vec::<f64>().unwrap(), [expected as f64]);
        // The server still knows which job is the newest, and which closures have ended.
        let refused = |origin| {
            let change = Box::new(count("n", 0));
            match first[number].call(Request::Once { origin, number: 9, change }, PATIENCE) {
                Err(ChannelError::Refused { refusal, .. }) => refusal.kind,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused(Origin { job: 2, closure: known.next, floor: 0 }), RefusalKind::Stale);
        assert_eq!(refused(Origin { job: 3, closure: 0, floor: 0 }), RefusalKind::Stale);
        // Each server is followed again before the next one is killed.
        first[number].call(counters(&format!("again {number}"), 1), PATIENCE).unwrap();
        let other = (number + 1) % SERVERS;
        first[other].call(counters(&format!("followed {number}"), 1), PATIENCE).unwrap();
    }
    eprintln!(
        "{kept:?}: {} closures, {} and {} changes",
        known.next,
        known.made[0].len(),
        known.made[1].len()
    );
}

// INV-59
#[test]
fn changes_of_closures_are_applied_once_over_restarts_of_a_server() {
    if let Some(part) = part() {
        serve(&part);
    }
    let kills: u64 = std::env::var("DISTRIBUTE_TEST_KILLS").map_or(20, |kills| kills.parse().unwrap());
    for round in 0..kills.div_ceil(20) {
        watched(move || account(kills.min(20) / 2, round, Persistence::Folder));
        watched(move || account(kills.min(20).div_ceil(2), round, Persistence::Replica));
    }
}
