//! A follower that starts asks for its copy: a connection that was lost without a word looks alive from the other side.

use super::message::{Answer, Ask};
use crate::REPLICAS;
use distribute_cluster::{Deadline, Task};
use distribute_server::ClientBuilder;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long it asks. A server that starts later connects by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long one attempt takes at most, and how long until the next.
const ATTEMPT: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(50);

/// Asks a server for the copy that this process has not, until it is dropped or answered.
#[derive(Debug)]
pub(crate) struct Asking {
    end: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Asking {
    pub fn start(clients: ClientBuilder, of: Task, run: u64) -> io::Result<Self> {
        let end = Arc::<(Mutex<bool>, Condvar)>::default();
        let ended = end.clone();
        let ask = move || {
            let (is_over, changed) = &*ended;
            let deadline = Deadline::after(PATIENCE);
            while !deadline.has_passed() {
                let answer =
                    clients.connect(&of, ATTEMPT).map_err(|error| error.to_string()).and_then(|client| {
                        let message = Ask::Copy { server: of.index as u64, run }
                            .encode()
                            .map_err(|error| error.to_string())?;
                        client.call(REPLICAS, message, ATTEMPT).map_err(|error| error.to_string())
                    });
                // Whatever it answers, it knows of this process now.
                if answer.is_ok_and(|answer| Answer::decode(answer).is_ok()) {
                    return;
                }
                let is_over = is_over.lock().unwrap_or_else(PoisonError::into_inner);
                let waited = changed.wait_timeout_while(is_over, AGAIN, |is_over| !*is_over);
                if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                    return;
                }
            }
        };
        let thread = Builder::new().name("distribute-copy".to_owned()).spawn(ask)?;
        Ok(Self { end, thread: Some(thread) })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        *self.end.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.1.notify_all();
        // It waits for one attempt at most.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}
