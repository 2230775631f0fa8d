//! One process: it joins, works, and ends.

use crate::context::Context;
use crate::joining::{Joining, address};
use crate::network::{Arrival, Conn};
use crate::working::{Ending, Working};
use distribute_cluster::World;
use distribute_net::handshake::{Hello, Purpose};
use std::time::Duration;

/// One process of a worker.
#[derive(Debug)]
pub struct Process {
    /// Which worker it is.
    pub rank: usize,
    /// The generation of the world that it is to join.
    pub generation: u64,
    /// Where it listens.
    pub port: u16,
    world: World,
    stage: Stage,
    /// Since when it is stopped, and what has come meanwhile.
    pub stopped: Option<Duration>,
    waiting: Vec<(Conn, Arrival)>,
    /// The number of the last order to wake it.
    pub woken: u64,
}

#[derive(Debug)]
enum Stage {
    Joining(Box<Joining>),
    Working(Box<Working>),
    Ended(Option<Duration>),
}

impl Process {
    /// A process that has just started.
    pub fn start(context: &Context<'_>, world: World, generation: u64, port: u16) -> Self {
        let rank = world.worker();
        let places = (0..world.workers())
            .map(|other| address(other, if other == rank || other == 0 { port_of(other, port) } else { 0 }));
        let addresses: Vec<_> = places.collect();
        let hello = Hello {
            job: "simulated".to_owned(),
            // Whoever starts them knows that all members of the one before have been killed.
            generation,
            rank,
            workers: world.workers(),
            replicas: world.replicas(),
            digest: [0; 32],
            purpose: Purpose::Link,
        };
        let stage = Stage::Joining(Box::new(Joining::new(context, world, hello, addresses)));
        Self { rank, generation, port, world, stage, stopped: None, waiting: Vec::new(), woken: 0 }
    }

    /// Whether it still runs, stopped or not.
    pub fn lives(&self) -> bool {
        !matches!(self.stage, Stage::Ended(_))
    }

    /// When it has vanished without anybody being told, if it has.
    pub fn vanished(&self) -> Option<Duration> {
        match self.stage {
            Stage::Ended(vanished) => vanished,
            _ => None,
        }
    }

    /// What it does where it works.
    pub fn working(&self) -> Option<&Working> {
        match &self.stage {
            Stage::Working(working) => Some(working),
            _ => None,
        }
    }

    /// It is over.
    pub fn end(&mut self, vanished: Option<Duration>) {
        self.stage = Stage::Ended(vanished);
    }

    /// Takes what has come; it does so later where it is stopped.
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
        taken.err().map(Ending::Failed)
    }

    /// Does what is due.
    pub fn go_on(&mut self, context: &mut Context<'_>) -> Option<Ending> {
        if self.stopped.is_some() {
            return None;
        }
        if let Stage::Joining(joining) = &mut self.stage {
            match joining.go_on(context) {
                Ok(false) => return None,
                Err(error) => return Some(Ending::Failed(error)),
                Ok(true) => {
                    let joined = std::mem::replace(&mut self.stage, Stage::Ended(None));
                    let Stage::Joining(joining) = joined else { return None };
                    context.note(|| "has joined".to_owned());
                    let working = Working::new(context, self.world, self.generation, joining.into_joined());
                    self.stage = Stage::Working(Box::new(working));
                }
            }
        }
        match &mut self.stage {
            Stage::Working(working) => working.go_on(context),
            _ => None,
        }
    }

    /// It goes on after it was stopped. What has come meanwhile is taken, all at once or one after the other.
    pub fn resume(&mut self, context: &mut Context<'_>, at_once: bool) -> Option<Ending> {
        let pause = context.now().saturating_sub(self.stopped.take()?);
        // Half a slice of the wait counts (`distribute_cluster::Deadline`).
        let shift = pause.saturating_sub(Duration::from_millis(50));
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

    /// When it has to be woken, where nothing comes before.
    pub fn next(&self) -> Option<Duration> {
        match &self.stage {
            _ if self.stopped.is_some() => None,
            Stage::Joining(joining) => Some(joining.next()),
            Stage::Working(working) => Some(working.next()),
            Stage::Ended(_) => None,
        }
    }
}

/// The leader's port is known to all.
pub const LEADER: u16 = 1;

fn port_of(rank: usize, own: u16) -> u16 {
    if rank == 0 { LEADER } else { own }
}
