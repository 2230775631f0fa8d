//! Three processes that train, with the fault of one cell of the matrix.

use crate::recovery::cell::{Cell, Fault, When};
use crate::recovery::disk::TMPFS;
use crate::recovery::figures::Figures;
use crate::recovery::job::{Job, WORKERS};
use crate::recovery::program::Place;
use crate::recovery::relay::Relay;
use crate::recovery::worker::{FULL, GO, STEP};
use distribute::checkpoint::CheckpointManager;
use rustix::process::Signal;
use std::sync::OnceLock;
use std::time::Duration;

/// The time for which a worker is suspended.
const STOPPED: Duration = Duration::from_secs(10);

/// A running cell of the matrix.
pub struct Disturbed {
    cell: Cell,
    job: Job,
    relay: Option<Relay>,
}

impl Disturbed {
    /// Starts all workers, and waits until they reach the point of the fault.
    pub fn start(cell: Cell, test: &'static str) -> Self {
        let mut job = Job::new(test);
        if cell.fault == Fault::Noticed {
            job = job.watching();
        }
        if cell.when == When::SavingInBackground {
            job = job.saving_in_background();
        }
        let relay = cell.fault.is_of_link().then(|| job.relay(cell.worker));
        let (stopped, place) = cell.stop_at();
        if matches!(cell.when, When::Recovering | When::TakingOver) {
            job.start_all(Some((stopped, Place::Between)));
            job.wait_for_line(stopped, "at Between", Duration::ZERO);
            job.signal(stopped, Signal::KILL);
            job.wait_for_exit(stopped);
            job.start(stopped, Some(place));
            for other in (0..WORKERS).filter(|other| *other != stopped) {
                job.wait_for_line(other, "all have re-formed the group, as generation 2", Duration::ZERO);
            }
        } else {
            job.start_all(Some((stopped, place)));
        }
        job.wait_for_line(stopped, &format!("at {place:?}"), Duration::ZERO);
        Self { cell, job, relay }
    }

    pub fn disturb(&mut self) -> Figures {
        match self.cell.fault {
            Fault::Killed => self.kill(Signal::KILL),
            Fault::Terminated => self.kill(Signal::TERM),
            Fault::Stopped => self.stop(),
            Fault::Noticed => self.notice(),
            Fault::LinkClosed | Fault::LinkSilent => self.unlink(),
            Fault::DiskFull => self.fill(),
        }
    }

    /// Lets the worker that has stopped continue, if it still exists.
    fn go_on(&mut self) {
        let (stopped, _) = self.cell.stop_at();
        self.job.send(stopped, GO);
    }

    fn kill(&mut self, signal: Signal) -> Figures {
        let (worker, job) = (self.cell.worker, &mut self.job);
        let fault = job.now();
        job.signal(worker, signal);
        if self.cell.stop_at().0 != worker {
            self.go_on();
        }
        self.job.wait_for_exit(worker);
        let restarted = self.job.now();
        self.job.start(worker, None);
        let noticed = self.wait_for_detection(fault);
        let start = self.job.wait_for_line(worker, "started", restarted).at - restarted;
        let next_step = self.next_step(fault + noticed) - fault;
        let next_step = next_step.saturating_sub(start);
        Figures { noticed: Some(noticed), next_step: Some(next_step), start: Some(start), saved: None }
    }

    fn stop(&mut self) -> Figures {
        let worker = self.cell.worker;
        let fault = self.job.now();
        self.job.signal(worker, Signal::STOP);
        // If the others wait for another worker, that worker continues.
        if self.cell.stop_at().0 != worker {
            self.go_on();
        }
        let noticed = self.wait_for_detection(fault);
        self.job.listen_until(fault + STOPPED);
        let woken = self.job.now();
        self.job.signal(worker, Signal::CONT);
        if self.cell.stop_at().0 == worker {
            self.go_on();
        }
        let next_step = self.next_step(woken) - woken;
        Figures { noticed: Some(noticed), next_step: Some(next_step), ..Figures::default() }
    }

    fn unlink(&mut self) -> Figures {
        let relay = self.relay.as_ref().unwrap();
        let fault = self.job.now();
        match self.cell.fault {
            Fault::LinkClosed => relay.close(),
            _ => relay.fall_silent(),
        }
        self.go_on();
        let noticed = self.wait_for_detection(fault);
        let next_step = self.next_step(fault + noticed) - fault;
        Figures { noticed: Some(noticed), next_step: Some(next_step), ..Figures::default() }
    }

    /// Sends SIGTERM to one worker: all save, exit, and are restarted.
    fn notice(&mut self) -> Figures {
        let worker = self.cell.worker;
        let fault = self.job.now();
        self.job.signal(worker, Signal::TERM);
        self.job.wait_for_line(worker, "SIGTERM: ", fault);
        self.go_on();
        let saved = self.job.wait_for_line(0, "after the notice", fault);
        let to = format!("after the notice to worker {worker} (task worker {worker} at 127.0.0.1:");
        assert!(saved.line.contains(&to), "{}", saved.line);
        (0..WORKERS).for_each(|worker| drop(self.job.wait_for_line(worker, "preempted", fault)));
        (0..WORKERS).for_each(|worker| self.job.wait_until_ended(worker));
        self.job.start_all(None);
        Figures { saved: Some(saved.at - fault), ..Figures::default() }
    }

    /// Fills the disk of the worker, so that a save of the chief fails. Nothing else fails.
    fn fill(&mut self) -> Figures {
        let worker = self.cell.worker;
        let fault = self.job.now();
        self.job.send(worker, FULL);
        self.job.wait_for_line(worker, "full", fault);
        self.go_on();
        if worker != 0 {
            // It writes nothing.
            return Figures::default();
        }
        let error =
            if std::env::var_os(TMPFS).is_some() { "No space left on device" } else { "File too large" };
        for other in 0..WORKERS {
            let said =
                self.job.wait_for_line(other, "not saved: worker 0 (task worker 0 at 127.0.0.1:", fault).line;
            let named = said.contains(self.job.folder().to_str().unwrap()) && said.contains("ckpt-00000");
            assert!(named && said.contains(error), "worker {other}: {said}");
        }
        let left = self.job.wait_for_line(0, "on disk: ", fault).line;
        let expected = match self.cell.when {
            When::BeforeFirstStep => "on disk: ",
            When::InAllReduce => "on disk: ckpt-000001 ckpt-000002",
            _ => "on disk: ckpt-000001",
        };
        assert_eq!(left, expected);
        Figures::default()
    }

    /// Waits until all other workers have named the culprit. Returns the time that this took.
    fn wait_for_detection(&mut self, fault: Duration) -> Duration {
        let (cell, mut last) = (self.cell, fault);
        let lost = (!cell.fault.is_of_link()).then_some(cell.worker);
        for other in (0..WORKERS).filter(|other| lost != Some(*other)) {
            let said = self.job.wait_for_line(other, "the training stops after step ", fault);
            let named =
                cell.culprits().iter().any(|culprit| said.line.contains(&format!("worker {culprit} ")));
            assert!(named, "{cell:?}: {}\n{}", said.line, self.job.story());
            last = last.max(said.at);
        }
        last - fault
    }

    /// Waits until all workers have made a step, or continue to the end if all steps have been made. Returns the time
    /// of the last one.
    fn next_step(&mut self, since: Duration) -> Duration {
        let ending = self.cell.when == When::ClosureEnds;
        let text = if ending { "the training resumes after step " } else { STEP };
        // A replacement that starts when the closure has ended has no step to resume.
        let making = (0..WORKERS).filter(|worker| !(ending && *worker == self.cell.worker));
        making.map(|worker| self.job.wait_for_line(worker, text, since).at).max().unwrap()
    }

    /// Waits for the end. The weights and checkpoints must be those of a training without a fault.
    pub fn end(&mut self) {
        let cell = self.cell;
        let undisturbed = undisturbed(self.job.test());
        for worker in 0..WORKERS {
            let said = self.job.wait_for_line(worker, "trained ", Duration::ZERO).line;
            assert!(said.contains(&undisturbed), "{cell:?}: worker {worker}: {said}\n{}", self.job.story());
        }
        (0..WORKERS).for_each(|worker| self.job.wait_until_ended(worker));
        if std::env::var_os(TMPFS).is_none() {
            let manager = CheckpointManager::new(self.job.folder()).unwrap();
            assert!(manager.latest().unwrap().is_some());
            let names = std::fs::read_dir(self.job.folder()).unwrap();
            let partial = names
                .map(|entry| entry.unwrap().file_name())
                .find(|name| name.to_string_lossy().contains(".part"));
            assert_eq!(partial, None, "{cell:?}");
        }
    }
}

/// Returns the checksum of the weights of a training without a fault.
pub fn undisturbed(test: &'static str) -> String {
    static SHA256: OnceLock<String> = OnceLock::new();
    let train = || {
        let mut job = Job::new(test);
        job.start_all(None);
        let ended = job.wait_for_line(0, "trained ", Duration::ZERO).line;
        (0..WORKERS).for_each(|worker| job.wait_until_ended(worker));
        ended.split(' ').nth(1).unwrap().to_owned()
    };
    SHA256.get_or_init(train).clone()
}
