//! Printing a job as a script, command or manifest for other systems that start processes. Printing starts nothing, and
//! prints no secret: the secret is created when the job starts.
//!
//! | file | contents |
//! |---|---|
//! | `slurm`, `mpi` | a script for `sbatch`, and a command of Open MPI |
//! | `kubernetes` | manifests for Kubernetes, with and without an operator |
//! | `yaml` | documents in YAML |

mod kubernetes;
mod mpi;
mod slurm;
mod yaml;

use crate::{Error, Layout, Result};
use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;

/// Defines [`Target`] from a list of its variants, with their names and descriptions.
macro_rules! targets {
    ($($(#[$doc:meta])* $target:ident = $name:literal, $description:literal;)*) => {
        /// A system for which a job can be printed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Target {
            $($(#[$doc])* $target,)*
        }

        impl Target {
            /// All targets.
            pub const ALL: &[Self] = &[$(Self::$target),*];

            /// Returns the name of the target, as in the option `--print`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$target => $name,)*
                }
            }

            /// Returns a description of the target.
            pub fn description(self) -> &'static str {
                match self {
                    $(Self::$target => $description,)*
                }
            }
        }

        /// The names and descriptions of all targets.
        const EXPECTED: &str = concat!("one of" $(, " ", $name, " (", $description, ")")*);
    };
}

targets! {
    /// A script for `sbatch`.
    Slurm = "slurm", "a script for sbatch";
    /// A command with Open MPI's `mpirun`.
    Mpi = "mpi", "a command of Open MPI";
    /// Manifests of a Service and of one Indexed Job for each kind of task, for Kubernetes without an operator.
    IndexedJob = "job", "Kubernetes without an operator";
    /// A manifest of a `JobSet` of Kubernetes.
    JobSet = "jobset", "Kubernetes with JobSet";
    /// Manifests of a `TrainJob` and of its runtime, for Kubeflow's Trainer (v2).
    TrainJob = "trainjob", "Kubeflow's Trainer";
    /// A manifest of a `TFJob`, for Kubeflow's training operator (v1).
    Kubernetes = "k8s", "Kubeflow's TFJob";
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let wrong = || Error::Option { option: "--print", value: name.into(), expected: EXPECTED };
        Self::ALL.iter().find(|target| target.name() == name).copied().ok_or_else(wrong)
    }
}

/// A job that can be printed for other systems.
///
/// ```
/// use distribute_launch::{Layout, print::{Job, Target}};
/// let words = ["train".to_string(), "--epochs=3".to_string()];
/// let layout = Layout::new(2);
/// let job = Job::new(&layout, &words);
/// let script = job.print(Target::Mpi)?;
/// assert!(script.contains("mpirun -np 2 --bind-to none") && script.ends_with(" train --epochs=3\n"));
/// let manifest = Job { cpus: Some(4), ..job }.print(Target::JobSet)?;
/// assert!(manifest.contains("kind: JobSet\n"));
/// # Ok::<(), distribute_launch::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The tasks of the job.
    pub layout: &'a Layout,
    /// The command of each task, and its arguments.
    pub command: &'a [String],
    /// The maximum duration of the job; `None` for no limit.
    pub timeout: Option<Duration>,
    /// The maximum number of restarts of each task.
    pub max_restarts: u32,
    /// The container image, for systems with containers; `None` prints a placeholder.
    pub image: Option<&'a str>,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// The number of cores of each task; `None` requests none.
    pub cpus: Option<u32>,
    /// The number of GPUs of each task; `None` requests none.
    pub gpus: Option<u32>,
    /// The memory of each task, as a quantity of Kubernetes such as `4Gi`; `None` requests none.
    pub memory: Option<&'a str>,
    /// The name of a volume claim and the folder at which each task mounts it, for Kubernetes; `None` mounts nothing.
    pub volume: Option<(&'a str, &'a str)>,
    /// The port for health probes of the tasks that run the program to its end; `None` for no probes. The program must
    /// have a monitor.
    pub health: Option<u16>,
}

/// The default time between SIGTERM and SIGKILL: that of Kubernetes, and of a program's `Preemption`.
pub const GRACE: Duration = Duration::from_secs(30);

/// The shell command that creates the secret when the job starts.
const SECRET: &str = r#"export DISTRIBUTE_SECRET="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')""#;

impl<'a> Job<'a> {
    /// Creates a job with default settings: no restarts, no limits, [`GRACE`].
    pub fn new(layout: &'a Layout, command: &'a [String]) -> Self {
        Self {
            layout,
            command,
            timeout: None,
            max_restarts: 0,
            image: None,
            grace: GRACE,
            cpus: None,
            gpus: None,
            memory: None,
            volume: None,
            health: None,
        }
    }

    /// Returns the script, command or manifest for the given system.
    ///
    /// # Errors
    /// - The errors of [`Layout::check`].
    /// - [`Error::NoCommand`]: there is no command.
    /// - [`Error::Unprintable`]: the system does not support a setting of the job.
    pub fn print(&self, target: Target) -> Result<String> {
        self.layout.check()?;
        if self.command.first().is_none_or(String::is_empty) {
            return Err(Error::NoCommand);
        }
        match target {
            Target::Slurm => slurm::script(self),
            Target::Mpi => mpi::call(self),
            _ => kubernetes::manifest(self, target),
        }
    }

    /// Returns a name for the job, from the file name of the command, that Slurm and Kubernetes accept.
    fn name(&self) -> String {
        let program = self.command.first().map_or("", String::as_str);
        let file = program.rsplit('/').next().unwrap_or_default();
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let name: String = file.chars().map(plain).take(40).collect();
        let name = name.trim_matches(|c: char| c == '-' || c.is_ascii_digit());
        if name.is_empty() { "job".into() } else { name.into() }
    }

    /// Returns the command and its arguments, quoted for a shell.
    fn shell_command(&self) -> String {
        let mut line = String::new();
        for word in self.command {
            if !line.is_empty() {
                line.push(' ');
            }
            shell_word(&mut line, word);
        }
        line
    }

    /// Returns the number of tasks in the cluster: chief, workers and parameter servers.
    fn in_cluster(&self) -> usize {
        usize::from(self.layout.chief) + self.layout.workers + self.layout.ps
    }

    /// Returns the shell line that exports the number of tasks of each job, for resolvers; empty if all tasks are
    /// workers. Resolvers assign ranks to tasks in the order of the jobs' names.
    fn export_tasks(&self) -> String {
        let jobs = [
            ("chief", usize::from(self.layout.chief)),
            ("ps", self.layout.ps),
            ("worker", self.layout.workers),
        ];
        if self.in_cluster() == self.layout.workers {
            return String::new();
        }
        let tasks = jobs.iter().filter(|(_, tasks)| *tasks > 0).map(|(job, tasks)| format!("{job}:{tasks}"));
        let tasks: Vec<_> = tasks.collect();
        format!("export DISTRIBUTE_TASKS={} # in the order of their ranks\n", tasks.join(","))
    }

    /// Returns the number of tasks on each host; empty if no hosts are given.
    fn on_hosts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.layout.hosts.len()];
        for (_, host) in self.layout.tasks() {
            if let Some(count) = host.and_then(|host| counts.get_mut(host)) {
                *count += 1;
            }
        }
        counts
    }
}

fn shell_word(line: &mut String, word: &str) {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        line.push_str(word);
    } else {
        // Writing into a string cannot fail.
        let _ = write!(line, "'{}'", word.replace('\'', r"'\''"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        let name = |program: &str| Job::new(&Layout::new(1), &[program.to_string()]).name();
        assert_eq!(name("target/release/examples/digits"), "digits");
        assert_eq!(name("./Train_it.sh"), "train-it-sh");
        assert_eq!(name("/"), "job");
        assert_eq!(name(&"x".repeat(100)).len(), 40);
    }

    #[test]
    fn errors_of_a_job_are_found_before_it_is_printed() {
        let (command, layout) = ([], Layout::new(1));
        let job = Job::new(&layout, &command);
        assert!(matches!(job.print(Target::Mpi), Err(Error::NoCommand)));
        let nobody = Layout::new(0);
        assert!(matches!(Job { layout: &nobody, ..job }.print(Target::Slurm), Err(Error::NoWorkers)));
        let error = "docker".parse::<Target>().unwrap_err().to_string();
        for target in Target::ALL {
            assert_eq!(target.name().parse::<Target>().unwrap(), *target);
            assert!(error.contains(&format!(" {} ({})", target.name(), target.description())), "{error}");
        }
    }
}
