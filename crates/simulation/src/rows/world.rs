//! All workers and servers, their connections, and their events in virtual time.

use super::oracle::version;
use super::plan::{Act, Fault, Plan};
use super::worker::Worker;
use crate::agenda::Agenda;
use crate::history::History;
use crate::planted::Planted;
use crate::world::Report;
use distribute_testing::SplitMix;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The maximum number of events. If there are more, the simulation is considered not to end.
const EVENTS: usize = 500_000;

/// A request of a worker to a server.
#[derive(Clone, Debug)]
pub enum Request {
    Read(Purpose, Vec<i64>),
    Change(Vec<i64>),
}

/// The purpose of a request for rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    LookUp,
    /// The next run, which begins after the change with this number.
    Prefetch(u64),
    /// The copies that all workers have of hot rows.
    Hot,
}

#[derive(Clone, Debug)]
enum Event {
    /// A worker continues.
    Go {
        worker: usize,
        job: u64,
    },
    /// A worker has reached a round, and sends its report about hot rows.
    Round {
        from: usize,
        to: usize,
        round: u64,
        report: Vec<u8>,
        job: u64,
    },
    /// A request arrives over the connection with this number.
    Asked {
        worker: usize,
        server: usize,
        connection: u64,
        number: u64,
        request: Request,
    },
    /// A response arrives over the connection with this number. The response to a read contains each row's id and its
    /// number of changes.
    Answered {
        worker: usize,
        server: usize,
        connection: u64,
        number: u64,
        rows: Vec<(i64, u64)>,
    },
    Connected {
        worker: usize,
        server: usize,
        connection: u64,
    },
    Fault(usize),
}

/// The connection of a worker to a server.
#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    number: u64,
    is_broken: bool,
    /// The arrival times of the last message to the server and of the last to the worker.
    last: [Duration; 2],
}

/// A server: the number of changes of each row, and the requests for changes that it has made.
#[derive(Debug, Default)]
struct Server {
    rows: BTreeMap<i64, u64>,
    /// The changes that were made, by job, worker and number of the request.
    made: BTreeSet<(u64, usize, u64)>,
}

/// The results of a simulation.
#[derive(Debug, Default)]
pub struct Checks {
    pub broken: Vec<String>,
    /// The number of rows that were cached or prefetched when they were looked up.
    pub early: usize,
    /// The number of faults that had an effect.
    pub disturbed: usize,
}

/// A simulated cluster.
pub struct World {
    agenda: Agenda<Event>,
    random: SplitMix,
    pub plan: Plan,
    pub planted: Option<Planted>,
    pub checks: Checks,
    pub workers: Vec<Worker>,
    servers: Vec<Server>,
    /// The connections, by worker and server.
    connections: Vec<Vec<Connection>>,
    /// The arrival time of the last message between two workers, by sender and receiver.
    rounds: BTreeMap<(usize, usize), Duration>,
    /// The number of times that all workers have been started.
    job: u64,
    history: History,
}

impl World {
    /// Creates a simulation. The history is only recorded if `kept` is `true`.
    pub fn new(seed: u64, plan: Plan, planted: Option<Planted>, kept: bool) -> Self {
        let mut agenda = Agenda::default();
        for (number, (at, _)) in plan.faults.iter().enumerate() {
            agenda.at(*at, Event::Fault(number));
        }
        let mut world = Self {
            agenda,
            random: SplitMix(seed),
            planted,
            checks: Checks::default(),
            workers: Vec::new(),
            servers: (0..plan.servers).map(|_| Server::default()).collect(),
            connections: vec![vec![Connection::default(); plan.servers]; plan.workers],
            rounds: BTreeMap::new(),
            job: 0,
            history: History::new(kept),
            plan,
        };
        world.start(0);
        world
    }

    /// Runs the simulation until all workers have finished their program, or until a rule is broken.
    pub fn run(mut self) -> Report {
        let mut events = 0;
        while self.checks.broken.is_empty() && !self.has_ended() {
            let Some(event) = self.agenda.pop().filter(|_| events < EVENTS) else {
                let at: Vec<_> = self.workers.iter().map(|worker| (worker.at, worker.stage)).collect();
                self.checks.broken.push(format!("after {events} events not all have ended: {at:?}"));
                break;
            };
            events += 1;
            self.happen(event);
        }
        Report {
            broken: self.checks.broken,
            history: self.history.lines().to_vec(),
            generations: self.job,
            rounds: (self.checks.early, self.checks.disturbed),
            lasted: self.agenda.now(),
            events,
        }
    }

    fn has_ended(&self) -> bool {
        self.workers.iter().all(|worker| worker.at == self.plan.acts.len())
    }

    fn happen(&mut self, event: Event) {
        let now = self.agenda.now();
        self.history.note(now, "cluster", || format!("{event:?}"));
        match event {
            Event::Go { worker, job } if job == self.job => self.go(worker),
            Event::Round { from, to, round, report, job } if job == self.job => {
                self.workers[to].hear(from, round, report);
                self.go(to);
            }
            Event::Go { .. } | Event::Round { .. } => {}
            Event::Asked { worker, server, connection, number, request } => {
                if self.connections[worker][server].number == connection {
                    let rows = self.serve(worker, server, number, &request);
                    let at = self.arrival(worker, server, 1);
                    self.agenda.at(at, Event::Answered { worker, server, connection, number, rows });
                }
            }
            Event::Answered { worker, server, connection, number, rows } => {
                if self.connections[worker][server].number != connection {
                    return;
                }
                match self.workers[worker].unanswered.remove(&(server, number)) {
                    Some(Request::Read(purpose, _)) => self.rows_arrive(worker, purpose, &rows),
                    Some(Request::Change(_)) => self.go(worker),
                    None => {}
                }
            }
            Event::Connected { worker, server, connection } => self.connected(worker, server, connection),
            Event::Fault(number) => self.fault(number),
        }
    }

    /// Executes a request. A change that is repeated is made once.
    // INV-52
    fn serve(&mut self, worker: usize, server: usize, number: u64, request: &Request) -> Vec<(i64, u64)> {
        let Server { rows, made } = &mut self.servers[server];
        match request {
            Request::Read(_, ids) => ids.iter().map(|id| (*id, rows.get(id).copied().unwrap_or(0))).collect(),
            Request::Change(ids) => {
                if made.insert((self.job, worker, number)) {
                    ids.iter().for_each(|id| *rows.entry(*id).or_default() += 1);
                }
                Vec::new()
            }
        }
    }

    fn fault(&mut self, number: usize) {
        match self.plan.faults[number].1 {
            Fault::Break { worker, server } => self.break_connection(worker, server),
            Fault::Kill { runs } => {
                self.checks.disturbed += 1;
                let least = self.workers.iter().map(|worker| worker.at).min().unwrap_or(0);
                let acts = self.plan.acts[..least].iter().enumerate();
                let begins = acts.filter(|(_, act)| matches!(act, Act::Begin)).map(|(at, _)| at);
                self.start(begins.rev().nth(runs).unwrap_or(0));
            }
        }
    }

    /// Starts all workers at the act `at`, with the rows of a checkpoint that was made before it.
    fn start(&mut self, at: usize) {
        self.job += 1;
        let changes = self.plan.acts[..at].iter().filter(|act| act.changes().is_some()).count();
        let ids = self.plan.acts.iter().filter_map(Act::changes).flatten();
        let ids: BTreeSet<i64> = ids.copied().collect();
        self.servers.iter_mut().for_each(|server| server.rows.clear());
        for id in ids {
            let server = self.plan.server_of(id);
            self.servers[server].rows.insert(id, version(&self.plan.acts, id, changes));
        }
        self.workers = (0..self.plan.workers).map(|_| Worker::new(&self.plan, at)).collect();
        for connection in self.connections.iter_mut().flatten() {
            (connection.number, connection.is_broken) = (connection.number + 1, false);
        }
        (0..self.plan.workers).for_each(|worker| self.go_later(worker));
    }

    /// Breaks a connection, which is re-established after some time. Reads of prefetched and hot rows without a
    /// response may be given up.
    fn break_connection(&mut self, worker: usize, server: usize) {
        let connection = &mut self.connections[worker][server];
        (connection.number, connection.is_broken) = (connection.number + 1, true);
        let number = connection.number;
        let of_server = self.workers[worker].unanswered.range((server, 0)..(server + 1, 0));
        let early = |request: &Request| match request {
            Request::Read(purpose @ (Purpose::Prefetch(_) | Purpose::Hot), _) => Some(*purpose),
            _ => None,
        };
        let reads: Vec<_> = of_server.filter_map(|(key, request)| Some((*key, early(request)?))).collect();
        self.checks.disturbed += 1;
        let at = self.agenda.now() + self.plan.delay * self.random.below(4) as u32;
        self.agenda.at(at, Event::Connected { worker, server, connection: number });
        for (key, purpose) in reads {
            if self.random.below(2) == 0 {
                self.workers[worker].unanswered.remove(&key);
                match purpose {
                    Purpose::Prefetch(change) => self.prefetch_fails(worker, change),
                    _ => self.hot_rows_fail(worker),
                }
            }
        }
    }

    /// Handles a re-established connection: sends the requests without a response again, in their order.
    fn connected(&mut self, worker: usize, server: usize, connection: u64) {
        let of = &mut self.connections[worker][server];
        if of.number != connection {
            return;
        }
        of.is_broken = false;
        let of_server = self.workers[worker].unanswered.range((server, 0)..(server + 1, 0));
        let requests: Vec<_> = of_server.map(|((_, number), request)| (*number, request.clone())).collect();
        requests.into_iter().for_each(|(number, request)| self.send(worker, server, number, request));
    }

    /// Requests rows from each server that stores some of them.
    pub fn request_each(&mut self, worker: usize, ids: &[i64], purpose: Purpose) {
        for server in 0..self.plan.servers {
            let of_server: Vec<i64> =
                ids.iter().copied().filter(|id| self.plan.server_of(*id) == server).collect();
            if !of_server.is_empty() {
                self.request(worker, server, Request::Read(purpose, of_server));
            }
        }
    }

    /// Sends a request to a server. If the connection is broken, the request is sent when it has been re-established.
    pub fn request(&mut self, worker: usize, server: usize, request: Request) {
        let number = self.workers[worker].add_request(server, request.clone());
        if !self.connections[worker][server].is_broken {
            self.send(worker, server, number, request);
        }
    }

    fn send(&mut self, worker: usize, server: usize, number: u64, request: Request) {
        let (at, connection) = (self.arrival(worker, server, 0), self.connections[worker][server].number);
        self.agenda.at(at, Event::Asked { worker, server, connection, number, request });
    }

    /// Returns the arrival time of a message that is sent now to the server (`to` is 0) or to the worker (`to` is 1).
    fn arrival(&mut self, worker: usize, server: usize, to: usize) -> Duration {
        let at = self.agenda.now() + self.some_delay();
        let last = &mut self.connections[worker][server].last[to];
        *last = at.max(*last);
        *last
    }

    pub fn send_round(&mut self, from: usize, round: u64, report: &[u8]) {
        for to in (0..self.plan.workers).filter(|to| *to != from) {
            let at = self.agenda.now() + self.some_delay();
            let last = self.rounds.entry((from, to)).or_default();
            *last = at.max(*last);
            let report = report.to_vec();
            self.agenda.at(*last, Event::Round { from, to, round, report, job: self.job });
        }
    }

    /// Continues a worker after it has computed for some time.
    pub fn go_later(&mut self, worker: usize) {
        let at = self.agenda.now() + self.some_delay();
        self.agenda.at(at, Event::Go { worker, job: self.job });
    }

    fn some_delay(&mut self) -> Duration {
        self.plan.delay.mul_f64(self.random.below(1000) as f64 / 1000.)
    }
}
