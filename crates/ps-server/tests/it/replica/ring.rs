//! Three servers in a ring, in memory. One after the other is killed at a fixed pace while clients count.
//!
//! `DISTRIBUTE_TEST_KILLS=200 cargo test -p distribute-ps-server --test it replica::ring -- --nocapture` kills them
//! more often.

use crate::replica::{cluster, process, serve};
use crate::support::{PATIENCE, count, counters, patient, rows, until};
use distribute_cluster::{Deadline, Job};
use distribute_net::Identity;
use distribute_ps_server::Connection;
use distribute_ps_tables::{Channel, ChannelError, Copies, RefusalKind, Request, Response};
use distribute_rpc::ClientBuilder;
use distribute_testing::child::{Killed, part};
use distribute_testing::{Port, SplitMix, watched};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SERVERS: usize = 3;
const CLIENTS: usize = 3;

/// The number of rows of a table that takes a while to copy.
const LARGE: usize = 256 << 10;

/// The longest time in which a server reports the number of copies.
const SOON: Duration = Duration::from_millis(100);

/// The test of this module that starts servers.
const TEST: &str = "replica::ring::servers_of_a_ring_that_are_killed_one_at_a_time_keep_all_replicated_data";

/// The processes of a ring, and the connections to them.
struct Ring {
    numbers: Vec<u16>,
    ports: String,
    running: Mutex<Vec<Option<Killed>>>,
    _reserved: Vec<Port>,
}

impl Ring {
    fn start() -> Self {
        let reserved: Vec<Port> = (0..SERVERS).map(|_| Port::reserve()).collect();
        let numbers: Vec<u16> = reserved.iter().map(Port::number).collect();
        let ports = numbers.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        let running = (0..SERVERS).map(|number| Some(process(TEST, number, &ports, None))).collect();
        Self { numbers, ports, running: Mutex::new(running), _reserved: reserved }
    }

    fn connection(&self, worker: usize, number: usize) -> Connection {
        let clients = ClientBuilder::new(cluster(&self.numbers), Job::Worker.task(worker));
        Connection::new(clients.credentials(Identity::None).settings(patient()), Job::Ps.task(number))
    }

    fn kill(&self, number: usize) {
        drop(self.running.lock().unwrap()[number].take());
    }

    fn restart(&self, number: usize) {
        self.running.lock().unwrap()[number] = Some(process(TEST, number, &self.ports, None));
    }
}

/// Returns the state of the copies of a server's tables, and whether the server has a copy of the previous server's;
/// `None` if it does not answer soon.
fn copies(server: &Connection) -> Option<(Copies, bool)> {
    match server.call(Request::Usage, SOON) {
        Ok(Response::Usage(usage)) => Some((usage.copies, usage.follows == 1)),
        _ => None,
    }
}

/// Returns, for each server, whether there are two copies of its tables. Both the server and the next one must confirm
/// it.
fn are_complete(all: &[Connection]) -> Vec<bool> {
    let found: Vec<_> = all.iter().map(copies).collect();
    let has = |number: usize| found[number].is_some_and(|(copies, _)| copies == Copies::Two);
    let follows = |number: usize| found[number].is_some_and(|(_, follows)| follows);
    (0..SERVERS).map(|number| has(number) && follows((number + 1) % SERVERS)).collect()
}

/// Counts on all servers that have not lost their tables, until `stop` is set. Returns the acknowledged counts.
fn counts(ring: &Ring, worker: usize, lost: &[AtomicBool], stop: &AtomicBool) -> Vec<i64> {
    let all: Vec<Connection> = (0..SERVERS).map(|number| ring.connection(worker, number)).collect();
    let mut counted = vec![0i64; SERVERS];
    while !stop.load(Ordering::SeqCst) {
        let calls: Vec<_> = (0..SERVERS)
            .filter(|number| !lost[*number].load(Ordering::SeqCst))
            .map(|number| (number, all[number].start(count("n", worker as i64), PATIENCE).unwrap()))
            .collect();
        for (number, call) in calls {
            match call.wait() {
                Ok(_) => counted[number] += 1,
                Err(error) => {
                    assert_is_lost(&error);
                    // Creating the table again does not help, because it would be empty.
                    let again = all[number].call(counters("n", CLIENTS), PATIENCE).unwrap_err();
                    assert!(
                        counted[number] == 0 || matches!(&again, ChannelError::Refused { .. }),
                        "{again}"
                    );
                    lost[number].store(true, Ordering::SeqCst);
                }
            }
        }
    }
    counted
}

fn assert_is_lost(error: &ChannelError) {
    let ChannelError::Refused { refusal, .. } = error else { panic!("{error}") };
    assert_eq!(refusal.kind, RefusalKind::Lost, "{error}");
    assert!(refusal.text.contains("from a checkpoint"), "{error}");
}

/// Kills servers until `kills` kills are made or tables are lost. Returns the number of kills and whether tables were
/// lost.
fn round(kills: usize, gap: Duration, random: &mut SplitMix) -> (usize, bool) {
    let ring = Ring::start();
    let first: Vec<Connection> = (0..SERVERS).map(|number| ring.connection(0, number)).collect();
    for table in [("n", CLIENTS), ("large", LARGE)] {
        first.iter().for_each(|server| drop(server.call(counters(table.0, table.1), PATIENCE).unwrap()));
    }
    let stop = AtomicBool::new(false);
    let lost: Vec<AtomicBool> = (0..SERVERS).map(|_| AtomicBool::new(false)).collect();
    let (mut killed, mut may_be_lost) = (0, [false; SERVERS]);
    let counted: Vec<Vec<i64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS)
            .map(|worker| {
                let (ring, stop, lost) = (&ring, &stop, &lost);
                scope.spawn(move || counts(ring, worker, lost, stop))
            })
            .collect();
        while killed < kills && !is_lost(&lost) {
            let pace = Deadline::after(gap);
            until("the pace", || pace.has_passed());
            let victim = random.below(SERVERS);
            let owner = (victim + SERVERS - 1) % SERVERS;
            // The victim may have the only copy of its own tables, or of those of the server that it follows.
            let (whole, state) = (are_complete(&first), copies(&first[owner]));
            may_be_lost[victim] |= !whole[victim];
            may_be_lost[owner] |= !state.is_some_and(|(copies, _)| copies != Copies::Starting);
            ring.kill(victim);
            ring.restart(victim);
            killed += 1;
        }
        stop.store(true, Ordering::SeqCst);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for number in 0..SERVERS {
        let expected: Vec<i64> = counted.iter().map(|of| of[number]).collect();
        if lost[number].load(Ordering::SeqCst) {
            assert!(may_be_lost[number], "ps {number} had two copies, and has lost {expected:?}");
            continue;
        }
        let found = rows(&first[number], "n", (0..CLIENTS as i64).collect()).to_vec::<i64>().unwrap();
        assert_eq!(found, expected, "of ps {number}");
    }
    (killed, is_lost(&lost))
}

fn is_lost(lost: &[AtomicBool]) -> bool {
    lost.iter().any(|lost| lost.load(Ordering::SeqCst))
}

// INV-57
#[test]
fn servers_of_a_ring_that_are_killed_one_at_a_time_keep_all_replicated_data() {
    if let Some(part) = part() {
        serve(&part);
    }
    let kills = std::env::var("DISTRIBUTE_TEST_KILLS").map_or(6, |kills| kills.parse().unwrap());
    for millis in [250, 700] {
        let (mut left, mut losses, mut seed) = (kills, 0, millis);
        while left > 0 {
            let gap = Duration::from_millis(millis);
            let (killed, lost) = watched(move || round(usize::min(left, 25), gap, &mut SplitMix(seed)));
            (left, losses, seed) = (left - killed, losses + usize::from(lost), seed + 1);
        }
        eprintln!("{kills} kills, {millis} ms apart: with tables of which there was one copy {losses} times");
    }
}

// INV-57
#[test]
fn a_restarted_follower_gets_its_copy_without_changes() {
    watched(|| {
        let ring = Ring::start();
        let all: Vec<Connection> = (0..SERVERS).map(|number| ring.connection(0, number)).collect();
        for server in &all {
            server.call(counters("n", 1), PATIENCE).unwrap();
            for _ in 0..20 {
                server.call(count("n", 0), PATIENCE).unwrap();
            }
        }
        let whole = || until("a second copy of each", || are_complete(&all) == [true; SERVERS]);
        whole();
        for follower in [1, 2, 0, 2, 1, 0] {
            for victim in [follower, (follower + SERVERS - 1) % SERVERS] {
                ring.kill(victim);
                ring.restart(victim);
                whole();
            }
        }
        for server in &all {
            assert_eq!(rows(server, "n", vec![0]).to_vec::<i64>().unwrap(), [20]);
        }
    });
}

// INV-57
#[test]
fn tables_that_lost_both_copies_are_not_silently_recreated() {
    watched(|| {
        let ring = Ring::start();
        let old = ring.connection(0, 0);
        old.call(counters("n", 1), PATIENCE).unwrap();
        old.call(count("n", 0), PATIENCE).unwrap();
        [0, 1].into_iter().for_each(|victim| ring.kill(victim));
        [0, 1].into_iter().for_each(|victim| ring.restart(victim));
        for request in [count("n", 0), counters("n", 1), Request::List] {
            let error = old.call(request, PATIENCE).unwrap_err();
            assert_is_lost(&error);
            assert!(error.to_string().contains("ps 0"), "{error}");
        }
        // A restarted program creates the table again. The earlier program still gets its error.
        let new = ring.connection(1, 0);
        new.call(counters("n", 1), PATIENCE).unwrap();
        new.call(count("n", 0), PATIENCE).unwrap();
        assert_is_lost(&old.call(count("n", 0), PATIENCE).unwrap_err());
        assert_eq!(rows(&new, "n", vec![0]).to_vec::<i64>().unwrap(), [1]);
    });
}
