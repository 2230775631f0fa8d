//! A worker as a process of its own. It says on standard error what it does, a line each, and does what it is told on
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

/// What a process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Life {
    pub task: Task,
    /// Where it says so, and waits until it is told to go on.
    pub stop_at: Option<Place>,
}

/// What a worker is told: to go on.
pub const GO: &str = "go";
/// That there is no room left on the disk, until a checkpoint could not be saved.
pub const FULL: &str = "full";

/// What it says behind each step.
pub const STEP: &str = "made a step";

/// The process. It runs a program, and says at its end what has come of it.
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

/// What has come of the program that most tests run.
pub fn trained(task: &Task, at: &At) -> Result<String> {
    let trained = program(task, at)?;
    Ok(if trained.preempted {
        "preempted".into()
    } else {
        format!("trained {} {}", trained.sha256, trained.generation)
    })
}

/// Until the test says so, whose watchdog is faster.
fn wait(gone: &Receiver<()>) {
    gone.recv_timeout(Duration::from_secs(100)).unwrap();
}

/// Does what it is told, on a thread.
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
