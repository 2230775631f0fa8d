//! Launches of small shell scripts, and their output.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use distribute_launch::{Deadline, Launch, Layout, Outcome, Output, Plan, Running, Stream, Task};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

/// A timeout that is longer than any test takes, and shorter than the watchdog's.
pub const PATIENCE: Duration = Duration::from_secs(50);

/// The source of a line: a task and its stream, or the launcher itself.
type Speaker = Option<(Task, Stream)>;

/// The output of a job.
#[derive(Clone, Default)]
pub struct Said(Arc<Mutex<Vec<(Speaker, String)>>>);

impl Said {
    /// Collects the output of a launch.
    pub fn keep(&self, launch: Launch) -> Launch {
        let said = self.0.clone();
        launch.output(move |output| {
            said.lock().unwrap().push(match output {
                Output::Line { task, stream, text, .. } => {
                    (Some((task.clone(), stream)), String::from_utf8_lossy(text).into_owned())
                }
                Output::Notice(notice) => (None, notice.to_string()),
            });
        })
    }

    /// Returns the lines of one task, from both streams.
    pub fn of(&self, task: &Task) -> Vec<String> {
        let said = self.0.lock().unwrap();
        let own = said.iter().filter(|(from, _)| from.as_ref().is_some_and(|(from, _)| from == task));
        own.map(|(_, text)| text.clone()).collect()
    }

    /// Returns the lines of one stream.
    pub fn on(&self, wanted: Stream) -> Vec<String> {
        let said = self.0.lock().unwrap();
        let own = said.iter().filter(|(from, _)| from.as_ref().is_some_and(|(_, stream)| *stream == wanted));
        own.map(|(_, text)| text.clone()).collect()
    }

    /// Returns the messages of the launcher itself.
    pub fn notices(&self) -> Vec<String> {
        let said = self.0.lock().unwrap();
        said.iter().filter(|(from, _)| from.is_none()).map(|(_, text)| text.clone()).collect()
    }

    /// Returns all output.
    pub fn all(&self) -> String {
        self.0.lock().unwrap().iter().map(|(_, text)| format!("{text}\n")).collect()
    }
}

/// Creates a launch of a script on each task, and collects its output.
pub fn script(layout: &Layout, script: &str) -> (Launch, Said) {
    let said = Said::default();
    let plan = Plan::new(layout).unwrap();
    let launch = Launch::new(plan).command("sh", ["-c", script]).backoff(Duration::from_millis(1));
    (said.keep(launch), said)
}

pub fn ended(mut running: Running) -> Outcome {
    running.wait(Deadline::after(PATIENCE)).unwrap()
}

/// A named pipe. Processes of a script hold it open with `exec 9>"$PIPE"`, so that their exit is noticed.
pub struct Fifo {
    folder: TempDir,
}

impl Fifo {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = Command::new("mkfifo").arg(folder.path().join("pipe")).status().unwrap();
        assert!(made.success());
        Self { folder }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("pipe")
    }

    /// Releases this number of scripts, each of which reads a line of the pipe. Unread lines stay in the pipe while
    /// the file is open.
    pub fn release(&self, scripts: usize) -> File {
        let mut pipe = File::options().write(true).open(self.path()).unwrap();
        pipe.write_all(&vec![b'\n'; scripts]).unwrap();
        pipe
    }

    /// Reads the pipe on a thread.
    pub fn read(&self) -> Heard {
        let (line, lines) = channel();
        let path = self.path();
        std::thread::spawn(move || {
            for text in BufReader::new(File::open(path).unwrap()).lines() {
                let _ = line.send(text.unwrap());
            }
        });
        Heard(lines)
    }
}

/// The lines that are written into a pipe.
pub struct Heard(Receiver<String>);

impl Heard {
    /// Returns the next line.
    pub fn line(&self) -> String {
        self.0.recv_timeout(PATIENCE).expect("nobody writes into the pipe")
    }

    /// Returns the next lines, sorted.
    pub fn lines(&self, count: usize) -> Vec<String> {
        let mut lines: Vec<_> = (0..count).map(|_| self.line()).collect();
        lines.sort();
        lines
    }

    /// Waits until every process that holds the pipe has exited. Returns the lines until then.
    pub fn end(&self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.0.recv_timeout(PATIENCE) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => return lines,
                Err(RecvTimeoutError::Timeout) => panic!("a process is left: {lines:?}"),
            }
        }
    }
}
