//! A process that has joined: runs the script in sessions, and drives a `Protocol` as a `Session` does.

mod rounds;

use crate::context::Context;
use crate::guests::Guests;
use crate::joining::{Early, Joined};
use crate::network::{Arrival, Conn};
use crate::planted::Planted;
use crate::script::Deed;
use crate::world::Event;
use bytes::Bytes;
use distribute_cluster::{Blame, Fingerprint, Operation, Presence, Standing, World, fnv1a};
use distribute_collective::group::protocol::GRACE;
use distribute_collective::group::{Frame, Inbox, Protocol, Said};
use distribute_net::handshake::{Reason, Refusal};
use distribute_net::{Message, Receiver};
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// The name of the sessions.
const NAME: &str = "strategy";

/// A worker that works.
#[derive(Debug)]
pub struct Working {
    world: World,
    generation: u64,
    links: BTreeMap<Conn, usize>,
    guests: Guests,
    inbox: Inbox,
    step: u64,
    call: u64,
    protocol: Protocol,
    doing: Doing,
    /// Which workers have been lost, and when.
    losses: Vec<(usize, Duration)>,
    /// Since when it works.
    pub since: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Doing {
    /// It computes, and makes its next call then.
    Computing(Duration),
    /// It waits for the others in a round, until then at most; it has begun then.
    Waiting { until: Duration, end: Duration, round: u64, declines: bool },
}

/// What has become of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It has made all of its steps.
    Done,
    /// It has failed for this reason.
    Failed(String),
}

impl Working {
    /// A worker that has just joined.
    pub fn new(context: &mut Context<'_>, world: World, generation: u64, joined: Joined) -> Self {
        let inbox = Inbox::new(world.workers());
        let Joined { links, early, guests } = joined;
        for (from, early) in early {
            match early {
                Early::Message(message) => inbox.deliver(from, message),
                Early::Lost(reason) => inbox.lose(from, reason),
            }
        }
        let protocol = Protocol::new(world, inbox.open(fnv1a(NAME.bytes())));
        let doing = Doing::Computing(context.now());
        let since = context.now();
        let mut working = Self {
            world,
            generation,
            links,
            guests,
            inbox,
            step: 1,
            call: 0,
            protocol,
            doing,
            losses: Vec::new(),
            since,
        };
        working.compute(context);
        working
    }

    /// The worker at the other end of each connection.
    pub fn links(&self) -> &BTreeMap<Conn, usize> {
        &self.links
    }

    /// Takes what has come over a connection.
    pub fn take(&mut self, context: &mut Context<'_>, conn: Conn, what: Arrival) {
        let Some(rank) = self.links.get(&conn).copied() else {
            match what {
                Arrival::Words(bytes) => {
                    let complete = &mut |_: &_| Err(Refusal::new(Reason::Complete, "the world is complete"));
                    self.guests.hear(context, conn, &bytes, complete);
                }
                Arrival::Closed(_) => self.guests.lose(conn),
                Arrival::Made | Arrival::Message(_) => {}
            }
            return;
        };
        match what {
            Arrival::Message(message) => self.deliver(context, rank, message),
            Arrival::Closed(reason) => {
                context.note(|| format!("loses worker {rank}: {reason}"));
                self.links.remove(&conn);
                self.losses.push((rank, context.now()));
                if !context.has(Planted::LossIgnored) {
                    self.inbox.lose(rank, reason);
                }
            }
            Arrival::Made | Arrival::Words(_) => {}
        }
    }

    fn deliver(&mut self, context: &Context<'_>, rank: usize, mut message: Message) {
        if context.has(Planted::SessionFence)
            && let Ok(mut frame) = Frame::decode(&message.head, message.body.clone())
            && frame.session.number < self.protocol.session().number
        {
            frame.session = self.protocol.session();
            if let Ok((head, body)) = frame.encode() {
                message = Message { head, body };
            }
        }
        self.inbox.deliver(rank, message);
    }

    /// Does what is due. Gives what has become of the worker when it is at the end.
    pub fn go_on(&mut self, context: &mut Context<'_>) -> Option<Ending> {
        self.guests.wake(context);
        loop {
            let ended = match self.doing {
                Doing::Computing(until) if until > context.now() => return None,
                Doing::Computing(_) => self.act(context),
                Doing::Waiting { .. } => self.drive(context),
            };
            match ended {
                Go::On => {}
                Go::Wait => return None,
                Go::End(ending) => return Some(ending),
            }
        }
    }

    /// The worker computes before its next call.
    fn compute(&mut self, context: &mut Context<'_>) {
        self.call += 1;
        let script = &context.plan.script;
        if self.call > script.calls {
            let left = self.protocol.leave(self.standings(Presence::Returned));
            self.say(context, &left);
            return self.end_step(context);
        }
        let time = script.compute(self.generation, self.world.worker(), self.step, self.call);
        self.doing = Doing::Computing(context.now() + time);
    }

    fn end_step(&mut self, context: &mut Context<'_>) {
        (self.step, self.call) = (self.step + 1, 0);
        self.protocol = Protocol::new(self.world, self.inbox.open(fnv1a(NAME.bytes())));
        if self.step <= context.plan.script.steps {
            self.compute(context);
        } else {
            self.doing = Doing::Computing(context.now());
        }
    }

    /// What the script says comes next.
    fn act(&mut self, context: &mut Context<'_>) -> Go {
        let (me, step, call) = (self.world.worker(), self.step, self.call);
        let script = &context.plan.script;
        if step > script.steps {
            return Go::End(Ending::Done);
        }
        let (deed, timeout) = (script.deed(self.generation, me, step, call), script.timeout);
        if let Deed::Call { .. } = deed {
            for (number, after) in context.plan.triggered(self.generation, me, step, call) {
                context.agenda.at(context.agenda.now() + after, Event::Fault(number));
            }
        }
        match deed {
            Deed::Call { other } => {
                let detail = if other { "another" } else { "SUM" };
                context.note(|| format!("step {step}, call {call}: {detail}"));
                let operation = Fingerprint::new(Operation::AllReduce, detail, Location::caller());
                let waiting = |replica| Standing::waiting(replica, operation.clone());
                self.protocol.begin(step, self.world.local_replicas().map(waiting).collect(), timeout);
                self.begun(context, timeout, false);
                if let Some(digest) = self.protocol.call() {
                    for to in (0..self.world.workers()).filter(|to| *to != me) {
                        let frame = self.protocol.frame(Said::Call { digest, body: Bytes::new() });
                        let body = self.body(context, &frame, me, to);
                        self.send(context, to, Frame { said: Said::Call { digest, body }, ..frame });
                    }
                }
            }
            Deed::Decline => {
                context.note(|| format!("step {step}, call {call}: declines"));
                match self.protocol.decline(step, self.standings(Presence::Failed), timeout) {
                    Some(_) if context.has(Planted::DeclineUnsaid) => self.compute(context),
                    Some(frame) => {
                        self.say(context, &frame);
                        self.compute(context);
                    }
                    None => self.begun(context, timeout, true),
                }
            }
            Deed::Abandon => {
                context.note(|| format!("step {step}, call {call}: ends the session"));
                self.hear_all(context);
                let operation = Fingerprint::new(Operation::AllReduce, "SUM", Location::caller());
                let blame = Blame::failed(step, self.world.global(0), &operation);
                let verdict = self.protocol.abandon(Arc::new(blame));
                if let Some(verdict) = verdict {
                    self.say(context, &verdict);
                }
                self.over(context);
                self.end_step(context);
            }
            Deed::Leave => {
                context.note(|| format!("step {step}, call {call}: leaves"));
                let left = self.protocol.leave(self.standings(Presence::Returned));
                self.say(context, &left);
                self.end_step(context);
            }
        }
        Go::On
    }

    fn begun(&mut self, context: &Context<'_>, timeout: Duration, declines: bool) {
        let until = context.now() + timeout;
        // It may wait for the verdict after that.
        let end = until + 2 * GRACE;
        let round = self.protocol.frame(Said::Left { standings: Vec::new() }).round;
        self.doing = Doing::Waiting { until, end, round, declines };
    }

    fn standings(&self, presence: Presence) -> Vec<Standing> {
        let standing = |replica| Standing { presence: presence.clone(), ..Standing::running(replica) };
        self.world.local_replicas().map(standing).collect()
    }

    /// Whether it waits in a call although it has lost a worker long before.
    pub fn waits_in_vain(&self, now: Duration) -> bool {
        matches!(self.doing, Doing::Waiting { .. }) && self.losses.iter().any(|(_, at)| *at + 2 * GRACE < now)
    }

    /// When to go on although nothing has come.
    pub fn next(&self) -> Duration {
        let (Doing::Computing(until) | Doing::Waiting { until, .. }) = self.doing;
        self.guests.next().map_or(until, |guests| guests.min(until))
    }

    /// The process has been stopped for so long, which does not count.
    pub fn shift(&mut self, pause: Duration) {
        if let Doing::Waiting { until, end, .. } = &mut self.doing {
            (*until, *end) = (*until + pause, *end + pause);
        }
    }
}

/// What comes next.
enum Go {
    On,
    Wait,
    End(Ending),
}
