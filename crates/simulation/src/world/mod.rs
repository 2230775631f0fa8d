//! All processes, and their events in virtual time.

mod faults;

use crate::agenda::Agenda;
use crate::checks::{Certain, Checks};
use crate::context::{Context, Name, Surroundings};
use crate::course::Weights;
use crate::event::Event;
use crate::history::History;
use crate::network::{Conn, Network, Pid};
use crate::plan::{Plan, When};
use crate::planted::Planted;
use crate::process::{LEADER, Process};
use crate::program::Program;
use crate::working::{Ending, Working};
use distribute_cluster::World;
use distribute_net::Claim;
use distribute_testing::SplitMix;
use std::collections::BTreeMap;
use std::time::Duration;

/// The maximum number of generations. If there are more, the workers are considered to restart forever.
const GENERATIONS: u64 = 40;

/// The maximum number of started processes. If there are more, they are considered to restart forever.
const STARTS: usize = 1_000;

/// The maximum number of events. If there are more, the simulation is considered not to end.
const EVENTS: usize = 2_000_000;

/// The result of a simulation.
#[derive(Debug)]
pub struct Report {
    /// The rules that were broken.
    pub broken: Vec<String>,
    /// The lines of the history, if it was recorded.
    pub history: Vec<String>,
    /// The highest generation of a world; with a coordinator, the number of coordinators.
    pub generations: u64,
    /// The number of rounds in which all workers agreed, and the number of those in which they did not. For a training
    /// run, these are the number of updates, added up over all workers, and the number of failed calls after which a
    /// worker took part in another rendezvous. With a coordinator, they are the numbers of closures that succeeded and
    /// failed. With tables, they are the numbers of rows that were cached or prefetched, and of faults.
    pub rounds: (usize, usize),
    /// The virtual time at which the last process ended, or the last coordinator finished its program.
    pub lasted: Duration,
    /// The number of events.
    pub events: usize,
}

/// A simulated cluster.
pub struct Simulation {
    processes: Vec<Process>,
    surroundings: Surroundings,
    random: SplitMix,
    endings: Vec<(Pid, Ending)>,
    /// The virtual time at which the last process ended.
    ended: Duration,
    /// Whether each fault has occurred.
    happened: Vec<bool>,
    /// Whether a start of a process is scheduled, for each worker.
    starting: Vec<bool>,
    /// The highest generation of any world so far; 0 if there was none.
    made: u64,
    /// The time at which each process began its last step of a training run.
    steps: BTreeMap<Pid, Duration>,
    looks: bool,
}

impl Simulation {
    /// Creates a simulation. The history is only recorded if `kept` is `true`.
    pub fn new(seed: u64, plan: Plan, planted: Option<Planted>, kept: bool) -> Self {
        let mut random = SplitMix(seed);
        let mut agenda = Agenda::default();
        for (rank, at) in plan.starts.iter().enumerate() {
            agenda.at(*at, Event::Start { rank, claim: Claim::default(), mistaken: false });
        }
        for (number, (when, _)) in plan.faults.iter().enumerate() {
            if let When::At(time) = when {
                agenda.at(*time, Event::Fault(number));
            }
        }
        let surroundings = Surroundings {
            network: Network::new(random.bits(), plan.workers, plan.delay),
            checks: Checks::new(plan.script.clone(), plan.certain, plan.one_blame),
            agenda,
            history: History::new(kept),
            planted,
            plan,
        };
        Self {
            starting: vec![true; surroundings.plan.workers],
            happened: vec![false; surroundings.plan.faults.len()],
            surroundings,
            processes: Vec::new(),
            endings: Vec::new(),
            ended: Duration::ZERO,
            random,
            made: 0,
            steps: BTreeMap::new(),
            looks: false,
        }
    }

    /// Runs the simulation until there are no more events, a rule is broken, or there are too many events. Then checks
    /// the rules for the end of the simulation.
    pub fn run(mut self) -> Report {
        let mut events = 0;
        while self.surroundings.checks.hold() && events < EVENTS {
            let Some(event) = self.surroundings.agenda.pop() else { break };
            events += 1;
            self.happen(event);
        }
        self.at_the_end(events);
        let Surroundings { checks, history, .. } = self.surroundings;
        Report {
            rounds: checks.counts(),
            broken: checks.into_broken(),
            history: history.lines().to_vec(),
            generations: self.made,
            lasted: self.ended,
            events,
        }
    }

    fn broken(&mut self, what: String) {
        self.surroundings.checks.broken(what);
    }

    fn now(&self) -> Duration {
        self.surroundings.agenda.now()
    }

    /// Checks the rules for the end of the simulation, unless a rule is already broken:
    /// - There were not too many events, and all processes have ended.
    /// - In one world, all workers have finished their program.
    /// - Each completed training run has the same final state as one without interruptions.
    /// - There was only one world, if only the script disturbed the calls.
    fn at_the_end(&mut self, events: usize) {
        if !self.surroundings.checks.hold() {
            return;
        }
        if events == EVENTS {
            return self.broken("it does not end".to_owned());
        }
        for at in 0..self.processes.len() {
            if self.processes[at].lives() {
                self.broken(format!("{} waits for ever", self.processes[at].name));
            }
        }
        let plan = &self.surroundings.plan;
        // INV-42
        let trained = plan.course.as_ref().map(|course| {
            let whole = Weights::after(&plan.script, course.steps * course.updates());
            self.surroundings.checks.states().iter().filter(|state| **state != whole).count()
        });
        let again = plan.certain == Certain::All && self.made > 1;
        if !self.is_over() {
            let ends = format!("{:?}", self.endings);
            self.broken(format!("there is no world in which all workers have done all steps: {ends}"));
        }
        if trained.is_some_and(|others| others > 0) {
            self.broken("not all have the state of a training without interruption".to_owned());
        }
        if again {
            self.broken("the world was made again without a reason".to_owned());
        }
    }

    /// Returns `true` if there is a world whose workers have all finished their program.
    fn is_over(&self) -> bool {
        let done = self.endings.iter().filter(|(_, ending)| *ending == Ending::Done);
        let done: Vec<_> = done.map(|(pid, _)| &self.processes[*pid]).collect();
        let is_done = |of: &Process, place: usize| {
            done.iter().any(|other| {
                (other.name.rank, other.generation, &other.places) == (place, of.generation, &of.places)
            })
        };
        done.iter().any(|of| of.places.iter().all(|place| is_done(of, *place)))
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start { rank, claim, mistaken } => self.start(rank, claim, mistaken),
            Event::Reach { conn, port } => {
                let host = self.surroundings.network.leads_to(conn);
                let listens =
                    |process: &Process| process.lives() && process.name.rank == host && process.port == port;
                let pid = self.processes.iter().rposition(listens);
                self.surroundings.network.reach(&mut self.surroundings.agenda, conn, pid);
            }
            Event::Arrive { conn, side, what } => {
                if let Some(pid) = self.surroundings.network.receiver(conn, side, &what) {
                    self.act(pid, |process, context| {
                        process.take(context, conn, what).or_else(|| process.go_on(context))
                    });
                }
            }
            Event::Wake { pid, number } => {
                if self.processes[pid].woken == number {
                    self.act(pid, Process::go_on);
                }
            }
            Event::Fault(number) => self.fault(number),
            Event::Resume(pid) => {
                if self.processes[pid].lives() {
                    let at_once = self.random.below(2) == 0;
                    self.act(pid, |process, context| {
                        context.note(|| "goes on".to_owned());
                        process.resume(context, at_once)
                    });
                }
            }
            Event::Look => self.look(),
        }
    }

    /// Calls `act` with a process and its context, and handles the consequences.
    fn act(&mut self, pid: Pid, act: impl FnOnce(&mut Process, &mut Context<'_>) -> Option<Ending>) {
        let process = &mut self.processes[pid];
        let ending = act(process, &mut self.surroundings.of(process.name));
        self.after(pid, ending);
    }

    fn start(&mut self, rank: usize, claim: Claim, mistaken: bool) {
        let Ok(world) = World::new(self.surroundings.plan.workers, rank, 1) else { return };
        let pid = self.processes.len();
        let port = if rank == 0 { LEADER } else { LEADER + 1 + pid as u16 };
        let listens =
            |process: &Process| process.lives() && process.name.rank == rank && process.port == port;
        if self.processes.iter().any(listens) {
            // An earlier process still listens there.
            let later = self.now() + Duration::from_secs(1);
            return self.surroundings.agenda.at(later, Event::Start { rank, claim, mistaken });
        }
        self.starting[rank] &= mistaken;
        if self.processes.len() > STARTS {
            return self.broken("they fail again and again".to_owned());
        }
        let name = Name { pid, rank };
        let mut context = self.surroundings.of(name);
        context.note(|| "starts".to_owned());
        let program = match context.plan.course {
            Some(_) => Program::Training(Default::default()),
            None => Program::Scripted(Default::default()),
        };
        let mut process = Process::start(&context, world, name, port, claim, program);
        process.mistaken = mistaken;
        self.processes.push(process);
        self.act(pid, Process::go_on);
    }

    /// Checks the rules after an action of a process. If the process has ended, closes its connections and records its
    /// `ending`; otherwise schedules its next action. Starts replacements for missing processes if this process or the
    /// others still need them.
    fn after(&mut self, pid: Pid, ending: Option<Ending>) {
        let now = self.now();
        self.compare_states();
        self.compare_steps();
        if let Some(ending) = ending {
            let (name, farewell) = (self.processes[pid].name, self.processes[pid].farewell());
            let mut context = self.surroundings.of(name);
            context.note(|| format!("ends: {ending:?}"));
            context.close_all(farewell);
            self.processes[pid].end(None);
            let another = |other: &Process| other.lives() && other.name.rank == name.rank;
            let supplanted = !self.is_needed(pid) || self.processes.iter().any(another);
            if let Ending::Failed(why) = &ending
                && self.surroundings.plan.certain == Certain::NobodyLate
                && !supplanted
                && !(self.surroundings.plan.elastic.is_some() && self.is_over())
            {
                self.broken(format!("{name} has failed, and none of its own: {why}"));
            }
            let waits = |other: &Process| other.lives() && self.is_needed(other.name.pid);
            if !matches!(ending, Ending::Done | Ending::Unused)
                && (!supplanted || self.processes.iter().any(waits))
            {
                self.replace();
            }
            self.ended = now;
            return self.endings.push((pid, ending));
        }
        self.compare_members(pid);
        let process = &self.processes[pid];
        if process.lives() && process.working().is_none() && self.made > 0 && self.is_needed(pid) {
            self.replace();
        }
        if let Some(next) = self.processes[pid].next().filter(|next| *next > now) {
            self.processes[pid].woken += 1;
            let number = self.processes[pid].woken;
            self.surroundings.agenda.at(next, Event::Wake { pid, number });
        }
    }

    /// Checks the world of a process that has just joined it, and records the highest generation. Does nothing for
    /// other processes. The rules:
    /// - The number of members is within the limits of the plan.
    /// - If a spare takes the place of a worker, that worker is not in the next world (only in plans without faults).
    /// - No other process of the same worker is working in the same generation.
    /// - In plans with [`Certain::NobodyLate`], the world contains the live workers that were waiting for it
    ///   ([`Process::owed`]), unless it is full.
    /// - The process has only one link to each worker.
    /// - If the process at the other end of a link still has this link and knows its world, it is the right worker of
    ///   the same world.
    fn compare_members(&mut self, pid: Pid) {
        let process = &self.processes[pid];
        let Some(working) = process.working().filter(|working| working.since == self.now()) else { return };
        self.made = self.made.max(process.generation);
        if self.made > GENERATIONS {
            return self.broken("they meet again and again".to_owned());
        }
        let mut met = vec![false; self.surroundings.plan.workers];
        let mut wrong = Vec::new();
        // INV-43
        let least =
            self.surroundings.plan.elastic.map_or(self.surroundings.plan.workers, |elastic| elastic.least);
        if working.places().len() < least {
            wrong.push(format!(
                "{} is in a world of {:?}, fewer than {least}",
                process.name,
                working.places()
            ));
        }
        // INV-113
        let checks = &self.surroundings.checks;
        let is_replaced = |place: &&usize| checks.is_replaced_in(process.generation, **place);
        if let Some(place) = working.places().iter().find(is_replaced) {
            wrong.push(format!("{} is in a world with worker {place}, which was replaced", process.name));
        }
        // INV-100
        let most = self.surroundings.plan.most();
        if working.places().len() > most {
            wrong.push(format!("{} is in a world of {:?}, more than {most}", process.name, working.places()));
        }
        // If all have failed and restart, they begin with generation 1 again.
        let same = |other: &&Process| {
            other.name.rank == process.name.rank
                && other.name.pid != pid
                && other.generation == process.generation
        };
        let mut others = self.processes.iter().filter(same);
        if let Some(other) = others.find(|other| other.working().is_some()) {
            let (rank, generation) = (process.name.rank, process.generation);
            wrong.push(format!(
                "{} and {} are worker {rank} of generation {generation}",
                process.name, other.name
            ));
        }
        // A worker that was in a later world has the state that counts.
        if let (Some((places, left)), Certain::NobodyLate) = (&process.owed, self.surroundings.plan.certain) {
            let lives = |place: &usize| {
                let is =
                    |other: &Process| other.lives() && other.name.rank == *place && other.started < *left;
                self.processes.iter().any(is)
            };
            let without = places.iter().find(|place| !working.places().contains(place) && lives(place));
            // In a full world there is no place for those that have just started.
            if let Some(place) = without.filter(|_| working.places().len() < most) {
                wrong.push(format!("{} has met without worker {place}, which waited", process.name));
            }
        }
        for (conn, rank) in working.links() {
            if std::mem::replace(&mut met[*rank], true) {
                wrong.push(format!("{} has two links to worker {rank}", process.name));
            }
            let there = self.surroundings.network.peer(*conn, pid);
            let there = there.and_then(|(there, _)| Some(&self.processes[there?]));
            // INV-43
            if let Some(other) = there.and_then(Process::working)
                && other.links().contains_key(conn)
                && (other.generation, other.places()) != (working.generation, working.places())
                && other.generation == working.generation
            {
                let (mine, theirs) = (working.places(), other.places());
                wrong.push(format!(
                    "{} is in a world of {mine:?}, and its worker {rank} of {theirs:?}",
                    process.name
                ));
            }
            // INV-34. A worker that has closed the connection belongs to another world by now. A worker that
            // has not received its world yet may still join this one.
            let other = there.and_then(|there| Some((there, there.links()?)));
            if let Some((there, (links, generation, _))) = other
                && links.contains_key(conn)
                && let Some(generation) = generation
                && (Some(&there.name.rank), generation) != (working.places().get(*rank), process.generation)
            {
                let (here, mine) = (process.name, process.generation);
                wrong.push(format!(
                    "{here} of generation {mine} takes {} of generation {generation} for its worker {rank}",
                    there.name
                ));
            }
        }
        wrong.into_iter().for_each(|wrong| self.broken(wrong));
    }

    /// Checks that workers resume from the most advanced complete state of their world, and that they restart only if
    /// no worker has a complete state. Only states of workers that took part in the latest agreement count.
    fn compare_states(&mut self) {
        for (pid, generation, updates) in self.surroundings.checks.take_met() {
            let members = self
                .processes
                .iter()
                .filter(|other| other.working().is_some_and(|working| working.generation == generation));
            // A leader that has just started may begin another world of this generation before others have
            // noticed.
            let linked = |other: &&Process| {
                let links = self.processes[pid].working().map(Working::links);
                let here = |conn: &Conn| self.surroundings.network.peer(*conn, pid);
                let there = |conn: &Conn| here(conn).is_some_and(|(there, _)| there == Some(other.name.pid));
                other.name.pid == pid || links.is_some_and(|links| links.keys().any(there))
            };
            let is_fixed = self.surroundings.plan.elastic.is_none();
            let members = members.filter(|other| is_fixed || linked(other));
            let members: Vec<_> = members.filter_map(|other| other.training()).collect();
            let agreed = members.iter().map(|training| training.told()).max();
            let whole =
                members.iter().filter(|training| training.is_whole() && Some(training.told()) == agreed);
            let furthest = whole.map(|training| training.weights().made).max();
            let name = self.processes[pid].name;
            match (updates, furthest) {
                (Some(updates), Some(furthest)) if furthest > updates => {
                    self.broken(format!(
                        "{name} goes on after update {updates}, and another has made {furthest}"
                    ));
                }
                (None, Some(_)) => self.broken(format!("{name} takes nobody's state to be whole")),
                _ => {}
            }
        }
    }

    /// Checks that the leader does not begin a step if a worker has been waiting to join since before the leader's
    /// previous step.
    fn compare_steps(&mut self) {
        for pid in self.surroundings.checks.take_begun() {
            let (now, name) = (self.now(), self.processes[pid].name);
            let (0, Some(before)) = (name.rank, self.steps.insert(pid, now)) else { continue };
            let Some(working) = self.processes[pid].working() else { continue };
            // A worker that has come since then may not have been reported to the others.
            if let Some((place, _)) = working.waits().iter().find(|(_, since)| **since < before) {
                self.broken(format!(
                    "{name} begins a step, and worker {place} waits since before the last one"
                ));
            }
        }
    }

    /// Returns `true` if the others need a process. A process that was started by mistake and has not joined a world is
    /// not needed, and neither is one whose place another process of its worker has taken.
    fn is_needed(&self, pid: Pid) -> bool {
        let process = &self.processes[pid];
        let done = |other: &Process| self.endings.contains(&(other.name.pid, Ending::Done));
        let has_its_place = |other: &Process| {
            let later = other.name.pid > pid;
            let has = other.working().is_some()
                || later && other.generation > 0 && other.lives()
                || (later || other.mistaken) && done(other);
            has && other.name.pid != pid && other.name.rank == process.name.rank
        };
        (!process.mistaken || process.generation > 0) && !self.processes.iter().any(has_its_place)
    }

    /// Schedules the start of a process for each worker that has none, unless a start is already scheduled. In worlds
    /// that grow and shrink, does nothing if all workers of a world have finished their program.
    fn replace(&mut self) {
        let away = match self.surroundings.plan.elastic {
            Some(_) if self.is_over() => return,
            Some(elastic) => elastic.away,
            None => Duration::from_secs(2),
        };
        for rank in 0..self.surroundings.plan.workers {
            let lives = |process: &Process| process.lives() && process.name.rank == rank;
            if self.starting[rank] || self.processes.iter().any(lives) {
                continue;
            }
            self.starting[rank] = true;
            let at =
                self.now() + Duration::from_millis(100 + self.random.below(away.as_millis() as usize) as u64);
            self.surroundings.agenda.at(at, Event::Start { rank, claim: Claim::default(), mistaken: false });
        }
    }
}
