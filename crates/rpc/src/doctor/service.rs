//! The service by which each server takes part in measuring links.

use super::link::State;
use super::measure::{NAME, exchange, reach};
use crate::client::ClientBuilder;
use crate::service::{Call, Reply, Service};
use distribute_cluster::Task;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A request to measure the link to another task. The head of a call contains the request as JSON. Calls whose head
/// does not begin with `{` are echoed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) struct Probe {
    /// The task at the other end of the link.
    pub probe: Task,
    /// The maximum time in milliseconds to reach the other task's server, and for each call to it.
    pub patience_ms: u64,
}

/// The upper limit on the request's `patience_ms`.
const LONGEST: Duration = Duration::from_secs(60);

/// A service that echoes messages, and measures links to the other tasks of its cluster. A request that arrives during
/// another measurement fails.
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
            Err(error) => return reply.fail(format!("the request to {NAME} cannot be decoded: {error}")),
        };
        if self.is_busy.swap(true, Ordering::AcqRel) {
            return reply.fail("another link is being measured from here: ask again");
        }
        let (clients, busy) = (self.clients.clone(), BusyGuard(self.is_busy.clone()));
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
                Err(error) => reply.fail(format!("the link cannot be encoded: {error}")),
            }
        });
    }
}

/// A guard for a measurement. Dropping it, even in a panic, permits the next measurement.
struct BusyGuard(Arc<AtomicBool>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
