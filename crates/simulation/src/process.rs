//! One process. It joins a world, works, joins another world if a worker is lost or waits to join, and exits.

use crate::context::{Context, Name};
use crate::joining::{Joining, address};
use crate::network::{Arrival, Conn};
use crate::planted::Planted;
use crate::program::Program;
use crate::training::Training;
use crate::working::{Ending, Go, Working};
use distribute_cluster::World;
use distribute_collective::group::Inbox;
use distribute_net::handshake::{Hello, Purpose, Reason};
use distribute_net::rendezvous::note::Note;
use distribute_net::{Claim, ENDED, JoinError, LEFT, Quorum};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time that a spare takes to build its model, without a connection to the leader.
const BUILD: Duration = Duration::from_millis(20);

/// A process of a worker.
#[derive(Debug)]
pub struct Process {
    /// The name of the process in the history.
    pub name: Name,
    /// The port on which the process listens.
    pub port: u16,
    /// Whether the process is a second one of its worker, which was started by mistake or has returned from an earlier
    /// generation.
    pub mistaken: bool,
    world: World,
    addresses: Vec<String>,
    claim: Claim,
    /// The generation of the world of which the process is a spare; 0 if it is none.
    spare_of: u64,
    /// The workers that the process expects at the rendezvous, as cluster indices.
    expected: BTreeSet<usize>,
    /// The workers that are not known to be lost, as cluster indices.
    present: BTreeSet<usize>,
    /// The workers that were waiting for the next world when the process left its last one, and the time at which it
    /// left. `None` unless one of these workers had been in a different world that was at least as late.
    pub owed: Option<(BTreeSet<usize>, Duration)>,
    /// The time at which the process was started.
    pub started: Duration,
    /// The deadline for joining.
    until: Duration,
    /// The generation of the process's last world; 0 if there was none.
    pub generation: u64,
    /// The cluster indices of the last world's workers.
    pub places: Vec<usize>,
    stage: Stage,
    program: Program,
    /// The inbox of the previous world, which is only kept because of a planted bug.
    kept: Option<Inbox>,
    /// The time at which the process was stopped; `None` if it is not stopped.
    pub stopped: Option<Duration>,
    waiting: Vec<(Conn, Arrival)>,
    /// The sequence number of the process's latest timer.
    pub woken: u64,
}

#[derive(Debug)]
enum Stage {
    Joining(Box<Joining>),
    Working(Box<Working>),
    Ended(Option<Duration>),
}

impl Process {
    /// Creates a process that has just started, and takes part in a rendezvous. `claim` contains the generation of
    /// which it claims to have been a member.
    pub fn start(
        context: &Context<'_>,
        world: World,
        name: Name,
        port: u16,
        claim: Claim,
        program: Program,
    ) -> Self {
        let rank = world.worker();
        let places = (0..world.workers())
            .map(|other| address(other, if other == rank || other == 0 { port_of(other, port) } else { 0 }));
        let mut process = Self {
            name,
            port,
            mistaken: false,
            world,
            addresses: places.collect(),
            claim,
            spare_of: 0,
            expected: (0..context.plan.most()).collect(),
            present: BTreeSet::new(),
            owed: None,
            started: context.now(),
            until: context.now() + context.plan.join,
            generation: 0,
            places: Vec::new(),
            stage: Stage::Ended(None),
            program,
            kept: None,
            stopped: None,
            waiting: Vec::new(),
            woken: 0,
        };
        process.come(context);
        process
    }

    /// Starts taking part in a rendezvous.
    fn come(&mut self, context: &Context<'_>) {
        let hello = Hello {
            job: "simulated".to_owned(),
            generation: self.claim.generation(),
            rank: self.world.worker(),
            workers: self.world.workers(),
            replicas: self.world.replicas(),
            digest: [0; 32],
            purpose: Purpose::Link,
        };
        let mut quorum = match context.plan.elastic {
            Some(elastic) => Quorum {
                minimum: elastic.least,
                maximum: context.plan.most(),
                expected: self.expected.clone(),
                present: self.present.clone(),
                grace: elastic.grace,
            },
            None => Quorum::all(self.world.workers()),
        };
        if context.has(Planted::LeastIgnored) {
            quorum.minimum = 1;
        }
        if context.has(Planted::MostIgnored) {
            quorum.maximum = self.world.workers();
        }
        let mut joining = Joining::new(context, self.world, hello, &self.addresses, quorum, self.until);
        if self.spare_of > 0 {
            joining.be_spare(self.spare_of, context.now() + BUILD);
        }
        self.stage = Stage::Joining(Box::new(joining));
    }

    /// Handles a note about a world that the leader sent before it became unreachable. Does nothing unless the process
    /// is joining. Returns the way in which the process ends, if it ends.
    pub fn is_told(&mut self, context: &mut Context<'_>, note: &Note) -> Option<Ending> {
        let Stage::Joining(joining) = &mut self.stage else { return None };
        let told = joining.is_told(context, note);
        told.err().and_then(|error| self.could_not_join(context, error)).or_else(|| self.go_on(context))
    }

    /// Handles a failed rendezvous: takes part in the next one, or returns the way in which the process ends. The
    /// latter is the case if the deadline has passed, or if the error is one after which real processes give up too.
    fn could_not_join(&mut self, context: &mut Context<'_>, error: JoinError) -> Option<Ending> {
        context.note(|| format!("cannot join: {error}"));
        context.close_all("it closed its connection");
        if let Stage::Joining(joining) = &self.stage
            && joining.spare_of() > 0
        {
            // The wait of a spare has no deadline while the leader is there.
            let again = context.now() + context.plan.join;
            self.until = if matches!(error, JoinError::Deadline { .. }) { joining.deadline() } else { again };
            self.spare_of = joining.spare_of();
        }
        match &error {
            JoinError::Spare { .. } => {
                if let Program::Training(training) = &mut self.program {
                    training.is_spare();
                }
                self.come(context);
                return None;
            }
            JoinError::Refused { refusal, .. } if refusal.reason == Reason::Ended => {
                return Some(Ending::Unused);
            }
            _ => {}
        }
        if context.now() > self.until + Duration::from_secs(1) {
            context.broken(format!(
                "joins until {:?}, and had to have joined at {:?}",
                context.now(),
                self.until
            ));
        }
        let failed = match context.planted {
            _ if context.now() >= self.until => Err(error),
            Some(planted) if planted.ends(&error) => Err(error),
            _ => self.claim.failed(error),
        };
        match failed {
            Ok(()) => {
                self.come(context);
                None
            }
            Err(error) => Some(Ending::Failed(error.to_string())),
        }
    }

    /// Leaves the current world, and takes part in the next rendezvous.
    fn meet_again(&mut self, context: &mut Context<'_>) {
        context.note(|| "meets the others again".to_owned());
        let replaced = match &mut self.program {
            Program::Training(training) => training.take_replaced(),
            Program::Scripted(_) => None,
        };
        let me = self.working().map(|working| working.world.worker());
        let resigns = replaced.is_some() && replaced == me && !context.has(Planted::ReplacedKept);
        context.close_all(if resigns || context.has(Planted::LeaveAsEnd) { ENDED } else { LEFT });
        if let (Stage::Working(working), true) = (&self.stage, context.has(Planted::SessionKept)) {
            self.kept = Some(working.inbox().clone());
        }
        self.claim = Claim::after(self.generation);
        if let (Stage::Working(working), true) = (&self.stage, context.plan.elastic.is_some()) {
            let once_more = matches!(&self.program, Program::Training(training) if training.is_meeting());
            let is_fixed = context.plan.elastic.is_some_and(|elastic| elastic.least == context.plan.most());
            let known = working.known_workers(once_more || is_fixed, replaced);
            self.present = known.present.clone();
            self.expected = known.expected(context.plan.most());
            self.owed =
                working.is_supplanted().then(|| (working.waits().keys().copied().collect(), context.now()));
            if working.is_supplanted() && !context.has(Planted::SupplantedKept) {
                self.claim = Claim::default();
            }
        }
        if resigns {
            // Spares take precedence over it.
            self.claim = Claim::default();
        }
        self.until = match &self.program {
            Program::Training(training) => training.until(),
            Program::Scripted(_) => None,
        }
        .unwrap_or(context.now() + context.plan.join);
        self.come(context);
    }

    /// Returns `true` if the process is running or stopped.
    pub fn lives(&self) -> bool {
        !matches!(self.stage, Stage::Ended(_))
    }

    /// Returns the time at which the machine of the process failed silently; `None` if it did not.
    pub fn vanished(&self) -> Option<Duration> {
        match self.stage {
            Stage::Ended(vanished) => vanished,
            _ => None,
        }
    }

    /// Returns the state of the process if it is working.
    pub fn working(&self) -> Option<&Working> {
        match &self.stage {
            Stage::Working(working) => Some(working),
            _ => None,
        }
    }

    /// Returns the training run of the process; `None` if it runs a script.
    pub fn training(&self) -> Option<&Training> {
        match &self.program {
            Program::Training(training) => Some(training),
            Program::Scripted(_) => None,
        }
    }

    /// Returns the links of the process, their generation if the process has received it, and the time since which it
    /// has checked them for silence. Returns `None` if the process has ended.
    pub fn links(&self) -> Option<(&BTreeMap<Conn, usize>, Option<u64>, Duration)> {
        match &self.stage {
            Stage::Joining(joining) => Some((joining.links(), joining.told(), joining.began())),
            Stage::Working(working) => Some((working.links(), Some(working.generation), working.since)),
            Stage::Ended(_) => None,
        }
    }

    /// Returns the connections of the process to spares, if it is working.
    pub fn spares(&self) -> Vec<Conn> {
        self.working().map(|working| working.spares().collect()).unwrap_or_default()
    }

    /// Returns the reason with which the process closes its connections when it exits.
    pub fn farewell(&self) -> &'static str {
        match self.stage {
            Stage::Working(_) => ENDED,
            _ => "it closed its connection",
        }
    }

    /// Ends the process, without closing its connections. `vanished` is the time at which its machine failed silently;
    /// `None` if it did not.
    pub fn end(&mut self, vanished: Option<Duration>) {
        self.stage = Stage::Ended(vanished);
    }

    /// Handles an arrival, or queues it if the process is stopped. Returns the way in which the process ends, if it
    /// ends.
    pub fn take(&mut self, context: &mut Context<'_>, conn: Conn, what: Arrival) -> Option<Ending> {
        if self.stopped.is_some() {
            self.waiting.push((conn, what));
            return None;
        }
        let taken = match &mut self.stage {
            Stage::Joining(joining) => joining.take(context, conn, what),
            Stage::Working(working) => {
                working.take(context, conn, what);
                Ok(())
            }
            Stage::Ended(_) => Ok(()),
        };
        taken.err().and_then(|error| self.could_not_join(context, error))
    }

    /// Performs all actions that are due, unless the process is stopped. Returns the way in which the process ends, if
    /// it ends.
    pub fn go_on(&mut self, context: &mut Context<'_>) -> Option<Ending> {
        while self.stopped.is_none() {
            match &mut self.stage {
                Stage::Joining(joining) => match joining.go_on(context) {
                    Ok(false) => return None,
                    Err(error) => {
                        if let Some(ending) = self.could_not_join(context, error) {
                            return Some(ending);
                        }
                    }
                    Ok(true) => self.begin_to_work(context),
                },
                Stage::Working(working) => match working.go_on(context, &mut self.program) {
                    None | Some(Go::On) => return None,
                    Some(Go::Meet) => self.meet_again(context),
                    Some(Go::End(ending)) => {
                        if ending == Ending::Done {
                            working.dismiss_spares(context);
                        }
                        return Some(ending);
                    }
                },
                Stage::Ended(_) => return None,
            }
        }
        None
    }

    fn begin_to_work(&mut self, context: &mut Context<'_>) {
        let joined = match std::mem::replace(&mut self.stage, Stage::Ended(None)) {
            Stage::Joining(joining) => joining.into_joined(),
            other => {
                self.stage = other;
                return;
            }
        };
        (self.generation, self.places, self.spare_of) = (joined.generation, joined.places.clone(), 0);
        context.note(|| format!("has joined, as generation {}", joined.generation));
        let mut working = Working::new(context, joined, self.kept.take());
        working.welcome_spares(context);
        self.program.joined(&mut working, context);
        self.stage = Stage::Working(Box::new(working));
    }

    /// Resumes a stopped process, and extends its deadlines by almost the whole time for which it was stopped. If
    /// `at_once` is `true`, all queued arrivals are delivered before the process acts; otherwise it acts after each.
    /// Returns the way in which the process ends, if it ends.
    pub fn resume(&mut self, context: &mut Context<'_>, at_once: bool) -> Option<Ending> {
        let pause = context.now().saturating_sub(self.stopped.take()?);
        // Half a slice of the wait counts (`distribute_cluster::Deadline`).
        let shift = pause.saturating_sub(Duration::from_millis(50));
        self.until += shift;
        if let Program::Training(training) = &mut self.program {
            training.shift(shift);
        }
        match &mut self.stage {
            Stage::Joining(joining) => joining.shift(shift),
            Stage::Working(working) => working.shift(shift),
            Stage::Ended(_) => {}
        }
        for (conn, what) in std::mem::take(&mut self.waiting) {
            let ending = self.take(context, conn, what);
            let ending = if at_once { ending } else { ending.or_else(|| self.go_on(context)) };
            if ending.is_some() {
                return ending;
            }
        }
        self.go_on(context)
    }

    /// Returns the time of the next action, unless something arrives earlier. Returns `None` if the process is stopped
    /// or has ended.
    pub fn next(&self) -> Option<Duration> {
        match &self.stage {
            _ if self.stopped.is_some() => None,
            Stage::Joining(joining) => joining.next(),
            Stage::Working(working) => Some(working.next()),
            Stage::Ended(_) => None,
        }
    }
}

/// The port of the leader, which all processes know.
pub const LEADER: u16 = 1;

fn port_of(rank: usize, own: u16) -> u16 {
    if rank == 0 { LEADER } else { own }
}
