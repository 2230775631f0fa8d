//! A model of a ring of servers that are killed at every step of the protocol. It runs all interleavings of a few
//! events, and many random ones.
//!
//! The tested code is that of real servers, [`Core`], [`ReplicationPlan`] and [`Replicas`], without threads and
//! connections.

use super::Replicas;
use super::message::{FollowerRequest, FollowerResponse, Position};
use super::replication_plan::{FollowerLink, ReplicationPlan, Start, start};
use crate::codec::{Call, Encoded};
use crate::store::{Core, Follower};
use distribute_cluster::Job;
use distribute_ps_tables::{Copies, RefusalKind, Request, Response, TableSpec};
use distribute_tensor::{HostTensor, Wire, Write};
use distribute_testing::SplitMix;
use std::sync::Arc;

/// The process of a server.
struct Process {
    core: Core,
    follower: Arc<Follower>,
    replication_plan: ReplicationPlan,
    replicas: Replicas,
    held: bool,
}

/// A client of one server, which increments a counter and repeats unacknowledged requests.
#[derive(Default)]
struct Client {
    sequence: u64,
    acknowledged: bool,
    /// Whether a change was requested and is not acknowledged yet.
    open: bool,
    /// Whether the server's current process has applied the change.
    made: bool,
    counted: i64,
    /// Whether the server has rejected the client because it has lost its tables.
    refused: bool,
}

struct Ring {
    all: Vec<Process>,
    clients: Vec<Client>,
    /// Whether a kill has removed the only copy of acknowledged changes, for each server.
    may_be_lost: Vec<bool>,
    history: Vec<String>,
}

/// A connection to another process of the ring, which responds immediately.
struct Direct<'a> {
    history: &'a mut Vec<String>,
    to: Option<&'a Replicas>,
    from: usize,
    held: &'a mut bool,
}

impl FollowerLink for Direct<'_> {
    fn ask(&mut self, ask: FollowerRequest) -> Result<FollowerResponse, String> {
        // Messages are encoded and decoded, as over a connection.
        let ask = FollowerRequest::decode(ask.encode().unwrap()).unwrap();
        let to = self.to.ok_or("the connection is lost")?;
        Ok(FollowerResponse::decode(to.answer(&Job::Ps.task(self.from), ask).encode().unwrap()).unwrap())
    }

    fn hold(&mut self) {
        *self.held = true;
    }

    fn release(&mut self) {
        *self.held = false;
    }

    fn warn(&mut self, text: String) {
        self.history.push(text);
    }
}

impl Process {
    fn start(server: usize) -> Self {
        let (core, follower) = (Core::in_memory(), Arc::<Follower>::default());
        core.follow(follower.clone());
        let replication_plan = ReplicationPlan::new("the next".to_owned(), server as u64);
        Self { core, follower, replication_plan, replicas: Replicas::new(), held: false }
    }
}

fn call(client: &Client, requests: Vec<Request>) -> Call {
    let encoded =
        Encoded::new(Request::Batch(requests), Wire::Full).unwrap().acknowledged(client.acknowledged);
    Call::decode(encoded.message(7, client.sequence).unwrap()).unwrap()
}

fn add() -> Request {
    Request::Write { table: "n".into(), how: Write::Add, value: HostTensor::scalar(1i64) }
}

fn create(name: &str) -> Request {
    Request::Create(TableSpec::values(name, HostTensor::scalar(0i64)))
}

impl Ring {
    /// Creates servers, each of which has a table that has counted to 1, and a follower with a complete copy.
    fn new(servers: usize) -> Self {
        let mut ring = Self {
            all: (0..servers).map(Process::start).collect(),
            clients: (0..servers).map(|_| Client::default()).collect(),
            may_be_lost: vec![false; servers],
            history: Vec::new(),
        };
        ring.run_to_idle();
        for server in 0..servers {
            let made =
                ring.all[server].core.execute(&call(&ring.clients[server], vec![create("n"), create("m")])).0;
            assert!(made.iter().all(Result::is_ok), "{made:?}");
            ring.clients[server].sequence = 2;
            ring.count(server);
        }
        ring.run_to_idle();
        assert!(ring.clients.iter().all(|client| client.counted == 1 && client.acknowledged));
        ring
    }

    fn next(&self, server: usize) -> usize {
        (server + 1) % self.all.len()
    }

    /// Sends one request of a server to its follower. Returns `false` if there is nothing to send.
    fn step(&mut self, server: usize) -> bool {
        let next = self.next(server);
        let [process, next] = self.all.get_disjoint_mut([server, next]).unwrap();
        let (to, held) = (Some(&next.replicas), &mut process.held);
        let mut link = Direct { history: &mut self.history, to, from: server, held };
        let stepped = process.replication_plan.step(&process.core, &process.follower, &mut link);
        if stepped.is_err() {
            process.replication_plan.restart(&process.follower, &mut link);
        }
        self.history.push(format!("{server} asks: {stepped:?}"));
        stepped.unwrap_or(true)
    }

    /// Kills a server, and starts it again.
    fn kill(&mut self, victim: usize) {
        let owner = (victim + self.all.len() - 1) % self.all.len();
        let copies = |server: usize| self.all[server].follower.copies();
        self.history.push(format!("{victim} is killed, {:?}; {:?} before it", copies(victim), copies(owner)));
        self.may_be_lost[victim] |= copies(victim) == Copies::Alone;
        self.may_be_lost[owner] |= copies(owner) == Copies::Starting;
        self.all[victim] = Process::start(victim);
        self.clients[victim].made = false;
        // The connection to it is lost.
        let process = &mut self.all[owner];
        let mut link = Direct { history: &mut self.history, to: None, from: owner, held: &mut process.held };
        process.replication_plan.restart(&process.follower, &mut link);
    }

    /// Increments a counter, or repeats an unacknowledged request. Creates the table first, as a program may do after a
    /// restart.
    fn count(&mut self, server: usize) {
        let (process, client) = (&self.all[server], &mut self.clients[server]);
        if client.refused || client.made || process.held || process.follower.copies() == Copies::Starting {
            return;
        }
        client.open = true;
        // A value that is read from a server without losses is at least the acknowledged one, and at most the
        // requested one.
        let read = process
            .core
            .execute(&call(client, vec![Request::Read { table: "n".into(), known: None, may_round: false }]))
            .0
            .remove(0);
        let (answers, _) = process.core.execute(&call(client, vec![create("n"), add()]));
        match (&answers[1], read) {
            (Ok(_), Ok(Response::Value(value))) => {
                let value = value.value.to_vec::<i64>().unwrap()[0];
                assert!(
                    (client.counted..=client.counted + 1).contains(&value),
                    "{value} {:#?}",
                    self.history
                );
                client.made = true;
                self.history.push(format!("{server} counts"));
            }
            (Err(refusal), Err(_)) => {
                assert_eq!(refusal.kind, RefusalKind::Lost, "{refusal} {:#?}", self.history);
                assert!(self.may_be_lost[server], "{refusal} {:#?}", self.history);
                assert!(
                    refusal.text.contains('n') && refusal.text.contains("from a checkpoint"),
                    "{refusal}"
                );
                client.refused = true;
            }
            other => panic!("{other:?} {:#?}", self.history),
        }
    }

    /// Acknowledges the changes that the followers have received.
    fn acknowledge(&mut self) {
        for (server, client) in self.clients.iter_mut().enumerate() {
            let state = self.all[server].follower.lock();
            if client.made && state.has(state.next()) {
                *client = Client {
                    sequence: client.sequence + 2,
                    acknowledged: true,
                    counted: client.counted + 1,
                    ..Client::default()
                };
                // A server that knows this client has all changes that were acknowledged to it.
                self.may_be_lost[server] = false;
            }
        }
    }

    /// Runs all servers until none of them has anything to send.
    fn run_to_idle(&mut self) {
        for _ in 0..200 {
            let steps: Vec<bool> = (0..self.all.len()).map(|server| self.step(server)).collect();
            self.acknowledge();
            if !steps.contains(&true) {
                return;
            }
        }
        panic!("it comes to no end: {:#?}", self.history);
    }

    /// Checks that every server has each acknowledged change exactly once, or reports that it has lost them. Returns
    /// the number of servers with losses.
    fn check(mut self) -> usize {
        self.run_to_idle();
        for server in 0..self.all.len() {
            self.count(server);
            self.run_to_idle();
            self.count(server);
            self.run_to_idle();
            let client = &self.clients[server];
            assert!(client.refused || !client.open, "{:#?}", self.history);
        }
        self.clients.iter().filter(|client| client.refused).count()
    }
}

// INV-57
#[test]
fn two_servers_lose_nothing_without_a_word_whatever_the_order_of_kills_and_copies() {
    const EVENTS: u32 = 4;
    let depth = if distribute_testing::fuzz_inputs() > 100_000 { 9 } else { 6 };
    let mut losses = 0;
    for schedule in 0..EVENTS.pow(depth) {
        let mut ring = Ring::new(2);
        let mut rest = schedule;
        for _ in 0..depth {
            match rest % EVENTS {
                0 => drop(ring.step(0)),
                1 => drop(ring.step(1)),
                2 => ring.kill(0),
                _ => ring.kill(1),
            }
            rest /= EVENTS;
            ring.acknowledge();
            ring.count(0);
        }
        losses += ring.check();
    }
    assert!(losses > 0, "no kill has come before a copy was complete");
}

// INV-57
#[test]
fn servers_of_a_ring_that_are_killed_at_random_lose_nothing_without_a_word() {
    let (mut losses, mut kept) = (0, 0);
    for seed in 0..(distribute_testing::fuzz_inputs() as u64 / 10).clamp(300, 20_000) {
        let mut random = SplitMix(seed);
        let (servers, rare) = (2 + random.below(3), 4 + random.below(20));
        let mut ring = Ring::new(servers);
        for _ in 0..80 {
            let server = random.below(servers);
            match random.below(rare) {
                0 => ring.kill(server),
                1 => ring.count(server),
                _ => drop(ring.step(server)),
            }
            ring.acknowledge();
        }
        let lost = ring.check();
        (losses, kept) = (losses + lost, kept + servers - lost);
    }
    assert!(losses > 0 && kept > 0, "{losses} {kept}");
}

// INV-57
#[test]
fn a_server_that_is_killed_before_its_copy_is_complete_names_the_tables_that_it_has_lost() {
    let mut ring = Ring::new(2);
    ring.kill(1);
    // It sends the state without tables, and one table of two.
    assert!((0..4).all(|_| ring.step(0)), "{:#?}", ring.history);
    assert_eq!(ring.all[0].follower.copies(), Copies::Alone);
    ring.kill(0);
    for _ in 0..2 {
        ring.run_to_idle();
        let process = &ring.all[0];
        assert_eq!(process.follower.copies(), Copies::Two);
        for request in [create("n"), add(), Request::List] {
            let refusal =
                process.core.execute(&call(&ring.clients[0], vec![request])).0.remove(0).unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::Lost);
            assert!(refusal.text.contains("these tables: m, n"), "{refusal}");
        }
        // The same holds for a server that is killed again.
        ring.kill(0);
    }
    ring.run_to_idle();
    // A new program creates the tables again, and gets an error for those that it does not create.
    let mut new = Client::default();
    let core = &ring.all[0].core;
    let refusal = core.execute(&call(&new, vec![add()])).0.remove(0).unwrap_err();
    assert!(refusal.kind == RefusalKind::Lost && refusal.text.contains("m, n"), "{refusal}");
    new.sequence = 1;
    let made = core.execute(&call(&new, vec![create("n"), add()])).0;
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    // The same holds for each client after a job was begun.
    let core = &ring.all[0].core;
    new.sequence = 3;
    core.execute(&call(&new, vec![Request::BeginJob { job: 1 }])).0.remove(0).unwrap();
    let old = Call { client: 8, ..call(&ring.clients[0], vec![add()]) };
    assert!(core.execute(&old).0[0].is_ok());
}

#[test]
fn a_server_begins_with_the_newer_state_and_with_none_where_that_is_lost() {
    let found = |life, log| Position { life, log, ..Position::default() };
    for (own, found, seen, expected) in [
        ((0, 0), found(0, 0), 0, Start::Own),
        ((0, 0), found(3, 0), 3, Start::Fetched),
        ((3, 10), found(3, 10), 3, Start::Own),
        ((3, 10), found(3, 11), 3, Start::Fetched),
        ((4, 10), found(3, 11), 3, Start::Own),
        // There is only a partial copy of a greater life, or there was a copy.
        ((0, 0), found(0, 0), 3, Start::LostTables),
        ((2, 10), found(0, 0), 3, Start::LostTables),
        ((3, 10), found(0, 0), 3, Start::Own),
        // A complete copy has all acknowledged changes, even while a newer one was being sent.
        ((0, 0), found(3, 0), 4, Start::Fetched),
    ] {
        assert_eq!(start(own, &found, seen), expected, "{own:?} {found:?} {seen}");
    }
}
