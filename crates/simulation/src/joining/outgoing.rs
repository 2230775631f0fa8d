//! The outgoing connections of a process that joins a world.

use super::Joining;
use crate::context::Context;
use crate::guests::{HANDSHAKE, words};
use crate::network::{Arrival, Conn};
use crate::planted::Planted;
use distribute_net::JoinError;
use distribute_net::handshake::caller::Answer;
use distribute_net::handshake::{Caller, HandshakeDecoder, Hello, Purpose, Refusal};
use distribute_net::rendezvous::election::Election;
use distribute_net::rendezvous::retries::Retries;
use distribute_net::rendezvous::state::Call;
use std::time::Duration;

/// The wait after an answer that another attempt would not change, if the call must be retried nevertheless.
const RELUCTANT: Duration = Duration::from_millis(500);

/// A connection that a process makes to another one.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub call: Call,
    pub retries: Retries,
    pub state: State,
    /// Whether no attempt has begun.
    pub is_first: bool,
}

/// The state of an outgoing connection.
#[derive(Debug)]
pub(super) enum State {
    Waiting(Duration),
    Connecting(Conn, Duration),
    Talking(Conn, Duration, Box<(HandshakeDecoder, Caller)>),
}

impl State {
    pub fn conn(&self) -> Option<Conn> {
        match self {
            State::Waiting(_) => None,
            State::Connecting(conn, _) | State::Talking(conn, ..) => Some(*conn),
        }
    }

    pub fn until(&self) -> Duration {
        let (State::Waiting(until) | State::Connecting(_, until) | State::Talking(_, until, _)) = self;
        *until
    }
}

impl Outgoing {
    pub fn new(call: Call, now: Duration) -> Self {
        let retries = Retries::new(&call);
        Self { call, retries, state: State::Waiting(now), is_first: true }
    }

    /// Begins the next attempt now, unless one is running. With `only_first` this applies only to the first attempt.
    pub fn hurry(&mut self, now: Duration, only_first: bool) {
        if let (State::Waiting(until), true) = (&mut self.state, self.is_first || !only_first) {
            *until = (*until).min(now);
        }
    }
}

impl Joining {
    /// Starts the calls that an election needs, and gives up those that it no longer needs.
    pub(super) fn ask(&mut self, context: &mut Context<'_>) {
        let now = context.now();
        if self.silent_until.is_some_and(|until| now < until) {
            return;
        }
        self.silent_until = None;
        let Some(mut asks) = self.meeting.asks() else { return };
        if context.has(Planted::TwoLeaders) && asks.is_empty() && !self.meeting.is_located() {
            return;
        }
        if context.has(Planted::ElsewhereTrusted)
            && let Some(sent_to) = self.sent_to
        {
            asks.retain(|(ask, _)| ask.worker == sent_to);
        }
        let is_same = |one: &Call, other: &Call| (one.worker, &one.address) == (other.worker, &other.address);
        let is_needed =
            |call: &Call| call.purpose == Purpose::Link || asks.iter().any(|(ask, _)| is_same(ask, call));
        let (kept, dropped): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.outgoing).into_iter().partition(|outgoing| is_needed(&outgoing.call));
        self.outgoing = kept;
        for conn in dropped.iter().filter_map(|outgoing| outgoing.state.conn()) {
            context.close(conn, "it closed its connection");
        }
        let hurried = self.meeting.election_mut().map(Election::take_hurried).unwrap_or_default();
        for (ask, wait) in asks {
            match self.outgoing.iter_mut().find(|outgoing| is_same(&ask, &outgoing.call)) {
                Some(outgoing) if hurried.contains(&ask.worker) => outgoing.hurry(now, false),
                Some(outgoing) if wait.is_zero() => outgoing.hurry(now, true),
                Some(_) => {}
                None => self.outgoing.push(Outgoing::new(ask, now + wait)),
            }
        }
    }

    /// Handles an arrival over the outgoing connection with the index `at`.
    ///
    /// # Errors
    /// Returns the reason why the worker cannot join.
    pub(super) fn take_answer(
        &mut self,
        context: &mut Context<'_>,
        at: usize,
        conn: Conn,
        what: Arrival,
    ) -> Result<(), JoinError> {
        let now = context.now();
        let Outgoing { call, retries, state, .. } = &mut self.outgoing[at];
        match (what, &mut *state) {
            (Arrival::Made, State::Connecting(..)) => {
                let hello = Hello {
                    purpose: call.purpose.clone(),
                    generation: call.generation,
                    table: call.table,
                    ..self.hello.clone()
                };
                let caller = Caller::new(hello, call.worker, None, [0; 32]);
                context.send(conn, Arrival::Words(caller.first()));
                *state =
                    State::Talking(conn, now + HANDSHAKE, Box::new((HandshakeDecoder::default(), caller)));
            }
            (Arrival::Closed(reason), _) => {
                *state = State::Waiting(now + retries.broken(reason));
                self.meeting.missed(call);
            }
            (Arrival::Words(bytes), State::Talking(_, _, talk)) => {
                let (hearing, caller) = &mut **talk;
                let answer = match words(hearing, &bytes) {
                    Ok(None) => return Ok(()),
                    Ok(Some(words)) => caller.receive(words),
                    Err(refusal) => Err(refusal),
                };
                match answer {
                    Ok(Answer::Send(words)) => context.send(conn, Arrival::Words(words)),
                    Ok(Answer::Welcome) => {
                        let call = self.outgoing.remove(at).call;
                        let accepted = self.meeting.accepted(&call);
                        if accepted.is_none() && !context.has(Planted::TwoLeaders) {
                            context.close(conn, "it closed its connection");
                            return Ok(());
                        }
                        let rank = call.worker;
                        context.note(|| format!("is linked to worker {rank}"));
                        if !context.has(Planted::FollowersKept) {
                            let followers = accepted.unwrap_or_default();
                            followers.into_iter().for_each(|follower| self.close_link(context, follower));
                        }
                        self.links.insert(conn, rank);
                    }
                    Err(refusal) => {
                        context.note(|| format!("is refused by worker {}: {refusal}", call.worker));
                        context.close(conn, "it closed its connection");
                        self.sent_to = refusal.leader.as_ref().map(|leader| leader.0).or(self.sent_to);
                        let forgets = context.has(Planted::MembersForgotten);
                        let generation = if forgets { 0 } else { refusal.generation };
                        self.meeting.answered(call, &Refusal { generation, ..refusal.clone() });
                        let retried = match context.planted {
                            Some(planted) if planted.gives_up(&refusal) => Err(refusal),
                            _ => retries.refused(refusal),
                        };
                        match retried {
                            Ok(wait) => *state = State::Waiting(now + wait),
                            Err(refusal) => match self.meeting.refused(call, refusal, now) {
                                Some(error) => return Err(error),
                                None => *state = State::Waiting(now + RELUCTANT),
                            },
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn close_link(&mut self, context: &mut Context<'_>, worker: usize) {
        let dropped: Vec<_> =
            self.links.iter().filter(|(_, rank)| **rank == worker).map(|(conn, _)| *conn).collect();
        for conn in dropped {
            context.close(conn, "it closed its connection");
            self.links.remove(&conn);
        }
        self.early.retain(|(from, _)| *from != worker);
    }
}
