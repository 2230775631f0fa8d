//! The service by which links are measured, which every server has.

use super::link::State;
use super::measure::{NAME, exchange, reach};
use crate::client::ClientBuilder;
use crate::service::{Call, Reply, Service};
use distribute_cluster::Task;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a server is asked: to measure the link to another task. Heads of other calls are given back with their bodies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) struct Probe {
    /// The other task.
    pub probe: Task,
    /// How long its server may be missing, and each call take.
    pub patience_ms: u64,
}

/// The longest time that one measurement may take to connect, whatever is asked.
const LONGEST: Duration = Duration::from_secs(60);

/// Gives back what it is sent, and measures links to the other tasks of its cluster, one at a time.
pub(crate) struct Examiner {
    clients: ClientBuilder,
    is_busy: Arc<AtomicBool>,
}

impl Examiner {
    pub fn new(clients: ClientBuilder) -> Self {
        Self { clients: clients.settings(super::settings()), is_busy: Arc::default() }
    }
}

impl Service for Examiner {
    fn call(&self, call: Call, reply: Reply) {
        if call.message.head.first() != Some(&b'{') {
            return reply.answer(call.message.head, call.message.body);
        }
        let probe: Probe = match serde_json::from_slice(&call.message.head) {
            Ok(probe) => probe,
            Err(error) => return reply.fail(format!("what {NAME} is asked cannot be read: {error}")),
        };
        if self.is_busy.swap(true, Ordering::AcqRel) {
            return reply.fail("another link is being measured from here: ask again");
        }
        let (clients, busy) = (self.clients.clone(), Busy(self.is_busy.clone()));
        let thread = std::thread::Builder::new().name("distribute-doctor".to_owned());
        // Without a thread, the reply is dropped, which says so.
        let _ = thread.spawn(move || {
            let patience = Duration::from_millis(probe.patience_ms).min(LONGEST);
            let state: State = match reach(&clients, &probe.probe, patience) {
                Ok(client) => exchange(&client, patience),
                Err(state) => state,
            };
            drop(busy);
            match serde_json::to_vec(&state) {
                Ok(text) => reply.answer("", text),
                Err(error) => reply.fail(format!("the link cannot be told: {error}")),
            }
        });
    }
}

/// Lets the next measurement begin when it is dropped, also by a panic.
struct Busy(Arc<AtomicBool>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
