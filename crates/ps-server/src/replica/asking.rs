//! A request of a restarted follower for its copy, because a connection that was lost silently looks alive from
//! the other side.

use super::message::{Answer, Ask};
use crate::REPLICAS;
use crate::store::End;
use distribute_cluster::{Deadline, Task};
use distribute_rpc::ClientBuilder;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The time for which the follower sends requests. A server that starts later connects on its own.
const PATIENCE: Duration = Duration::from_secs(60);

/// The timeout of one attempt, and the delay before the next one.
const ATTEMPT: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(50);

/// A thread that requests the missing copy from a server, until it gets a response or is dropped.
#[derive(Debug)]
pub(crate) struct Asking {
    end: Arc<End>,
    thread: Option<JoinHandle<()>>,
}

impl Asking {
    pub fn start(clients: ClientBuilder, of: Task, run: u64) -> io::Result<Self> {
        let end = Arc::<End>::default();
        let ended = end.clone();
        let asks = move || {
            let deadline = Deadline::after(PATIENCE);
            // After any response, the server knows this process.
            while !deadline.has_passed() && ask(&clients, &of, run).is_none() && !ended.wait(AGAIN) {}
        };
        let thread = Builder::new().name("distribute-copy".to_owned()).spawn(asks)?;
        Ok(Self { end, thread: Some(thread) })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.end.come();
        // This waits for one attempt at most.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Sends one request, and returns the response, if there is one.
fn ask(clients: &ClientBuilder, of: &Task, run: u64) -> Option<Answer> {
    let client = clients.connect(of, ATTEMPT).ok()?;
    let message = Ask::Copy { server: of.index as u64, run }.encode().ok()?;
    Answer::decode(client.call(REPLICAS, message, ATTEMPT).ok()?).ok()
}
