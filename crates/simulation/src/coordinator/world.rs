//! All processes of a coordinator's cluster, and their events in virtual time.

use super::checks::Checks;
use super::chief::Chief;
use super::plan::{Fault, Plan, ms};
use super::server::{Change, Server};
use super::worker::{Execution, Session, Worker};
use crate::agenda::Agenda;
use crate::history::History;
use crate::network::{Arrival, Carries, Conn, Network, Pid, SILENCE};
use crate::planted::Planted;
use crate::world::Report;
use distribute_coordinator::{Batch, Done, Hello, Origin};
use distribute_testing::SplitMix;
use std::fmt;
use std::time::Duration;

/// The interval at which coordinators check for timeouts and silence.
const LOOK: Duration = ms(200);

/// The time that is simulated after the last coordinator has finished, because orphaned tasks may still make changes.
const AFTER: Duration = ms(10_000);

/// The maximum number of events before the last coordinator has finished. If there are more, the simulation is
/// considered not to end.
const EVENTS: usize = 2_000_000;

/// A message between a coordinator and a worker.
#[derive(Clone, Debug)]
pub enum Words {
    Hello(Hello),
    Welcome { session: u64 },
    Refused,
    Submit(Batch),
    Collect { session: u64 },
    Collected(Vec<Done>),
    Over,
}

/// A change that is sent to a server.
#[derive(Clone, Copy, Debug)]
pub struct Push {
    pub execution: usize,
    pub server: usize,
    pub origin: Origin,
    pub number: u64,
}

/// The owner of a process id in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Chief(usize),
    Worker(usize),
    Servers,
}

/// An event in a coordinator's cluster.
#[derive(Clone, Debug)]
pub enum Event {
    Reach {
        conn: Conn,
    },
    Arrive {
        conn: Conn,
        side: usize,
        what: Arrival<Words>,
    },
    Fault(usize),
    StartWorker(usize),
    StartChief,
    /// A coordinator tries to register on a server.
    Begin {
        chief: usize,
        server: usize,
    },
    Begun {
        chief: usize,
        server: usize,
    },
    /// A coordinator begins to connect to a worker.
    Connect {
        chief: usize,
        worker: usize,
    },
    Unanswered {
        chief: usize,
        worker: usize,
        conn: Conn,
    },
    /// The program of a coordinator continues.
    Act(usize),
    /// A coordinator's thread sends a worker its work.
    Send {
        chief: usize,
        worker: usize,
    },
    Look,
    /// The executor of calls on a worker has started.
    Started {
        process: usize,
        id: u64,
        conn: Conn,
        job: u64,
    },
    /// An execution continues.
    Go(usize),
    Push(Push),
    Answer(Push, Change),
    /// A change is sent again, if its server has not responded yet.
    Again(Push),
}

impl Carries for Event {
    type Message = Words;

    fn reach(conn: Conn, _port: u16) -> Self {
        Self::Reach { conn }
    }

    fn arrive(conn: Conn, side: usize, what: Arrival<Words>) -> Self {
        Self::Arrive { conn, side, what }
    }
}

/// A simulated cluster with coordinators, workers and servers.
pub struct World {
    pub agenda: Agenda<Event>,
    pub network: Network,
    pub random: SplitMix,
    pub plan: Plan,
    pub planted: Option<Planted>,
    pub checks: Checks,
    pub chiefs: Vec<Chief>,
    pub workers: Vec<Worker>,
    pub servers: Vec<Server>,
    /// The time until which each server is unresponsive.
    pub down: Vec<Duration>,
    pub sessions: Vec<Session>,
    pub executions: Vec<Execution>,
    history: History,
    pids: Vec<Who>,
}

impl World {
    /// Creates a simulation. The history is only recorded if `kept` is `true`.
    pub fn new(seed: u64, plan: Plan, planted: Option<Planted>, kept: bool) -> Self {
        let mut random = SplitMix(seed);
        let mut agenda = Agenda::default();
        agenda.at(Duration::ZERO, Event::StartChief);
        agenda.at(Duration::ZERO, Event::Look);
        for worker in 0..plan.workers {
            agenda.at(ms(random.below(2_000) as u64), Event::StartWorker(worker));
        }
        for (number, (at, _)) in plan.faults.iter().enumerate() {
            agenda.at(*at, Event::Fault(number));
        }
        Self {
            agenda,
            network: Network::new(random.bits(), plan.hosts(), plan.delay),
            random,
            planted,
            checks: Checks::default(),
            chiefs: Vec::new(),
            workers: Vec::new(),
            servers: (0..plan.servers).map(|_| Server::default()).collect(),
            down: vec![Duration::ZERO; plan.servers],
            sessions: Vec::new(),
            executions: Vec::new(),
            history: History::new(kept),
            pids: Vec::new(),
            plan,
        }
    }

    /// Runs the simulation until some time after the last coordinator has finished its program, or until a rule is
    /// broken. A program that takes too long, or too many events, breaks a rule.
    pub fn run(mut self) -> Report {
        let mut events = 0;
        let mut ended = None;
        while self.checks.broken.is_empty() {
            let Some(event) = self.agenda.pop() else { break };
            let now = self.agenda.now();
            events += 1;
            self.happen(event);
            if ended.is_none() && self.has_ended() {
                ended = Some(now);
            }
            if ended.is_some_and(|ended| now > ended + AFTER) {
                break;
            }
            if ended.is_none() && (now > self.plan.until || events > EVENTS) {
                let last = self.chiefs.last().map_or_else(String::new, Chief::describe);
                self.checks.breaks(format!("after {:.0} s not all has ended: {last}", now.as_secs_f64()));
            }
        }
        Report {
            broken: self.checks.broken,
            history: self.history.lines().to_vec(),
            generations: self.chiefs.len() as u64,
            rounds: (self.checks.well, self.checks.otherwise),
            lasted: ended.unwrap_or(self.agenda.now()),
            events,
        }
    }

    fn has_ended(&self) -> bool {
        let starts =
            self.plan.faults.iter().filter(|(_, fault)| matches!(fault, Fault::Restart(_) | Fault::Twin));
        self.chiefs.len() > starts.count() && self.chiefs.last().is_some_and(|chief| chief.has_finished)
    }

    fn happen(&mut self, event: Event) {
        if let Some(process) = self.process_of(&event) {
            let worker = &self.workers[process];
            if worker.gone.is_some() {
                return;
            }
            if let Some((_, until)) = worker.stopped
                && until > self.agenda.now()
            {
                return self.agenda.at(until, event);
            }
        }
        match event {
            Event::Reach { conn } => {
                let host = self.network.leads_to(conn);
                let pid = self.present(host).map(|process| self.workers[process].pid);
                self.network.reach(&mut self.agenda, conn, pid);
            }
            Event::Arrive { conn, side, what } => {
                let old = self.has(Planted::LostHeard) && side == 0;
                let Some(pid) = self.network.receiver(conn, side, &what) else {
                    if old {
                        self.late_words(conn, what);
                    }
                    return;
                };
                match (self.pids[pid], what) {
                    (Who::Chief(chief), what) => self.chief_hears(chief, conn, what),
                    (Who::Worker(process), Arrival::Message(words)) => {
                        self.worker_hears(process, conn, words)
                    }
                    _ => {}
                }
            }
            Event::Fault(number) => self.fault(number),
            Event::StartWorker(number) => self.start_worker(number),
            Event::StartChief => self.start_chief(),
            Event::Begin { chief, server } => self.begin_job(chief, server),
            Event::Begun { chief, server } => self.job_begun(chief, server),
            Event::Connect { chief, worker } => self.connect(chief, worker),
            Event::Unanswered { chief, worker, conn } => self.unanswered(chief, worker, conn),
            Event::Act(chief) => self.stir(chief),
            Event::Send { chief, worker } => self.send(chief, worker),
            Event::Look => {
                (0..self.chiefs.len()).for_each(|chief| self.look(chief));
                let next = self.agenda.now() + LOOK;
                self.agenda.at(next, Event::Look);
            }
            Event::Started { process, id, conn, job } => self.started(process, id, conn, job),
            Event::Go(execution) => self.go(execution),
            Event::Push(push) => self.pushed(push),
            Event::Answer(push, change) => self.answered(push, change),
            Event::Again(push) => self.push_again(push),
        }
    }

    /// Returns the process of a worker that handles an event, or `None` if no process of a worker does.
    fn process_of(&self, event: &Event) -> Option<usize> {
        match event {
            Event::Started { process, .. } => Some(*process),
            Event::Go(execution) => Some(self.process(*execution)),
            Event::Answer(push, _) | Event::Again(push) => Some(self.process(push.execution)),
            Event::Arrive { conn, side: 1, .. } => match self.pids[self.network.end(*conn, 1)?] {
                Who::Worker(process) => Some(process),
                _ => None,
            },
            _ => None,
        }
    }

    fn fault(&mut self, number: usize) {
        let now = self.agenda.now();
        let fault = self.plan.faults[number].1.clone();
        self.note(Who::Servers, || format!("{fault:?}"));
        match fault {
            Fault::Kill(worker) => self.kill(worker, false),
            Fault::Vanish(worker) => self.kill(worker, true),
            Fault::Pause(worker, lasts) => {
                if let Some(process) = self.present(worker) {
                    let worker = &mut self.workers[process];
                    let (since, until) =
                        worker.stopped.filter(|(_, until)| *until > now).unwrap_or((now, now));
                    worker.stopped = Some((since, until.max(now + lasts)));
                }
            }
            Fault::Break(worker) => {
                let Some(process) = self.present(worker) else { return };
                for conn in self.network.of(self.workers[process].pid) {
                    self.network.cut_off(&mut self.agenda, conn);
                }
            }
            Fault::Cut { sides, one_way, lasts } => {
                for (from, of) in sides.iter().enumerate() {
                    for (to, on) in sides.iter().enumerate() {
                        if of != on && (*of || !one_way) {
                            self.network.cut(now, from, to, now + lasts);
                        }
                    }
                }
            }
            Fault::Down(server, lasts) => self.down[server] = now + lasts,
            Fault::Restart(away) => {
                if let Some(chief) = self.chiefs.len().checked_sub(1) {
                    self.kill_chief(chief);
                }
                self.agenda.at(now + away, Event::StartChief);
            }
            Fault::Twin => self.agenda.at(now, Event::StartChief),
        }
    }

    /// Kills the process of a worker, if it has one. If `silently` is `true`, the connections are not closed, as if the
    /// machine had failed. Another process replaces the killed one after some time.
    pub fn kill(&mut self, number: usize, silently: bool) {
        let Some(process) = self.present(number) else { return };
        let now = self.agenda.now();
        self.note(Who::Worker(process), || "is gone".to_owned());
        self.workers[process].gone = Some(now);
        let pid = self.workers[process].pid;
        for conn in self.network.of(pid) {
            if silently {
                self.network.forget(pid, conn);
            } else {
                self.network.close(&mut self.agenda, pid, conn, "it was killed");
            }
        }
        let away = ms(self.random.of(&[1, 1_000, 5_000]));
        self.agenda.at(now + away, Event::StartWorker(number));
    }

    /// Returns `true` if a fault has lasted for so long that the coordinator considers the worker at the other end of
    /// this connection silent. The worker's process may have ended or be stopped, or the network between the two may be
    /// interrupted.
    pub fn is_silent(&self, chief: usize, worker: usize, conn: Conn) -> bool {
        let now = self.agenda.now();
        let host = self.chiefs[chief].host;
        let cut =
            [(host, worker), (worker, host)].into_iter().filter_map(|(a, b)| self.network.is_cut(now, a, b));
        let cut = cut.map(|(since, _)| since);
        let process = self.network.end(conn, 1).map(|pid| self.pids[pid]);
        let process = match process {
            Some(Who::Worker(process)) => &self.workers[process],
            _ => return cut.min().is_some_and(|since| now >= since + SILENCE),
        };
        let stopped = process.stopped.filter(|(_, until)| *until > now).map(|(since, _)| since);
        let since = cut.chain(process.gone).chain(stopped).min();
        since.is_some_and(|since| now >= since + SILENCE)
    }

    /// Returns the arrival time of a message that is sent now, or `None` if it is lost because the network is
    /// interrupted.
    pub fn way(&mut self, from: usize, to: usize) -> Option<Duration> {
        let now = self.agenda.now();
        let cut = self.network.is_cut(now, from, to).is_some();
        let at = self.network.arrival(now, from, to);
        (!cut).then_some(at)
    }

    pub fn server_host(&self, server: usize) -> usize {
        self.plan.workers + server
    }

    /// Registers a new process in the network, and returns its id.
    pub fn pid(&mut self, who: Who) -> Pid {
        self.pids.push(who);
        self.pids.len() - 1
    }

    /// Returns `true` if the bug `planted` is planted in this simulation.
    pub fn has(&self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }

    pub fn note(&mut self, who: Who, what: impl FnOnce() -> String) {
        self.history.note(self.agenda.now(), who, what);
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chief(chief) => write!(f, "coordinator {chief}"),
            Self::Worker(process) => write!(f, "worker process {process}"),
            Self::Servers => write!(f, "cluster"),
        }
    }
}
