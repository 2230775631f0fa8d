//! A cluster of processes, each of which may be killed and restarted.

use distribute::params::FixedShardsPartitioner;
use distribute::{
    ClusterSpec, Job, ParameterServerBuilder, ParameterServerStrategy, Serve, SimpleClusterResolver, Task,
};
use distribute_cluster::Deadline;
use distribute_testing::Port;
use distribute_testing::child::{Killed, command, part};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

pub const MINUTE: Duration = Duration::from_secs(60);
/// The name of the file with the error output of chiefs.
const ERRORS: &str = "errors";

/// Returns the number of kills: `DISTRIBUTE_TEST_KILLS`, or the default.
pub fn kills(default: usize) -> usize {
    std::env::var("DISTRIBUTE_TEST_KILLS").map_or(default, |kills| kills.parse().unwrap())
}

pub struct Cluster {
    spec: ClusterSpec,
    test: &'static str,
    folder: tempfile::TempDir,
    tasks: Vec<(Task, Option<Killed>)>,
    /// The lines that the chief prints, if it is a process.
    said: Option<mpsc::Receiver<String>>,
    _ports: Vec<Port>,
}

impl Cluster {
    /// Starts workers and servers. The chief is the test.
    pub fn start(test: &'static str, workers: usize, servers: usize) -> Self {
        Self::start_with(test, workers, servers, &[])
    }

    /// Starts a cluster whose chief is also a process, or that has an evaluator that never joins.
    pub fn start_with(test: &'static str, workers: usize, servers: usize, others: &[Job]) -> Self {
        let ports: Vec<_> = (0..workers + servers + 1).map(|_| Port::reserve()).collect();
        let addresses: Vec<_> = ports.iter().map(|port| port.address().to_string()).collect();
        let (of_workers, rest) = addresses.split_at(workers);
        let (of_servers, of_nobody) = rest.split_at(servers);
        let mut jobs = vec![("worker", of_workers.to_vec()), ("ps", of_servers.to_vec())];
        if others.contains(&Job::Evaluator) {
            jobs.push(("evaluator", of_nobody.to_vec()));
        }
        let spec = ClusterSpec::from_lists(jobs).unwrap();
        let served = spec.tasks().map(|(task, _)| task).filter(|task| task.job != Job::Evaluator);
        let chief = others.contains(&Job::Chief).then(|| Job::Chief.task(0));
        let tasks = served.chain(chief).map(|task| (task, None)).collect();
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Self { spec, test, folder, tasks, said: None, _ports: ports };
        (0..cluster.tasks.len()).for_each(|at| cluster.begin(at));
        cluster
    }

    fn begin(&mut self, at: usize) {
        let (task, process) = &mut self.tasks[at];
        let mut command = command(self.test, &format!("{} {}", task.job, task.index));
        command.env("CLUSTER", self.spec.to_string()).env("FOLDER", self.folder.path());
        if task.job == Job::Chief {
            let errors = File::options().create(true).append(true).open(self.folder.path().join(ERRORS));
            let mut child = command.stderr(errors.unwrap()).spawn().unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(std::io::Result::ok);
            let (say, said) = mpsc::channel();
            std::thread::spawn(move || lines.for_each(|line| _ = say.send(line)));
            self.said = Some(said);
            *process = Some(Killed(child));
        } else {
            // Nobody reads what they write.
            command.stdout(Stdio::null()).stderr(Stdio::null());
            *process = Some(Killed(command.spawn().unwrap()));
        }
    }

    /// Returns all tasks that are processes.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().map(|(task, _)| task)
    }

    /// Kills a task and restarts it.
    pub fn kill(&mut self, at: usize) {
        self.tasks[at].1 = None;
        self.begin(at);
    }

    /// Kills a task without a restart.
    pub fn end(&mut self, at: usize) {
        self.tasks[at].1 = None;
    }

    /// Returns the next line of the chief that begins with `start`, or `None` after that time.
    ///
    /// # Panics
    /// Panics if the chief has exited instead.
    pub fn hears(&self, start: &str, within: Duration) -> Option<String> {
        let (said, mut deadline) = (self.said.as_ref().unwrap(), Deadline::after(within));
        loop {
            let slice = deadline.look();
            match said.recv_timeout(slice) {
                Ok(line) if line.starts_with(start) => return Some(line),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) if slice.is_zero() => return None,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("the chief has ended: {}", self.errors()),
            }
        }
    }

    /// Returns the error output of the chief.
    fn errors(&self) -> String {
        std::fs::read_to_string(self.folder.path().join(ERRORS)).unwrap_or_default()
    }

    /// Returns the folder for files that outlive tasks.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn strategy(&self) -> ParameterServerStrategy {
        strategy(self.spec.clone())
    }

    /// Returns the settings of the chief's strategy.
    pub fn settings(&self) -> ParameterServerBuilder {
        settings(self.spec.clone())
    }

    /// Waits until all processes have exited with code 0.
    pub fn has_ended(mut self) {
        let errors = self.errors();
        for (task, process) in &mut self.tasks {
            let Killed(child) = process.as_mut().unwrap();
            let mut deadline = Deadline::after(MINUTE);
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                assert!(!deadline.look().is_zero(), "{task} has not ended");
                std::thread::park_timeout(Duration::from_millis(5));
            };
            assert!(status.success(), "{task}: {status}: {errors}");
        }
    }
}

/// Runs the task if a test started this process for one. The chief runs `chief`.
pub fn is_task_or(chief: impl FnOnce(ClusterSpec, &Path)) -> bool {
    let Some(part) = part() else { return false };
    let (job, index) = part.split_once(' ').unwrap();
    let spec: ClusterSpec = std::env::var("CLUSTER").unwrap().parse().unwrap();
    let folder = std::env::var("FOLDER").unwrap();
    let task = Task::new(job, index.parse::<usize>().unwrap());
    if task.job == Job::Chief {
        chief(spec, Path::new(&folder));
    } else {
        let resolver = SimpleClusterResolver::new(spec).with_task(task);
        assert!(Serve::new().folder(Path::new(&folder)).run(&resolver).unwrap());
    }
    true
}

/// Does the same if the chief is the test.
pub fn is_task() -> bool {
    is_task_or(|_, _| ())
}

pub fn strategy(spec: ClusterSpec) -> ParameterServerStrategy {
    settings(spec).build().unwrap()
}

fn settings(spec: ClusterSpec) -> ParameterServerBuilder {
    let resolver = SimpleClusterResolver::new(spec).with_task(Job::Chief.task(0));
    let partitioner = FixedShardsPartitioner::new(2).unwrap();
    ParameterServerStrategy::builder().cluster_resolver(resolver).partitioner(partitioner)
}
