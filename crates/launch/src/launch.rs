//! The start of a planned job.

use crate::output::Sink;
use crate::printer::Printer;
use crate::processes::Shared;
use crate::running::supervise;
use crate::starter::{Starter, one_core_each};
use crate::supervisor::{Policy, Supervisor};
use crate::terminal::Style;
use crate::{Error, Notice, Outcome, Output, Plan, Result, Running, command, cores, interrupts};
use distribute_cluster::{Deadline, Stopwatch};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// The default ssh command. It never prompts, gives up after 10 seconds if a host is unavailable, and detects a
/// lost connection.
pub const SSH: &str =
    "ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3";

/// A builder that configures a job and starts it. The tasks of the job end together.
///
/// ```
/// use distribute_launch::{Deadline, Launch, Layout, Output, Plan};
/// use std::sync::{Arc, Mutex};
/// use std::time::Duration;
///
/// let said = Arc::new(Mutex::new(Vec::new()));
/// let keep = said.clone();
/// let plan = Plan::new(&Layout::new(2))?;
/// let mut running = Launch::new(plan)
///     .command("sh", ["-c", "echo $TF_CONFIG | grep -o 'index\":.'"])
///     .output(move |output| {
///         if let (Output::Line { task, text, .. }, Ok(mut said)) = (output, keep.lock()) {
///             said.push(format!("{task}: {}", String::from_utf8_lossy(text)));
///         }
///     })
///     .spawn()?;
/// let outcome = running.wait(Deadline::after(Duration::from_secs(60)))?;
/// assert_eq!(outcome.exit_code(), 0, "{outcome}");
/// let mut said = said.lock().unwrap();
/// said.sort();
/// assert_eq!(*said, ["worker 0: index\":0", "worker 1: index\":1"]);
/// # Ok::<(), distribute_launch::Error>(())
/// ```
#[must_use = "nothing is started until `spawn` or `run` is called"]
pub struct Launch {
    plan: Plan,
    program: OsString,
    arguments: Vec<OsString>,
    folder: Option<PathBuf>,
    environment: BTreeMap<OsString, Option<OsString>>,
    ssh: Vec<String>,
    pin: bool,
    signals: bool,
    policy: Policy,
    sink: Sink,
}

impl std::fmt::Debug for Launch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Launch")
            .field("plan", &self.plan)
            .field("program", &self.program)
            .field("arguments", &self.arguments)
            .finish_non_exhaustive()
    }
}

impl Launch {
    /// Creates a launch of the tasks in `plan`. By default, the output of tasks is written to this process's standard
    /// output and error.
    ///
    /// Every task gets the number of spares as `DISTRIBUTE_SPARES`. If there are any, the job continues as long as
    /// there are as many tasks as workers, and more than spares.
    pub fn new(plan: Plan) -> Self {
        let style = Style::of(plan.tasks().iter().map(|planned| &planned.task));
        let (spares, trained) = (plan.layout().spares, plan.layout().trained());
        Self {
            plan,
            program: OsString::new(),
            arguments: Vec::new(),
            folder: None,
            // Also without spares: tasks may inherit another number.
            environment: [("DISTRIBUTE_SPARES".into(), Some(spares.to_string().into()))].into(),
            ssh: SSH.split(' ').map(String::from).collect(),
            pin: true,
            signals: false,
            policy: Policy {
                max_restarts: 0,
                backoff: Duration::from_secs(1),
                min_workers: (spares > 0).then_some(trained),
                spares,
                grace: Duration::from_secs(10),
                timeout: None,
            },
            sink: Arc::new(move |output| style.write(output)),
        }
    }

    /// Sets the command that every task runs.
    pub fn command(
        mut self,
        program: impl Into<OsString>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        self.program = program.into();
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the folder in which every task runs. The default is the current folder of this process. On other hosts, a
    /// folder must exist at the same path.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Sets an environment variable for every task. On this machine, tasks also inherit the environment of this
    /// process. On other hosts, they inherit only variables whose names begin with `DISTRIBUTE_` or `RUST_`.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.insert(name.into(), Some(value.into()));
        self
    }

    /// Removes an environment variable, so that tasks do not inherit it from this process.
    pub fn env_remove(mut self, name: impl Into<OsString>) -> Self {
        self.environment.insert(name.into(), None);
        self
    }

    /// Sets the maximum number of restarts of each task after failures. The default is 0. In the `k`-th restart, the
    /// task's environment contains `DISTRIBUTE_RESTART=k`.
    pub fn max_restarts(mut self, restarts: u32) -> Self {
        self.policy.max_restarts = restarts;
        self
    }

    /// Sets the minimum number of workers. If a worker fails and is not restarted, the job continues as long as at
    /// least this number of workers is left or has exited with 0. By default, all workers are required. The first
    /// worker is always required, because the rendezvous is at its address, unless there are spares and all other
    /// workers are required. Every task gets the number as `DISTRIBUTE_MIN_WORKERS`, which its strategy also uses.
    ///
    /// If a minimum is set, workers that fail after the first worker has exited with 0 are not restarted, because
    /// training is complete. The first worker is not restarted after another worker has exited with 0, because it might
    /// train again from the beginning.
    pub fn min_workers(mut self, workers: usize) -> Self {
        self.policy.min_workers = Some(workers);
        self.env("DISTRIBUTE_MIN_WORKERS", workers.to_string())
    }

    /// Sets the delay before the first restart of a task. The default is one second. The delay doubles with each
    /// restart, up to a minute. It is reset after the task has run for more than two seconds and more than twice the
    /// delay.
    pub fn backoff(mut self, backoff: Duration) -> Self {
        self.policy.backoff = backoff;
        self
    }

    /// Sets the time for tasks to exit after they are asked to; tasks that are still running are then killed. The
    /// default is 10 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.policy.grace = grace;
        self
    }

    /// Sets the maximum duration of the job. The default is `None`, for no limit.
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.policy.timeout = timeout;
        self
    }

    /// Sets the command that connects to other hosts: a program and its arguments, to which the host and a command for
    /// it are appended. The default is [`SSH`].
    pub fn ssh(mut self, words: Vec<String>) -> Self {
        self.ssh = words;
        self
    }

    /// Disables the pinning of tasks to cores. By default, each task that trains has its own cores, if all tasks run on
    /// this machine and there are enough. Pinning is implemented only on Linux.
    pub fn without_pinning(mut self) -> Self {
        self.pin = false;
        self
    }

    /// Forwards SIGINT, SIGTERM and SIGHUP from this process to the tasks, which ends the job. From then on, these
    /// signals have no other effect on this process, even after the end of the job.
    pub fn forward_signals(mut self) -> Self {
        self.signals = true;
        self
    }

    /// Passes the output of the tasks and the launcher to `sink`, instead of writing it to this process's standard
    /// output and error.
    ///
    /// Two threads call `sink`: one for the standard output of tasks, and one for everything else. While `sink` blocks,
    /// tasks that have written more than a megabyte block as well. After the end of the job, `sink` may take up to ten
    /// seconds for each line; then the remaining output is dropped.
    pub fn output(mut self, sink: impl Fn(Output<'_>) + Send + Sync + 'static) -> Self {
        self.sink = Arc::new(move |output| {
            sink(output);
            Ok(())
        });
        self
    }

    /// Starts all tasks, blocks until the job has ended, and returns its outcome.
    ///
    /// # Errors
    /// Returns the errors of [`Launch::spawn`]. A failed task is not an error; see [`Outcome`].
    pub fn run(self) -> Result<Outcome> {
        self.spawn()?.wait(Deadline::after(Duration::MAX))
    }

    /// Starts all tasks, and returns without waiting for them.
    ///
    /// # Errors
    /// If this fails, no task is left running.
    /// - [`Error::NoCommand`]: no command was set.
    /// - [`Error::Option`]: the ssh command is empty.
    /// - [`Error::CommandNotFound`]: the command does not exist or cannot be executed. If tasks run on other hosts,
    ///   only the ssh command is checked.
    /// - [`Error::NoFolder`]: the folder does not exist. It is only checked if all tasks run on this machine.
    /// - [`Error::Start`]: the process of a task cannot be started.
    /// - [`Error::System`]: the current folder is unknown, a thread cannot be started, or signals cannot be received.
    pub fn spawn(self) -> Result<Running> {
        let folder = match &self.folder {
            Some(folder) => folder.clone(),
            None => std::env::current_dir()
                .map_err(|source| Error::System { operation: "asking for the current folder", source })?,
        };
        self.check(&folder)?;
        let cores = self.partition_cores();
        let secret = self.plan.secret().to_hex();
        let hosts = self.plan.layout().hosts.len();
        let (events, input) = channel();
        let interrupts = self.signals.then(|| interrupts::forward(events.clone())).transpose();
        let interrupts =
            interrupts.map_err(|source| Error::System { operation: "listening for signals", source })?;

        let printer = Printer::start(&self.sink, &events).map_err(|source| Error::System {
            operation: "starting the threads that write the output of the tasks",
            source,
        })?;

        let tasks = self.plan.into_tasks();
        let mut own = cores.iter().flatten();
        let own: Vec<_> = tasks
            .iter()
            .map(
                |planned| if planned.trains() { own.next().cloned().unwrap_or_default() } else { Vec::new() },
            )
            .collect();
        let shared = Arc::new(Shared {
            names: tasks.iter().map(|planned| planned.task.clone()).collect(),
            processes: tasks.iter().map(|_| Mutex::new((None, 0))).collect(),
        });
        let mut starter = Starter {
            one_core_each: one_core_each(&tasks, cores.as_deref()),
            tasks,
            cores: own,
            secret,
            program: self.program,
            arguments: self.arguments,
            folder,
            environment: self.environment,
            ssh: self.ssh,
            printer: printer.clone(),
            shared: shared.clone(),
            events: events.clone(),
        };
        let watch = Stopwatch::start();
        printer.notice(Notice::Starting { tasks: shared.names.len(), hosts, cores });
        for index in 0..starter.tasks.len() {
            starter.tasks[index].release_port();
            if let Err(source) = starter.start(index, 0) {
                shared.kill_all();
                return Err(Error::Start { task: starter.tasks[index].task.clone(), source });
            }
        }
        let (supervisor, actions) = Supervisor::new(shared.names.iter().cloned(), self.policy.clone());
        let (done, outcome) = channel();
        let thread = std::thread::Builder::new().name("supervisor of tasks".into()).spawn({
            let grace = self.policy.grace;
            move || {
                let outcome = supervise(supervisor, actions, &input, &starter, grace, watch);
                // Signals are still handled while the last lines are written.
                drop(interrupts);
                let _ = done.send(outcome);
            }
        });
        match thread {
            Ok(_) => Ok(Running::new(shared, events, outcome)),
            Err(source) => {
                shared.kill_all();
                Err(Error::System { operation: "starting the thread that supervises the tasks", source })
            }
        }
    }

    /// Checks what can be checked before a task is started: the folder and the command or, if tasks run on other hosts,
    /// only the ssh command.
    fn check(&self, folder: &Path) -> Result<()> {
        if self.program.is_empty() {
            return Err(Error::NoCommand);
        }
        if self.ssh.is_empty() {
            return Err(Error::Option {
                option: "--ssh",
                value: String::new(),
                expected: "a command, such as \"ssh -p 2222\"",
            });
        }
        if let Some(remote) = self.plan.tasks().iter().find(|planned| planned.host.is_some()) {
            return command::find(self.ssh[0].as_ref(), folder, &path(None), &remote.task).map(drop);
        }
        let Some(first) = self.plan.tasks().first() else { return Err(Error::NoWorkers) };
        if !folder.is_dir() {
            return Err(Error::NoFolder { folder: folder.into() });
        }
        let own = self.environment.get(OsStr::new("PATH"));
        command::find(&self.program, folder, &path(own.cloned()), &first.task).map(drop)
    }

    /// Returns the cores of each task that trains; `None` if tasks do not get separate cores. If any task is on another
    /// host, they do not, because the cores of that host are unknown.
    fn partition_cores(&self) -> Option<Vec<Vec<usize>>> {
        let here = self.plan.tasks().iter().all(|planned| planned.host.is_none());
        let training = self.plan.tasks().iter().filter(|planned| planned.trains()).count();
        (self.pin && here).then(|| cores::partition(&cores::allowed(), training))?
    }
}

/// Returns the `PATH` in which commands are searched. `own` is the setting for the tasks, if there is one; `Some(None)`
/// removes the variable.
fn path(own: Option<Option<OsString>>) -> OsString {
    own.unwrap_or_else(|| std::env::var_os("PATH")).unwrap_or_else(|| "/usr/bin:/bin".into())
}
