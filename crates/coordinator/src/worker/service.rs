//! The service by which coordinators reach a worker in another process.

use super::{Collected, Worker};
use crate::message::{Request, Response, decode, encode};
use distribute_cluster::Job;
use distribute_rpc::{Call, Reply, Service};
use std::thread::Builder;

/// The name of a worker's service.
pub const SERVICE: &str = "worker";

impl Service for Worker {
    fn call(&self, call: Call, reply: Reply) {
        let Call { caller, message } = call;
        // INV-81: the task is that of the handshake.
        if caller != Job::Chief.task(0) {
            return reply.fail(format!("{caller} is not a coordinator: workers only work for the chief"));
        }
        match decode(&message.body) {
            Err(wrong) => {
                reply.fail(format!("{caller} sent {wrong}: are both of the same build?"));
            }
            Ok(Request::Hello(hello)) => {
                let worker = self.clone();
                // This may wait for parameter servers, and later calls wait for this thread.
                let started = Builder::new().name("distribute-hello".to_owned()).spawn(move || {
                    let response = worker.hello(&hello).map(|session| session.id());
                    send(
                        reply,
                        &response.map_or_else(Response::Refused, |session| Response::Welcome { session }),
                    );
                });
                // Without a thread the reply is dropped, which notifies the caller.
                drop(started);
            }
            Ok(Request::Submit(batch)) => {
                let session = self.session(batch.session);
                let response = if session.is_some() { Response::Submitted } else { Response::SessionOver };
                if let Some(session) = session {
                    session.submit(batch);
                }
                send(reply, &response);
            }
            Ok(Request::Collect { session }) => match self.session(session) {
                Some(session) => session.collect(Box::new(move |collected| {
                    let response = match collected {
                        Collected::Done(done) => Response::Collected(done),
                        Collected::Over => Response::SessionOver,
                    };
                    send(reply, &response);
                })),
                None => send(reply, &Response::SessionOver),
            },
        }
    }
}

fn send(reply: Reply, response: &Response) {
    match encode(response) {
        Ok(bytes) => reply.answer("", bytes),
        Err(error) => reply.fail(format!("the answer cannot be encoded: {error}")),
    }
}
