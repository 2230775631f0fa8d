//! Work without Python's lock, on threads that are kept, and waits that Ctrl-C ends.

use crate::errors::{Error, Result};
use pyo3::prelude::*;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::ThreadId;
use std::time::Duration;

/// The interval at which a wait checks for signals.
const SLICE: Duration = Duration::from_millis(50);

/// The maximum number of idle threads that are kept for later work.
const KEPT: usize = 16;

/// The time without work after which an idle thread ends.
const IDLE_TIME: Duration = Duration::from_secs(60);

type Work = Box<dyn FnOnce() + Send>;

/// The threads that have no work.
static IDLE: Mutex<Idle> = Mutex::new(Idle { process: 0, threads: Vec::new() });

/// The idle threads of one process. A fork does not copy them.
struct Idle {
    process: u32,
    threads: Vec<(ThreadId, Sender<Work>)>,
}

impl Idle {
    /// Returns the idle threads of this process. After a fork, there are none.
    fn of_this_process(&mut self) -> &mut Vec<(ThreadId, Sender<Work>)> {
        let process = std::process::id();
        if self.process != process {
            *self = Self { process, threads: Vec::new() };
        }
        &mut self.threads
    }
}

/// Gives work to an idle thread, or to a new one if none is idle.
///
/// # Errors
/// Returns the system's error if a new thread cannot be started.
fn start(work: Work) -> std::io::Result<()> {
    // A process may be forked while another thread holds the lock, which is then held for ever.
    if let Ok(mut idle) = IDLE.try_lock()
        && let Some((_, thread)) = idle.of_this_process().pop()
    {
        // It receives until it has left the list.
        let _ = thread.send(work);
        return Ok(());
    }
    let (sender, receiver) = channel::<Work>();
    let serve = move || {
        work();
        while become_idle(&sender)
            && let Some(work) = next_work(&receiver)
        {
            work();
        }
    };
    std::thread::Builder::new().name("distribute-client".into()).spawn(serve).map(drop)
}

/// Adds this thread to the idle ones, unless enough are kept. Returns whether it was added.
fn become_idle(sender: &Sender<Work>) -> bool {
    let Ok(mut idle) = IDLE.try_lock() else { return false };
    let threads = idle.of_this_process();
    let kept = threads.len() < KEPT;
    if kept {
        threads.push((std::thread::current().id(), sender.clone()));
    }
    kept
}

/// Waits for the next work. Returns `None` if there was none for [`IDLE_TIME`], after this thread was removed from the
/// idle ones.
fn next_work(receiver: &Receiver<Work>) -> Option<Work> {
    loop {
        if let Ok(work) = receiver.recv_timeout(IDLE_TIME) {
            return Some(work);
        }
        // If it is not among them, work is about to arrive.
        if let Ok(mut idle) = IDLE.try_lock() {
            let (threads, this) = (idle.of_this_process(), std::thread::current().id());
            if let Some(at) = threads.iter().position(|(thread, _)| *thread == this) {
                threads.swap_remove(at);
                return None;
            }
        }
    }
}

/// Does `work` on another thread, without Python's lock, and waits for its result. A signal handler that raises an
/// exception, such as that of Ctrl-C, ends the wait. The work itself continues until its deadline.
pub fn without_lock<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let (done, result) = sync_channel(1);
    start(Box::new(move || drop(done.send(work()))))?;
    // Only one thread at a time waits for this channel, but Python requires that others could.
    let mut result = Mutex::new(result);
    loop {
        let received = py.detach(|| match result.get_mut() {
            Ok(result) => result.recv_timeout(SLICE),
            Err(_) => Err(RecvTimeoutError::Disconnected),
        });
        match received {
            Ok(result) => return result.map_err(|error| error.raise(py)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::Other("a thread of the client has panicked".into()).raise(py));
            }
        }
    }
}
