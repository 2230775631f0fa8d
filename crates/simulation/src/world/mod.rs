//! All processes, and what happens to them, in the order of virtual time.

mod faults;

use crate::agenda::Agenda;
use crate::checks::{Certain, Checks};
use crate::context::Context;
use crate::history::History;
use crate::network::{Arrival, Conn, Network, Pid};
use crate::plan::{Plan, When};
use crate::planted::Planted;
use crate::process::{LEADER, Process};
use crate::working::Ending;
use distribute_cluster::World;
use distribute_testing::SplitMix;
use std::time::Duration;

/// So many generations there are at most: what disturbs them is over before.
const GENERATIONS: u64 = 8;

/// So many processes are started at most.
const STARTS: usize = 1_000;

/// A simulation with more events than this does not end.
const EVENTS: usize = 2_000_000;

/// What happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// A process starts.
    Start { rank: usize, generation: u64 },
    /// An attempt to connect reaches a host.
    Reach { conn: Conn, port: u16 },
    /// Something arrives at one end of a connection.
    Arrive { conn: Conn, side: usize, what: Arrival },
    /// A process has something to do, if this is its last order.
    Wake { pid: Pid, number: u64 },
    /// A fault of the plan begins.
    Fault(usize),
    /// A process goes on.
    Resume(Pid),
    /// Those that work look whether others are silent.
    Look,
    /// A process is killed, because its generation is over.
    Kill(Pid),
}

/// How a simulation has ended.
#[derive(Debug)]
pub struct Report {
    /// What must not have been, if something has.
    pub broken: Vec<String>,
    /// What has happened, where it was to be kept.
    pub history: Vec<String>,
    /// How many generations there were.
    pub generations: u64,
    /// In how many rounds all have agreed, and in how many they have not.
    pub rounds: (usize, usize),
    /// How long it has taken, in virtual time.
    pub lasted: Duration,
    /// How many events there were.
    pub events: usize,
}

/// A cluster that is simulated.
pub struct Simulation {
    plan: Plan,
    planted: Option<Planted>,
    agenda: Agenda<Event>,
    network: Network,
    processes: Vec<Process>,
    endings: Vec<(Pid, Ending)>,
    random: SplitMix,
    history: History,
    checks: Checks,
    /// The generation that is started last, and that of the last world that has been made.
    generation: u64,
    made: u64,
    looks: bool,
}

impl Simulation {
    /// Nothing has happened yet. The history is kept where somebody wants to read it.
    pub fn new(seed: u64, plan: Plan, planted: Option<Planted>, kept: bool) -> Self {
        let mut random = SplitMix(seed);
        let mut agenda = Agenda::default();
        for (rank, at) in plan.starts.iter().enumerate() {
            agenda.at(*at, Event::Start { rank, generation: 1 });
        }
        for (number, (when, _)) in plan.faults.iter().enumerate() {
            if let When::At(time) = when {
                agenda.at(*time, Event::Fault(number));
            }
        }
        Self {
            network: Network::new(random.bits(), plan.workers, plan.delay),
            checks: Checks::new(plan.script.clone(), plan.certain, plan.one_blame),
            plan,
            planted,
            agenda,
            processes: Vec::new(),
            endings: Vec::new(),
            random,
            history: History::new(kept),
            generation: 1,
            made: 0,
            looks: false,
        }
    }

    /// Lets everything happen.
    pub fn run(mut self) -> Report {
        let mut events = 0;
        while self.checks.hold() && events < EVENTS {
            let Some(event) = self.agenda.pop() else { break };
            events += 1;
            self.happen(event);
        }
        self.at_the_end(events);
        Report {
            rounds: self.checks.counts(),
            broken: self.checks.into_broken(),
            history: self.history.lines().to_vec(),
            generations: self.generation,
            lasted: self.agenda.now(),
            events,
        }
    }

    /// Everybody has come to an end.
    fn at_the_end(&mut self, events: usize) {
        if !self.checks.hold() {
            return;
        }
        if events == EVENTS {
            return self.checks.broken("it does not end".to_owned());
        }
        for (pid, process) in self.processes.iter().enumerate() {
            if process.lives() {
                self.checks.broken(format!("{} waits for ever", name(pid, process)));
            }
        }
        let done = self.endings.iter().filter(|(pid, ending)| {
            *ending == Ending::Done && self.processes[*pid].generation == self.generation
        });
        let done = done.count();
        if done != self.plan.workers {
            let text =
                format!("{done} of {} workers have done all steps in the last generation", self.plan.workers);
            self.checks.broken(text);
        }
        if self.plan.certain == Certain::All && self.generation > 1 {
            self.checks.broken("a worker has failed without a reason".to_owned());
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start { rank, generation } => self.start(rank, generation),
            Event::Reach { conn, port } => {
                let host = self.network.leads_to(conn);
                let listens =
                    |process: &Process| process.lives() && process.rank == host && process.port == port;
                let pid = self.processes.iter().rposition(listens);
                self.network.reach(&mut self.agenda, conn, pid);
            }
            Event::Arrive { conn, side, what } => {
                if let Some(pid) = self.network.receiver(conn, side, &what) {
                    let (process, mut context) = self.of(pid);
                    let ending = process.take(&mut context, conn, what);
                    let ending = ending.or_else(|| process.go_on(&mut context));
                    self.after(pid, ending);
                }
            }
            Event::Wake { pid, number } => {
                if self.processes[pid].woken == number {
                    let (process, mut context) = self.of(pid);
                    let ending = process.go_on(&mut context);
                    self.after(pid, ending);
                }
            }
            Event::Fault(number) => self.fault(number),
            Event::Resume(pid) => {
                if self.processes[pid].lives() {
                    let at_once = self.random.below(2) == 0;
                    let (process, mut context) = self.of(pid);
                    context.note(|| "goes on".to_owned());
                    let ending = process.resume(&mut context, at_once);
                    self.after(pid, ending);
                }
            }
            Event::Look => self.look(),
            Event::Kill(pid) => self.kill(pid),
        }
    }

    /// A process, and what it has of the world.
    fn of(&mut self, pid: Pid) -> (&mut Process, Context<'_>) {
        let process = &mut self.processes[pid];
        let context = Context {
            pid,
            name: name(pid, process),
            agenda: &mut self.agenda,
            network: &mut self.network,
            history: &mut self.history,
            checks: &mut self.checks,
            plan: &self.plan,
            planted: self.planted,
        };
        (process, context)
    }

    fn start(&mut self, rank: usize, generation: u64) {
        let Ok(world) = World::new(self.plan.workers, rank, 1) else { return };
        let pid = self.processes.len();
        let port = if rank == 0 { LEADER } else { LEADER + 1 + pid as u16 };
        if self
            .processes
            .iter()
            .any(|process| process.lives() && process.rank == rank && process.port == port)
        {
            // An earlier one still listens there.
            return self
                .agenda
                .at(self.agenda.now() + Duration::from_secs(1), Event::Start { rank, generation });
        }
        let mut context = Context {
            pid,
            name: format!("worker {rank} (process {pid}, generation {generation})"),
            agenda: &mut self.agenda,
            network: &mut self.network,
            history: &mut self.history,
            checks: &mut self.checks,
            plan: &self.plan,
            planted: self.planted,
        };
        context.note(|| "starts".to_owned());
        let process = Process::start(&context, world, generation, port);
        self.processes.push(process);
        let (process, mut context) = self.of(pid);
        let ending = process.go_on(&mut context);
        self.after(pid, ending);
    }

    /// What follows when a process has done something.
    fn after(&mut self, pid: Pid, ending: Option<Ending>) {
        let now = self.agenda.now();
        if let Some(ending) = ending {
            self.history.note(now, name(pid, &self.processes[pid]), || format!("ends: {ending:?}"));
            for conn in self.network.of(pid) {
                self.network.close(&mut self.agenda, pid, conn, distribute_net::ENDED);
            }
            self.processes[pid].end(None);
            if let Ending::Failed(_) = ending {
                self.replace(pid);
            }
            self.endings.push((pid, ending));
            return;
        }
        self.compare_members(pid);
        if let Some(next) = self.processes[pid].next().filter(|next| *next > now) {
            self.processes[pid].woken += 1;
            let number = self.processes[pid].woken;
            self.agenda.at(next, Event::Wake { pid, number });
        }
    }

    /// The members of a world are of one generation.
    fn compare_members(&mut self, pid: Pid) {
        let process = &self.processes[pid];
        let Some(working) = process.working().filter(|working| working.since == self.agenda.now()) else {
            return;
        };
        self.made = self.made.max(process.generation);
        let mut met = vec![false; self.plan.workers];
        for (conn, rank) in working.links() {
            let there = self.network.peer(*conn, pid).and_then(|(there, _)| Some(&self.processes[there?]));
            let right = |other: &Process| other.rank == *rank && other.generation == process.generation;
            if !there.is_some_and(right) || std::mem::replace(&mut met[*rank], true) {
                self.checks.broken(format!("{} takes {there:?} for its worker {rank}", name(pid, process)));
            }
        }
    }

    /// A process has failed. Once a world has been made, it is made anew; before, the worker comes again.
    fn replace(&mut self, pid: Pid) {
        let Process { rank, generation, .. } = self.processes[pid];
        let another = |other: &Process| other.lives() && (other.rank, other.generation) == (rank, generation);
        let done = |(other, ending): &(Pid, Ending)| {
            let other = &self.processes[*other];
            *ending == Ending::Done && (other.rank, other.generation) == (rank, generation)
        };
        let is_another = self.processes.iter().any(another) || self.endings.iter().any(done);
        if generation != self.generation || is_another {
            return;
        }
        let now = self.agenda.now();
        let soon = |random: &mut SplitMix, least: u64, most: usize| {
            now + Duration::from_millis(least + random.below(most) as u64)
        };
        if self.generation == GENERATIONS || self.processes.len() > STARTS {
            return self.checks.broken("they fail again and again".to_owned());
        }
        if self.made < generation {
            let at = soon(&mut self.random, 100, 2_000);
            return self.agenda.at(at, Event::Start { rank, generation });
        }
        self.generation += 1;
        for (other, process) in self.processes.iter().enumerate() {
            if process.lives() {
                self.agenda.at(soon(&mut self.random, 2_000, 2_000), Event::Kill(other));
            }
        }
        for rank in 0..self.plan.workers {
            let at = soon(&mut self.random, 100, 2_000);
            self.agenda.at(at, Event::Start { rank, generation: self.generation });
        }
    }
}

fn name(pid: Pid, process: &Process) -> String {
    format!("worker {} (process {pid}, generation {})", process.rank, process.generation)
}
