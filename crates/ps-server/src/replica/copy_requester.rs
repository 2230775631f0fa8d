//! The request of a restarted follower for its copy of a server. The server may otherwise not notice that its
//! connection to the follower was lost.

use super::message::{FollowerRequest, FollowerResponse};
use crate::REPLICAS;
use crate::store::StopSignal;
use distribute_cluster::{Deadline, Task};
use distribute_rpc::ClientBuilder;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The time for which the follower sends requests. A server that starts later connects by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// The timeout of one attempt.
const ATTEMPT: Duration = Duration::from_secs(1);
/// The pause between two attempts.
const AGAIN: Duration = Duration::from_millis(50);

/// A thread that requests the missing copy from a server, until the server responds, a minute has passed, or this value
/// is dropped.
#[derive(Debug)]
pub(crate) struct CopyRequester {
    end: Arc<StopSignal>,
    thread: Option<JoinHandle<()>>,
}

impl CopyRequester {
    pub fn start(clients: ClientBuilder, of: Task, run: u64) -> io::Result<Self> {
        let end = Arc::<StopSignal>::default();
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

impl Drop for CopyRequester {
    fn drop(&mut self) {
        self.end.set();
        // This waits for one attempt at most.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Sends one request, and returns the response, if there is one.
fn ask(clients: &ClientBuilder, of: &Task, run: u64) -> Option<FollowerResponse> {
    let client = clients.connect(of, ATTEMPT).ok()?;
    let message = FollowerRequest::Copy { server: of.index as u64, run }.encode().ok()?;
    FollowerResponse::decode(client.call(REPLICAS, message, ATTEMPT).ok()?).ok()
}
