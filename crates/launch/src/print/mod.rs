//! The same job for other systems that start processes. Nothing is started, and no secret is printed: each
//! system creates one.

mod kubernetes;
mod mpi;
mod slurm;

use crate::{Error, Layout, Result};
use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;

/// A system that starts processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A script for `sbatch`.
    Slurm,
    /// A call of Open MPI's `mpirun`.
    Mpi,
    /// A manifest of Kubeflow's `TFJob`.
    Kubernetes,
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "slurm" => Ok(Target::Slurm),
            "mpi" => Ok(Target::Mpi),
            "k8s" => Ok(Target::Kubernetes),
            _ => Err(Error::Option { option: "--print", value: name.into(), expected: "slurm, mpi or k8s" }),
        }
    }
}

/// A job to be printed.
///
/// ```
/// use distribute_launch::{Layout, print::{Job, Target}};
/// let words = ["train".to_string(), "--epochs=3".to_string()];
/// let job = Job { layout: &Layout::new(2), command: &words, timeout: None, max_restarts: 0, image: None };
/// let call = "mpirun -np 2 --bind-to none --oversubscribe -x DISTRIBUTE_SECRET train --epochs=3\n";
/// assert!(job.print(Target::Mpi)?.ends_with(call));
/// # Ok::<(), distribute_launch::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The tasks of the job.
    pub layout: &'a Layout,
    /// The command of each task, and its arguments.
    pub command: &'a [String],
    /// The maximum duration of the job.
    pub timeout: Option<Duration>,
    /// The maximum number of restarts of a task.
    pub max_restarts: u32,
    /// The image of the containers, if there are any.
    pub image: Option<&'a str>,
}

/// The command that creates the secret when the job starts.
const SECRET: &str = r#"export DISTRIBUTE_SECRET="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')""#;

impl Job<'_> {
    /// Returns the command or manifest for a system.
    ///
    /// # Errors
    /// Returns the errors of [`Layout::check`], and:
    /// - [`Error::Unprintable`]: the system does not support a setting.
    pub fn print(&self, target: Target) -> Result<String> {
        self.layout.check()?;
        if self.command.first().is_none_or(String::is_empty) {
            return Err(Error::NoCommand);
        }
        match target {
            Target::Slurm => slurm::script(self),
            Target::Mpi => mpi::call(self),
            Target::Kubernetes => kubernetes::manifest(self),
        }
    }

    /// Returns the file name of the command, as a name that Slurm and Kubernetes accept.
    fn name(&self) -> String {
        let program = self.command.first().map_or("", String::as_str);
        let file = program.rsplit('/').next().unwrap_or_default();
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let name: String = file.chars().map(plain).take(40).collect();
        let name = name.trim_matches(|c: char| c == '-' || c.is_ascii_digit());
        if name.is_empty() { "job".into() } else { name.into() }
    }

    /// Returns the command, quoted for a shell.
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

    /// Returns the number of tasks with an address.
    fn in_cluster(&self) -> usize {
        usize::from(self.layout.chief) + self.layout.workers + self.layout.ps
    }

    /// Returns the number of these tasks on each host.
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
        let name = |program: &str| {
            let command = [program.to_string()];
            Job { layout: &Layout::new(1), command: &command, timeout: None, max_restarts: 0, image: None }
                .name()
        };
        assert_eq!(name("target/release/examples/digits"), "digits");
        assert_eq!(name("./Train_it.sh"), "train-it-sh");
        assert_eq!(name("/"), "job");
        assert_eq!(name(&"x".repeat(100)).len(), 40);
    }

    #[test]
    fn what_is_wrong_with_a_job_is_said_before_it_is_printed() {
        let (command, layout) = ([], Layout::new(1));
        let job = Job { layout: &layout, command: &command, timeout: None, max_restarts: 0, image: None };
        assert!(matches!(job.print(Target::Mpi), Err(Error::NoCommand)));
        let nobody = Layout::new(0);
        assert!(matches!(Job { layout: &nobody, ..job }.print(Target::Slurm), Err(Error::NoWorkers)));
        assert!("docker".parse::<Target>().unwrap_err().to_string().contains("slurm, mpi or k8s"));
    }
}
