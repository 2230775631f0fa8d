//! `distribute launch`: starts the tasks of a job, on this machine or on other hosts.

use crate::doctor;
use crate::output::{line, remark};
use clap::builder::{PossibleValue, PossibleValuesParser};
use distribute::net::Secret;
use distribute::{Error, Result};
use distribute_launch::print::{GRACE, Job, Target};
use distribute_launch::{Launch, Layout, Outcome, Plan, SSH, parse_duration, parse_hosts, split_words};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Starts workers and other tasks of a job, on this machine or over ssh, and ends them together
#[derive(clap::Args)]
pub struct Arguments {
    /// The number of workers; by default one, or one on each of --hosts
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Start a chief in addition to the workers; with --ps there is one, unless this is false
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    chief: Option<bool>,
    /// The number of parameter servers
    #[arg(long, value_name = "N", default_value_t = 0)]
    ps: usize,
    /// The folder in which each parameter server stores its tables, each in its own subfolder, so that a restarted
    /// server resumes with them. By default, tables are only in memory. A new training run needs an empty folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "print")]
    ps_folder: Option<PathBuf>,
    /// Replicate each parameter server to the next one, so that no tables are lost if a folder is lost
    #[arg(long, conflicts_with = "print")]
    ps_replicas: bool,
    /// Start an evaluator, which is not part of the cluster of the other tasks
    #[arg(long)]
    evaluator: bool,
    /// Comma-separated hosts on which to start the tasks, each in a form that ssh accepts, such as user@host; by
    /// default this machine
    #[arg(long, value_name = "HOSTS")]
    hosts: Option<String>,
    /// The ssh command
    #[arg(long, value_name = "COMMAND", default_value = SSH)]
    ssh: String,
    /// The first port on each host; by default free ports on this machine, and 2222 on others
    #[arg(long, value_name = "PORT", conflicts_with = "print")]
    port_base: Option<u16>,
    /// The number of times that each task may be restarted after a failure
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_restarts: u32,
    /// The minimum number of workers with which the job continues after others have failed permanently. The first
    /// worker is always required. By default, all are required
    #[arg(long, value_name = "N", conflicts_with = "print")]
    min_workers: Option<usize>,
    /// The number of spares: further workers, which prepare themselves and take the place of a worker that is lost. The
    /// program must train in a Training
    #[arg(long, value_name = "N")]
    spares: Option<usize>,
    /// The maximum duration of the job, such as 90s, 10m or 2h; by default unlimited
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// The time that tasks have to exit after they are asked to, before they are killed; by default 10s, and 30s
    /// with --print
    #[arg(long, value_name = "TIME")]
    grace: Option<String>,
    /// Allow all tasks to use all cores, even if there is a core for each
    #[arg(long)]
    no_pin: bool,
    /// Print the same job for another system instead of starting it
    #[arg(long, value_name = "SYSTEM", value_parser = targets())]
    print: Option<String>,
    /// The container image, printed for Kubernetes
    #[arg(long, value_name = "IMAGE", requires = "print")]
    image: Option<String>,
    /// The number of cores of each task, printed for Kubernetes and Slurm
    #[arg(long, value_name = "N", requires = "print")]
    cpus: Option<u32>,
    /// The number of GPUs of each task, printed for Kubernetes and Slurm
    #[arg(long, value_name = "N", requires = "print")]
    gpus: Option<u32>,
    /// The memory of each task, such as 512Mi or 4Gi, printed for Kubernetes
    #[arg(long, value_name = "SIZE", requires = "print")]
    memory: Option<String>,
    /// A volume claim and the folder at which each task mounts it, printed for Kubernetes
    #[arg(long, value_name = "CLAIM:FOLDER", requires = "print")]
    volume: Option<String>,
    /// Print probes of this port for Kubernetes; the program must have a monitor
    #[arg(long, value_name = "PORT", requires = "print")]
    health_port: Option<u16>,
    /// The command that every task runs, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Returns the names that `--print` takes, with their descriptions.
fn targets() -> PossibleValuesParser {
    Target::ALL.iter().map(|target| PossibleValue::new(target.name()).help(target.description())).into()
}

/// Starts the tasks and waits for them, or prints the job for another system. If the job fails, exits with the code of
/// its outcome.
pub fn run(arguments: &Arguments) -> Result<()> {
    match launch(arguments).map_err(Error::other)? {
        Done::Printed(text) => line(text.trim_end()),
        Done::Ended(outcome) if outcome.is_success() => Ok(()),
        Done::Ended(outcome) => std::process::exit(outcome.exit_code()),
    }
}

enum Done {
    Printed(String),
    Ended(Outcome),
}

/// Returns the number in an environment variable that replaces an option that was not given; `None` if the variable is
/// not set, or is not a number.
fn exported(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Returns the layout of the job that the options describe.
fn layout(arguments: &Arguments) -> distribute_launch::Result<Layout> {
    let hosts = arguments.hosts.as_deref().map(parse_hosts).transpose()?.unwrap_or_default();
    let workers = arguments.workers.unwrap_or(hosts.len().max(1));
    // Parameter servers and their workers only serve, so a chief must schedule.
    let chief = arguments.chief.unwrap_or(arguments.ps > 0);
    let spares = arguments.spares.or_else(|| exported("DISTRIBUTE_SPARES")).unwrap_or(0);
    let mut layout = Layout::new(workers).spares(spares).ps(arguments.ps).hosts(hosts);
    if chief {
        layout = layout.with_chief();
    }
    if arguments.evaluator {
        layout = layout.with_evaluator();
    }
    Ok(layout)
}

/// Returns the script or manifest of the job for another system.
fn print(
    arguments: &Arguments,
    layout: &Layout,
    target: Target,
    timeout: Option<Duration>,
    grace: Option<Duration>,
) -> distribute_launch::Result<String> {
    // The scripts of other systems are text.
    let text = |word: &OsString| {
        word.to_str().map(str::to_owned).ok_or_else(|| distribute_launch::Error::Option {
            option: "a word of the command",
            value: word.to_string_lossy().into_owned(),
            expected: "UTF-8 with --print",
        })
    };
    let words = arguments.command.iter().map(text).collect::<distribute_launch::Result<Vec<_>>>()?;
    let volume = arguments.volume.as_deref().map(|volume| {
        let parts = volume.split_once(':');
        let parts =
            parts.filter(|(claim, folder)| !claim.is_empty() && !folder.is_empty() && !folder.contains(':'));
        parts.ok_or_else(|| distribute_launch::Error::Option {
            option: "--volume",
            value: volume.into(),
            expected: "a claim and a folder, such as results:/checkpoints",
        })
    });
    let job = Job {
        timeout,
        max_restarts: arguments.max_restarts,
        image: arguments.image.as_deref(),
        grace: grace.unwrap_or(GRACE),
        cpus: arguments.cpus,
        gpus: arguments.gpus,
        memory: arguments.memory.as_deref(),
        volume: volume.transpose()?,
        health: arguments.health_port,
        ..Job::new(layout, &words)
    };
    job.print(target)
}

fn launch(arguments: &Arguments) -> distribute_launch::Result<Done> {
    let layout = layout(arguments)?;
    let timeout: Option<Duration> =
        arguments.timeout.as_deref().map(|text| parse_duration("--timeout", text)).transpose()?;
    let grace = arguments.grace.as_deref().map(|text| parse_duration("--grace", text)).transpose()?;
    if let Some(target) = &arguments.print {
        return print(arguments, &layout, target.parse()?, timeout, grace).map(Done::Printed);
    }
    let ssh = split_words(&arguments.ssh).ok_or_else(|| distribute_launch::Error::Option {
        option: "--ssh",
        value: arguments.ssh.clone(),
        expected: "a command with balanced quotes",
    })?;
    let Some((program, words)) = arguments.command.split_first() else {
        return Err(distribute_launch::Error::NoCommand);
    };
    let mut plan = Plan::with_port_base(&layout, arguments.port_base)?;
    if let Some(secret) = Secret::from_env().map_err(distribute_launch::Error::Random)? {
        plan = plan.with_secret(secret);
    }
    let mut launch = Launch::new(plan)
        .command(program, words)
        .ssh(ssh)
        .max_restarts(arguments.max_restarts)
        .timeout(timeout)
        .grace(grace.unwrap_or(Duration::from_secs(10)))
        .forward_signals();
    if arguments.no_pin {
        launch = launch.without_pinning();
    }
    if let Some(least) = arguments.min_workers.or_else(|| exported("DISTRIBUTE_MIN_WORKERS")) {
        // The other tasks do not train.
        let spares = layout.number_of_spares();
        let workers = layout.tasks().len() - arguments.ps - usize::from(arguments.evaluator) - spares;
        if !(1..=workers).contains(&least) {
            return Err(distribute_launch::Error::Option {
                option: if arguments.min_workers.is_some() {
                    "--min-workers"
                } else {
                    "DISTRIBUTE_MIN_WORKERS"
                },
                value: least.to_string(),
                expected: "a number from 1 to the number of workers, including the chief",
            });
        }
        launch = launch.min_workers(least);
    }
    let need = |option, value: String, least, expected| {
        let wrong = || distribute_launch::Error::Option { option, value, expected };
        (arguments.ps >= least).then_some(()).ok_or_else(wrong)
    };
    if let Some(folder) = &arguments.ps_folder {
        need(
            "--ps-folder",
            folder.display().to_string(),
            1,
            "parameter servers that use it: --ps 1 or more",
        )?;
        if let Some(warning) = tables_before(folder, arguments.ps) {
            remark(format!("warning: {warning}"));
        }
        launch = launch.env("DISTRIBUTE_PS_FOLDER", folder);
    }
    if arguments.ps_replicas {
        need("--ps-replicas", arguments.ps.to_string(), 2, "a second server for each: --ps 2 or more")?;
        launch = launch.env("DISTRIBUTE_PS_REPLICAS", "1");
    }
    for name in doctor::THREADS {
        // The value that #[distribute::main] has set is for this process only.
        if doctor::given(name).is_none() {
            launch = launch.env_remove(name);
        }
    }
    launch.run().map(Done::Ended)
}

/// Returns a warning if the folders of servers on this machine already contain tables, and `None` otherwise.
fn tables_before(folder: &Path, servers: usize) -> Option<String> {
    let has_some = |number: &usize| {
        std::fs::read_dir(folder.join(format!("ps-{number}"))).is_ok_and(|mut files| files.next().is_some())
    };
    let found: Vec<String> = (0..servers).filter(has_some).map(|number| format!("ps-{number}")).collect();
    if found.is_empty() {
        return None;
    }
    let missing = if found.len() < servers {
        ", and not in the others: the chief refuses to continue with only some of them"
    } else {
        ""
    };
    Some(format!(
        "{} has tables of an earlier training in {}, with which this one continues{missing}; to start from \
         new values, empty it first",
        folder.display(),
        found.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        launch: Arguments,
    }

    #[test]
    fn parameter_servers_bring_a_chief_unless_there_is_to_be_none() {
        let tasks = |options: &str| {
            let words = ["launch"].into_iter().chain(options.split_whitespace()).chain(["--", "train"]);
            let layout = layout(&Program::try_parse_from(words).unwrap().launch).unwrap();
            let tasks: Vec<_> = layout.tasks().iter().map(|(task, _)| task.to_string()).collect();
            tasks.join(", ")
        };
        assert_eq!(tasks("--workers 2 --ps 1"), "chief 0, worker 0, worker 1, ps 0");
        assert_eq!(tasks("--workers 2 --ps 1 --chief=false"), "worker 0, worker 1, ps 0");
        assert_eq!(tasks("--workers 2"), "worker 0, worker 1");
        assert_eq!(tasks("--workers 1 --chief"), "chief 0, worker 0");
        assert_eq!(tasks("--chief=true --workers 1"), "chief 0, worker 0");
        assert!(Program::try_parse_from(["launch", "--chief=maybe", "--", "train"]).is_err());
    }

    #[test]
    fn a_folder_is_mentioned_only_if_it_has_tables() {
        let folder = tempfile::tempdir().unwrap();
        let of = |servers| tables_before(folder.path(), servers);
        assert_eq!(of(2), None);
        let server = folder.path().join("ps-1");
        std::fs::create_dir(&server).unwrap();
        assert_eq!(of(2), None);
        std::fs::write(server.join("life"), "1").unwrap();
        assert_eq!(of(1), None);
        let text = of(2).unwrap();
        assert!(
            text.contains("in ps-1, with which this one continues, and not in the others: the chief refuses"),
            "{text}"
        );
        std::fs::create_dir(folder.path().join("ps-0")).unwrap();
        std::fs::write(folder.path().join("ps-0/life"), "1").unwrap();
        let text = of(2).unwrap();
        assert!(
            text.contains("in ps-0, ps-1, with which this one continues; to start from new values"),
            "{text}"
        );
    }
}
