//! A follower that starts asks for its copy: a connection that was lost without a word looks alive from the other side.

use super::message::{Answer, Ask};
use crate::REPLICAS;
use crate::store::End;
use distribute_cluster::{Deadline, Task};
use distribute_server::ClientBuilder;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The time for which it asks. A server that starts later connects by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time that one attempt takes at most, and that until the next.
const ATTEMPT: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(50);

/// Asks a server for the copy that this process has not, until it is dropped or answered.
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
            // Whatever it answers, it knows of this process now.
            while !deadline.has_passed() && ask(&clients, &of, run).is_none() && !ended.wait(AGAIN) {}
        };
        let thread = Builder::new().name("distribute-copy".to_owned()).spawn(asks)?;
        Ok(Self { end, thread: Some(thread) })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.end.come();
        // It waits for one attempt at most.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Asks once, and returns the answer, if one came.
fn ask(clients: &ClientBuilder, of: &Task, run: u64) -> Option<Answer> {
    let client = clients.connect(of, ATTEMPT).ok()?;
    let message = Ask::Copy { server: of.index as u64, run }.encode().ok()?;
    Answer::decode(client.call(REPLICAS, message, ATTEMPT).ok()?).ok()
}
