//! The rounds of a session, as a `Session` drives them.

use super::{Doing, Ending, Go, Working};
use crate::context::Context;
use crate::network::Arrival;
use crate::planted::Planted;
use bytes::Bytes;
use distribute_cluster::{Blame, Fault};
use distribute_collective::group::inbox::Event as Come;
use distribute_collective::group::protocol::Action;
use distribute_collective::group::{Frame, Said};
use distribute_net::Message;
use std::sync::Arc;

impl Working {
    /// The data of a call: which it is, and a number that all add up.
    pub(super) fn body(&self, context: &Context<'_>, frame: &Frame, from: usize, to: usize) -> Bytes {
        let number = context.plan.script.compute(self.generation, from, frame.session.number, frame.round);
        let place = (self.generation, frame.session.number, frame.round);
        format!("{place:?} {from} to {to}: {}", number.as_secs_f32() * 0.1).into()
    }

    /// The round that has begun, until it is decided or something is missing.
    pub(super) fn drive(&mut self, context: &mut Context<'_>) -> Go {
        loop {
            self.hear_all(context);
            match self.protocol.next_action() {
                Action::Say(frame) => self.say(context, &frame),
                Action::End(made) => return self.decided(context, made),
                Action::Wait(patience) => {
                    let Doing::Waiting { until, .. } = &mut self.doing else { return Go::On };
                    if let Some(patience) = patience {
                        *until = context.now() + patience;
                    }
                    if *until > context.now() || context.has(Planted::NoDeadline) {
                        return Go::Wait;
                    }
                    self.protocol.expire();
                    if context.has(Planted::NoGrace) {
                        let _ = self.protocol.next_action();
                        self.protocol.expire();
                    }
                }
            }
        }
    }

    fn decided(&mut self, context: &mut Context<'_>, made: Result<Vec<Bytes>, Arc<Blame>>) -> Go {
        let Doing::Waiting { end, round, declines, .. } = self.doing else { return Go::On };
        let (me, now, step, call) = (self.world.worker(), context.now(), self.step, self.call);
        if now > end {
            context
                .checks
                .broken(format!("worker {me} waited until {now:?} in a call that had to end at {end:?}"));
        }
        let frame = Frame { round, ..self.protocol.frame(Said::Left { standings: Vec::new() }) };
        let place = (self.generation, frame.session.number, round);
        match &made {
            _ if declines => {}
            Ok(bodies) => {
                let mut sum = 0.0;
                for (from, body) in bodies.iter().enumerate() {
                    let expected = self.body(context, &frame, from, me);
                    if from != me && *body != expected {
                        context.checks.broken(format!("worker {me} used {body:?} for {expected:?}"));
                    }
                    let text = if from == me { &expected } else { body };
                    let number = text
                        .rsplit(|byte| *byte == b' ')
                        .next()
                        .and_then(|text| std::str::from_utf8(text).ok());
                    sum += number.and_then(|text| text.parse::<f32>().ok()).unwrap_or(0.0);
                }
                context.note(|| format!("step {step}, call {call}: {sum}"));
                context.checks.agreed(place, me, call, sum);
            }
            Err(blame) => {
                context.note(|| format!("step {step}, call {call}: {blame}"));
                let over = self.protocol.over().is_some();
                context.checks.blamed(place, me, call, blame, over);
            }
        }
        if self.protocol.over().is_none() {
            self.compute(context);
            return Go::On;
        }
        self.over(context);
        match made {
            Err(blame) if blame.fault == Fault::Lost => return Go::End(Ending::Failed(blame.to_string())),
            _ => self.end_step(context),
        }
        Go::On
    }

    /// The session is over for this worker.
    pub(super) fn over(&mut self, context: &mut Context<'_>) {
        if let Some(blame) = self.protocol.over() {
            let frame = self.protocol.frame(Said::Left { standings: Vec::new() });
            let place = (self.generation, frame.session.number, frame.round);
            context.checks.over(place, self.world.worker(), blame);
        }
    }

    pub(super) fn hear_all(&mut self, context: &Context<'_>) {
        loop {
            let lost = self.protocol.lost();
            let first = |rank: usize| context.has(Planted::LossFirst) && !lost[rank];
            let unheard =
                (0..self.world.workers()).find(|rank| first(*rank) && self.inbox.lost(*rank).is_some());
            let come = match unheard {
                Some(rank) => Some(Come::Lost(rank, self.inbox.lost(rank).unwrap_or_default())),
                None => self.inbox.poll(self.protocol.session(), lost),
            };
            match come {
                None => return,
                Some(Come::Frame(from, frame)) => {
                    let (round, own) =
                        (self.protocol.frame(Said::Left { standings: vec![] }).round, self.protocol.call());
                    let frame = match context.planted {
                        Some(planted) => planted.takes(frame, round, own),
                        None => Some(frame),
                    };
                    if let Some(frame) = frame
                        && let Err(reason) = self.protocol.hear(from, frame)
                    {
                        self.inbox.lose(from, reason);
                    }
                }
                Some(Come::Lost(rank, reason)) => self.protocol.lose(rank, reason),
                Some(Come::Expired) => {}
            }
        }
    }

    pub(super) fn say(&self, context: &mut Context<'_>, frame: &Frame) {
        for to in (0..self.world.workers()).filter(|to| *to != self.world.worker()) {
            self.send(context, to, frame.clone());
        }
    }

    pub(super) fn send(&self, context: &mut Context<'_>, to: usize, frame: Frame) {
        let frame = match context.planted {
            Some(planted) => planted.sends(frame),
            None => Some(frame),
        };
        let conn = self.links.iter().find(|(_, rank)| **rank == to).map(|(conn, _)| *conn);
        if let (Some(frame), Some(conn)) = (frame, conn)
            && let Ok((head, body)) = frame.encode()
        {
            context.send(conn, Arrival::Message(Message { head, body }));
        }
    }
}
