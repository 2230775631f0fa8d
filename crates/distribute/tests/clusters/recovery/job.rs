//! The workers of a training as processes, which are started, disturbed, and read line by line.

use crate::recovery::disk;
use crate::recovery::program::{Place, Task};
use crate::recovery::relay::Relay;
use crate::recovery::slow_link::SlowLink;
use crate::recovery::slowness::{Slowness, Work};
use crate::recovery::worker::Life;
use distribute::cluster::{Deadline, Stopwatch};
use distribute_testing::{Port, child};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tempfile::TempDir;

pub const WORKERS: usize = 3;

/// The timeout for an expected line.
const PATIENCE: Duration = Duration::from_secs(50);

/// A line that a worker has printed.
#[derive(Clone, Debug)]
pub struct Said {
    /// The time at which the line was read, since the start of the job.
    pub at: Duration,
    pub worker: usize,
    pub line: String,
}

/// A worker's process.
struct Process {
    child: child::Killed,
    stdin: ChildStdin,
}

/// The processes of a job, which are killed on drop.
pub struct Job {
    /// The test that runs a worker in a separate process.
    test: &'static str,
    tasks: Vec<Task>,
    processes: Vec<Option<Process>>,
    clock: Stopwatch,
    say: Sender<Said>,
    said: Receiver<Said>,
    /// All lines that workers have printed so far.
    heard: Vec<Said>,
    folder: TempDir,
    /// The ports on which workers listen.
    ports: Vec<Port>,
    /// The network of the workers, if it is not that of this machine.
    link: Option<SlowLink>,
}

impl Job {
    /// Creates a job without processes. It has its own folder for checkpoints.
    pub fn new(test: &'static str) -> Self {
        Self::with_spares(test, 0)
    }

    /// Creates a job without processes, with the given number of spares in addition to the workers.
    pub fn with_spares(test: &'static str, spares: usize) -> Self {
        Self::with_workers(test, WORKERS, spares)
    }

    /// Creates a job without processes, with the given numbers of workers and spares.
    pub fn with_workers(test: &'static str, workers: usize, spares: usize) -> Self {
        let all = workers + spares;
        let folder = tempfile::tempdir().unwrap();
        let port = Port::reserve();
        let task = |worker| Task {
            folder: Some(folder.path().into()),
            spares,
            ..Task::new(worker, all, port.number())
        };
        let (say, said) = channel();
        Self {
            test,
            tasks: (0..all).map(task).collect(),
            processes: (0..all).map(|_| None).collect(),
            clock: Stopwatch::start(),
            say,
            said,
            heard: Vec::new(),
            ports: vec![port],
            folder,
            link: None,
        }
    }

    /// Makes all tasks work in each step. The given worker is slow in some way.
    pub fn working(mut self, work: Work, slow: Option<(usize, Slowness)>) -> Self {
        for task in &mut self.tasks {
            let slowness = slow.filter(|(worker, _)| *worker == task.worker).map(|(_, slowness)| slowness);
            task.work = Some(Work { slowness, ..work });
        }
        self
    }

    /// Links the workers by a network with a slow link.
    pub fn over(mut self, link: SlowLink) -> Self {
        let addresses = link.addresses(self.tasks.len());
        self.tasks.iter_mut().for_each(|task| {
            task.addresses.clone_from(&addresses);
            task.sockets = true;
        });
        self.link = Some(link);
        self
    }

    /// Makes SIGTERM a notice to the job's workers.
    pub fn watching(mut self) -> Self {
        self.tasks.iter_mut().for_each(|task| task.watches = true);
        self
    }

    /// Makes the chief save in the background.
    pub fn saving_in_background(mut self) -> Self {
        self.tasks.iter_mut().for_each(|task| task.in_background = true);
        self
    }

    /// Makes the workers share the given number of logical replicas, and continue without a lost worker after one
    /// second.
    pub fn logical(mut self, replicas: usize) -> Self {
        self.tasks.iter_mut().for_each(|task| {
            (task.logical, task.shrink_after) = (Some(replicas), Duration::from_secs(1));
        });
        self
    }

    /// Lets workers join and leave, down to the given minimum.
    pub fn elastic(mut self, least: usize) -> Self {
        self.tasks.iter_mut().for_each(|task| task.least = Some(least));
        self
    }

    /// Makes the other workers continue without a lost worker after one second.
    pub fn impatient(mut self) -> Self {
        self.tasks.iter_mut().for_each(|task| task.shrink_after = Duration::from_secs(1));
        self
    }

    /// Routes the messages between the last worker and the given one through a relay.
    pub fn relay(&mut self, worker: usize) -> Relay {
        self.tasks.iter_mut().for_each(|task| task.sockets = true);
        if worker == 0 {
            let relay = Relay::to(self.tasks[0].addresses[0].parse().unwrap());
            self.tasks[WORKERS - 1].addresses[0] = relay.address.to_string();
            return relay;
        }
        let port = Port::reserve();
        let relay = Relay::to(port.address());
        self.tasks[worker].listen = Some(port.address().to_string());
        self.ports.push(port);
        self.tasks.iter_mut().for_each(|task| task.addresses[worker] = relay.address.to_string());
        relay
    }

    pub fn test(&self) -> &'static str {
        self.test
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Sets the time that a worker waits for the others when it starts.
    pub fn patience(&mut self, worker: usize, patience: Duration) {
        self.tasks[worker].patience = patience;
    }

    /// Starts all workers, and the spares.
    pub fn start_all(&mut self, stop_at: Option<(usize, Place)>) {
        for worker in 0..self.tasks.len() {
            let place = stop_at.filter(|(stopped, _)| *stopped == worker).map(|(_, place)| place);
            self.start(worker, place);
        }
    }

    /// Starts a worker, which stops at the given point.
    pub fn start(&mut self, worker: usize, stop_at: Option<Place>) {
        let life = Life { task: self.tasks[worker].clone(), stop_at };
        let command = child::command(self.test, &serde_json::to_string(&life).unwrap());
        let mut command = if worker == 0 { disk::small(command, self.folder.path()) } else { command };
        if let Some(link) = &self.link {
            command = link.within(worker, &command);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = child::Killed(command.spawn().unwrap());
        let (pipe, stdin) = (child.0.stderr.take().unwrap(), child.0.stdin.take().unwrap());
        let (say, clock) = (self.say.clone(), self.clock);
        std::thread::spawn(move || {
            let lines = BufReader::new(pipe).lines().map_while(Result::ok);
            lines.map(|line| Said { at: clock.elapsed(), worker, line }).try_for_each(|said| say.send(said))
        });
        self.processes[worker] = Some(Process { child, stdin });
    }

    fn process(&mut self, worker: usize) -> &mut Process {
        self.processes[worker].as_mut().unwrap()
    }

    /// Sends a line to a worker.
    pub fn send(&mut self, worker: usize, what: &str) {
        self.process(worker).stdin.write_all(format!("{what}\n").as_bytes()).unwrap();
    }

    pub fn signal(&mut self, worker: usize, signal: Signal) {
        kill_process(self.pid(worker), signal).unwrap();
    }

    pub fn pid(&mut self, worker: usize) -> Pid {
        Pid::from_raw(self.process(worker).child.0.id() as i32).unwrap()
    }

    /// Waits until a worker has exited because of a signal or an error.
    pub fn wait_for_exit(&mut self, worker: usize) {
        let status = self.process(worker).child.0.wait().unwrap();
        assert!(!status.success(), "worker {worker}: {status}\n{}", self.story());
    }

    /// Waits until a worker has exited successfully.
    pub fn wait_until_ended(&mut self, worker: usize) {
        let status = self.process(worker).child.0.wait().unwrap();
        assert!(status.success(), "worker {worker}: {status}\n{}", self.story());
    }

    /// Waits for the first line of a worker after the time `since` that contains `text`, and returns it.
    pub fn wait_for_line(&mut self, worker: usize, text: &str, since: Duration) -> Said {
        self.wait_for_any(&[(worker, text)], since)
    }

    /// Waits for the first line after the time `since` that contains the text given for its worker, and returns it.
    pub fn wait_for_any(&mut self, lines: &[(usize, &str)], since: Duration) -> Said {
        let until = Deadline::after(PATIENCE);
        let mut next = 0;
        loop {
            let fits = |said: &&Said| {
                let is_of =
                    |(worker, text): &(usize, &str)| said.worker == *worker && said.line.contains(text);
                said.at >= since && lines.iter().any(is_of)
            };
            if let Some(found) = self.heard[next..].iter().find(fits) {
                return found.clone();
            }
            next = self.heard.len();
            match self.said.recv_timeout(until.remaining()) {
                Ok(said) => self.heard.push(said),
                Err(_) => panic!("no worker says one of {lines:?}:\n{}", self.story()),
            }
        }
    }

    /// Returns the lines that a worker has printed so far and that contain `text`.
    pub fn lines(&mut self, worker: usize, text: &str) -> Vec<String> {
        self.heard.extend(self.said.try_iter());
        let of = |said: &&Said| said.worker == worker && said.line.contains(text);
        self.heard.iter().filter(of).map(|said| said.line.clone()).collect()
    }

    /// Reads lines until the time `then` since the start of the job.
    pub fn listen_until(&mut self, then: Duration) {
        let until = Deadline::after(then.saturating_sub(self.now()));
        while let Ok(said) = self.said.recv_timeout(until.remaining()) {
            self.heard.push(said);
        }
    }

    /// Returns all lines so far, except those about calls, for the message of a failed test.
    pub fn story(&mut self) -> String {
        self.heard.extend(self.said.try_iter());
        let line =
            |said: &Said| format!("{:8.3} worker {} │ {}\n", said.at.as_secs_f64(), said.worker, said.line);
        self.heard.iter().filter(|said| !said.line.contains(", call ")).map(line).collect()
    }
}
