//! A cluster of processes, each of which may be killed and restarted.

use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterSpec, Deadline, Job, Task};
use distribute::parameter_server::ServeBuilder;
use distribute_testing::Port;
use distribute_testing::child::{Killed, command, part};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use tempfile::TempDir;

pub const MINUTE: Duration = Duration::from_secs(60);
/// The name of the file that receives the chief's error output.
const ERRORS: &str = "errors";

/// The environment variable with the cluster of a task.
const CLUSTER: &str = "CLUSTER";
const FOLDER: &str = "FOLDER";
const REPLICAS: &str = "REPLICAS";

/// The tasks and settings of a [`Cluster`].
pub struct ClusterBuilder {
    test: &'static str,
    workers: usize,
    servers: usize,
    starts_workers: bool,
    others: Vec<Job>,
    folder: Option<PathBuf>,
    is_in_memory: bool,
    replicates: bool,
}

impl ClusterBuilder {
    /// Adds a task of this job. A chief then is also a process. An evaluator never joins the cluster.
    pub fn with(mut self, job: Job) -> Self {
        self.others.push(job);
        self
    }

    /// Starts only the servers. The workers are still part of the cluster's description.
    pub fn without_workers(mut self) -> Self {
        self.starts_workers = false;
        self
    }

    /// Sets the folder of the tasks, instead of a temporary one.
    pub fn folder(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Keeps the variables of servers in memory only.
    pub fn in_memory(mut self) -> Self {
        self.is_in_memory = true;
        self
    }

    /// Replicates each server to another one.
    pub fn replicate_servers(mut self) -> Self {
        self.replicates = true;
        self
    }

    pub fn start(self) -> Cluster {
        let ports: Vec<_> = (0..=self.workers + self.servers).map(|_| Port::reserve()).collect();
        let addresses: Vec<_> = ports.iter().map(|port| port.address().to_string()).collect();
        let (of_workers, rest) = addresses.split_at(self.workers);
        let (of_servers, rest) = rest.split_at(self.servers);
        let mut jobs = vec![("worker", of_workers.to_vec()), ("ps", of_servers.to_vec())];
        if self.others.contains(&Job::Evaluator) {
            jobs.push(("evaluator", rest.to_vec()));
        }
        let spec = ClusterSpec::from_lists(jobs).unwrap();
        let is_started = |task: &Task| match task.job {
            Job::Evaluator => false,
            Job::Worker => self.starts_workers,
            _ => true,
        };
        let started = spec.tasks().map(|(task, _)| task).filter(is_started);
        let chief = self.others.contains(&Job::Chief).then(|| Job::Chief.task(0));
        let tasks = started.chain(chief).map(|task| (task, None)).collect();
        let temporary = self.folder.is_none().then(|| tempfile::tempdir().unwrap());
        let folder = self.folder.or_else(|| temporary.as_ref().map(|folder| folder.path().into())).unwrap();
        let mut cluster = Cluster {
            spec,
            test: self.test,
            folder,
            is_in_memory: self.is_in_memory,
            replicates: self.replicates,
            tasks,
            printed: None,
            _ports: ports,
            _temporary: temporary,
        };
        (0..cluster.tasks.len()).for_each(|at| cluster.start_task(at));
        cluster
    }
}

/// The tasks of a cluster as processes, which run the test that starts them. They are killed on drop.
pub struct Cluster {
    spec: ClusterSpec,
    test: &'static str,
    folder: PathBuf,
    is_in_memory: bool,
    replicates: bool,
    tasks: Vec<(Task, Option<Killed>)>,
    /// The lines that the chief prints, if it is a process.
    printed: Option<mpsc::Receiver<String>>,
    /// The reserved ports. No other process can get one while its task does not run.
    _ports: Vec<Port>,
    _temporary: Option<TempDir>,
}

impl Cluster {
    /// Returns a builder for a cluster of workers and servers. The chief is the test.
    pub fn builder(test: &'static str, workers: usize, servers: usize) -> ClusterBuilder {
        ClusterBuilder {
            test,
            workers,
            servers,
            starts_workers: true,
            others: Vec::new(),
            folder: None,
            is_in_memory: false,
            replicates: false,
        }
    }

    /// Starts workers and servers. The chief is the test.
    pub fn start(test: &'static str, workers: usize, servers: usize) -> Self {
        Self::builder(test, workers, servers).start()
    }

    fn start_task(&mut self, at: usize) {
        let (task, process) = &mut self.tasks[at];
        let mut command = command(self.test, &format!("{} {}", task.job, task.index));
        command.env(CLUSTER, self.spec.to_string()).env(REPLICAS, self.replicates.to_string());
        if !self.is_in_memory {
            command.env(FOLDER, &self.folder);
        }
        if task.job == Job::Chief {
            let errors = File::options().create(true).append(true).open(self.folder.join(ERRORS));
            let mut child = command.stderr(errors.unwrap()).spawn().unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(std::io::Result::ok);
            let (send, printed) = mpsc::channel();
            std::thread::spawn(move || lines.for_each(|line| _ = send.send(line)));
            self.printed = Some(printed);
            *process = Some(Killed(child));
        } else {
            // Their output is not read.
            command.stdout(Stdio::null()).stderr(Stdio::null());
            *process = Some(Killed(command.spawn().unwrap()));
        }
    }

    pub fn spec(&self) -> ClusterSpec {
        self.spec.clone()
    }

    /// Returns a resolver of the cluster that names no task of its own.
    pub fn resolver(&self) -> SimpleClusterResolver {
        SimpleClusterResolver::new(self.spec())
    }

    /// Returns all tasks that are processes.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.iter().map(|(task, _)| task)
    }

    /// Returns the position of a server among the tasks.
    pub fn server(&self, number: usize) -> usize {
        self.tasks().position(|task| task.job == Job::Ps && task.index == number).unwrap()
    }

    /// Kills a task and restarts it.
    pub fn restart(&mut self, at: usize) {
        self.kill(at);
        self.start_task(at);
    }

    /// Kills a task without a restart.
    pub fn kill(&mut self, at: usize) {
        self.tasks[at].1 = None;
    }

    /// Returns the next line of the chief that begins with `start`, or `None` after `within`.
    ///
    /// # Panics
    /// Panics if the chief has exited instead.
    pub fn next_line(&self, start: &str, within: Duration) -> Option<String> {
        let (printed, mut deadline) = (self.printed.as_ref().unwrap(), Deadline::after(within));
        loop {
            let slice = deadline.look();
            match printed.recv_timeout(slice) {
                Ok(line) if line.starts_with(start) => return Some(line),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) if slice.is_zero() => return None,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("the chief has exited: {}", self.errors()),
            }
        }
    }

    /// Returns the error output of the chief.
    fn errors(&self) -> String {
        std::fs::read_to_string(self.folder.join(ERRORS)).unwrap_or_default()
    }

    /// Returns the folder for files that outlive tasks.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Waits until all processes have exited with code 0.
    pub fn wait_for_exit(mut self) {
        let errors = self.errors();
        for (task, process) in &mut self.tasks {
            let Killed(child) = process.as_mut().unwrap();
            let mut deadline = Deadline::after(MINUTE);
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                assert!(!deadline.look().is_zero(), "{task} has not exited");
                std::thread::park_timeout(Duration::from_millis(5));
            };
            assert!(status.success(), "{task}: {status}: {errors}");
        }
    }
}

/// Runs the task for which a [`Cluster`] started this process, and returns `true`. Returns `false` in the test's own
/// process. A chief calls `chief`.
pub fn is_task_or(chief: impl FnOnce(ClusterSpec, &Path)) -> bool {
    let Some(part) = part() else { return false };
    let (job, index) = part.split_once(' ').unwrap();
    let spec: ClusterSpec = std::env::var(CLUSTER).unwrap().parse().unwrap();
    let folder = std::env::var_os(FOLDER).map(PathBuf::from);
    let task = Task::new(job, index.parse::<usize>().unwrap());
    if task.job == Job::Chief {
        chief(spec, &folder.unwrap());
    } else {
        let mut serve = ServeBuilder::new();
        if std::env::var(REPLICAS).is_ok_and(|replicates| replicates == "true") {
            serve = serve.replicate_servers();
        }
        if let Some(folder) = folder {
            serve = serve.folder(folder);
        }
        assert!(serve.run(&SimpleClusterResolver::new(spec).with_task(task)).unwrap().has_served());
    }
    true
}

/// Runs the task for which a [`Cluster`] started this process, like [`is_task_or`], in a cluster whose chief is the
/// test.
pub fn is_task() -> bool {
    is_task_or(|_, _| ())
}
