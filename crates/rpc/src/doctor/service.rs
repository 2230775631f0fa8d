//! The service of every server that measures links.

use super::link::State;
use super::measure::{NAME, exchange, reach};
use crate::client::ClientBuilder;
use crate::service::{Call, Reply, Service};
use distribute_cluster::Task;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A request to measure the link to another task. Calls with other heads are echoed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) struct Probe {
    /// The other task.
    pub probe: Task,
    /// The maximum time until the server is up, and of each call, in milliseconds.
    pub patience_ms: u64,
}

/// The maximum time for a measurement to connect, regardless of the request.
const LONGEST: Duration = Duration::from_secs(60);

/// A service that echoes messages, and measures links to the other tasks of its cluster, one at a time.
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
        // Without a thread, the reply is dropped, which notifies the caller.
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

/// A guard that permits the next measurement when it is dropped, even by a panic.
struct Busy(Arc<AtomicBool>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
