//! The service of a worker, in the server of its process.

use super::{Collected, Worker};
use crate::message::{Answer, Question, decode, encode};
use distribute_cluster::Job;
use distribute_rpc::{Call, Reply, Service};
use std::thread::Builder;

/// The name of the service.
pub const SERVICE: &str = "worker";

impl Service for Worker {
    fn call(&self, call: Call, reply: Reply) {
        let Call { caller, message } = call;
        // INV-81: the task is that of the handshake.
        if caller != Job::Chief.task(0) {
            return reply.fail(format!("{caller} is no coordinator: workers work for the chief alone"));
        }
        match decode(&message.body) {
            Err(wrong) => {
                reply.fail(format!("what {caller} sent is {wrong}: are both of the same build?"));
            }
            Ok(Question::Hello(hello)) => {
                let worker = self.clone();
                // This may wait for parameter servers, and later calls wait for this thread.
                let started = Builder::new().name("distribute-hello".to_owned()).spawn(move || {
                    let answer = worker.hello(&hello).map(|session| session.id());
                    send(reply, &answer.map_or_else(Answer::Refused, |session| Answer::Welcome { session }));
                });
                // Without a thread the reply is dropped, which notifies the caller.
                drop(started);
            }
            Ok(Question::Submit(batch)) => {
                let session = self.session(batch.session);
                let answer = if session.is_some() { Answer::Submitted } else { Answer::Over };
                if let Some(session) = session {
                    session.submit(batch);
                }
                send(reply, &answer);
            }
            Ok(Question::Collect { session }) => match self.session(session) {
                Some(session) => session.collect(Box::new(move |collected| {
                    let answer = match collected {
                        Collected::Done(done) => Answer::Collected(done),
                        Collected::Over => Answer::Over,
                    };
                    send(reply, &answer);
                })),
                None => send(reply, &Answer::Over),
            },
        }
    }
}

fn send(reply: Reply, answer: &Answer) {
    match encode(answer) {
        Ok(bytes) => reply.answer("", bytes),
        Err(error) => reply.fail(format!("the answer cannot be encoded: {error}")),
    }
}
