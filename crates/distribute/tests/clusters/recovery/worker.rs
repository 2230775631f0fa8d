//! A worker in a separate process. It reports its actions on standard error, one per line, and reads instructions from
//! standard input.

use crate::recovery::disk::Disk;
use crate::recovery::program::{At, Place, Task, program};
use distribute::Result;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, stdin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The task of a worker's process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Life {
    pub task: Task,
    /// The point at which the worker reports and waits until it may continue.
    pub stop_at: Option<Place>,
}

/// The instruction to continue.
pub const GO: &str = "go";
/// The instruction to fill the disk until a checkpoint could not be saved.
pub const FULL: &str = "full";

/// The line that a worker prints after each step.
pub const STEP: &str = "made a step";

/// The report after an update, while the others may wait in the next call of the same step.
pub const UPDATED: &str = "updated the weights";

/// Runs `program` in this process, and reports its result.
pub fn live(part: &str, program: impl FnOnce(&Task, &At) -> Result<String>) {
    eprintln!("started");
    let Life { task, stop_at } = serde_json::from_str(part).unwrap();
    let disk = Arc::new(Disk::new(task.worker, task.folder.as_deref()));
    let (go, gone) = channel();
    listen(go, disk.clone());
    let (stopped, gone) = (AtomicBool::new(false), Mutex::new(gone));
    let at: At = Arc::new(move |place| {
        match place {
            Place::Made => eprintln!("{STEP}"),
            Place::AfterUpdate => eprintln!("{UPDATED}"),
            Place::Ending => eprintln!("through"),
            Place::NotSaved => {
                disk.free();
                eprintln!("on disk: {}", disk.files());
            }
            _ => {}
        }
        if stop_at == Some(place) && !stopped.swap(true, Ordering::SeqCst) {
            eprintln!("at {place:?}");
            wait(&gone.lock().unwrap());
        }
        Ok(())
    });
    eprintln!("{}", program(&task, &at).unwrap_or_else(|error| panic!("{error}")));
}

/// Runs the program that most tests use, and returns its result as text.
pub fn trained(task: &Task, at: &At) -> Result<String> {
    let trained = program(task, at)?;
    Ok(if trained.preempted {
        "preempted".into()
    } else {
        format!("trained {} {}", trained.sha256, trained.generation)
    })
}

/// Waits for the instruction to continue. The test's watchdog has a shorter limit.
fn wait(gone: &Receiver<()>) {
    gone.recv_timeout(Duration::from_secs(100)).unwrap();
}

/// Starts a thread that reads the test's instructions from standard input and follows them.
fn listen(go: Sender<()>, disk: Arc<Disk>) {
    std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(std::result::Result::ok) {
            match line.as_str() {
                GO => go.send(()).unwrap(),
                FULL => {
                    disk.fill();
                    eprintln!("full");
                }
                _ => panic!("{line:?}"),
            }
        }
        // The test has ended.
        std::process::exit(1);
    });
}
