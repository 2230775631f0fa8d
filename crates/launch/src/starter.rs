//! [`Starter`]: starts tasks with their commands and environments, here or on other hosts.

use crate::event::Event;
use crate::printer::Printer;
use crate::process::{Process, Report, Start};
use crate::processes::Shared;
use crate::{PlannedTask, RemoteHost, guard};
use distribute_cluster::TF_CONFIG;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// The parameters with which the tasks of a job are started and restarted.
pub(crate) struct Starter {
    pub tasks: Vec<PlannedTask>,
    /// The cores of each task; empty for a task without separate cores.
    pub cores: Vec<Vec<usize>>,
    pub one_core_each: bool,
    pub secret: String,
    pub program: OsString,
    pub arguments: Vec<OsString>,
    pub folder: PathBuf,
    pub environment: BTreeMap<OsString, Option<OsString>>,
    pub ssh: Vec<String>,
    pub printer: Arc<Printer>,
    pub shared: Arc<Shared>,
    pub events: Sender<Event>,
}

impl Starter {
    /// Starts the task with the given index. `restart` is the number of earlier starts, so 0 for the first.
    pub(crate) fn start(&self, index: usize, restart: u32) -> io::Result<()> {
        let planned = &self.tasks[index];
        let (mut command, prelude) = match &planned.host {
            None => (self.local(planned, restart), None),
            Some(host) => {
                let prelude = self.prelude(planned, restart);
                (self.remote(host, prelude.len()), Some(prelude))
            }
        };
        let events = self.events.clone();
        let report = move |report| {
            // The supervisor runs as long as a task does.
            let _ = events.send(match report {
                Report::Ended { end, after } => Event::Ended { task: index, end, after },
                Report::Drained { last_error_line } => Event::Drained { task: index, last_error_line },
            });
        };
        let start = Start {
            index,
            task: &planned.task,
            command: &mut command,
            prelude,
            cores: self.cores.get(index).map_or(&[], Vec::as_slice),
        };
        let process = Process::start(start, &self.printer, report)?;
        *self.shared.processes[index].lock() = (Some(process), restart);
        Ok(())
    }

    /// Returns the environment variables to set for a task. `None` removes a variable.
    fn environment_of(&self, planned: &PlannedTask, restart: u32) -> BTreeMap<OsString, Option<OsString>> {
        let mut environment_of = self.environment.clone();
        let mut set = |name: &str, value: &str| environment_of.insert(name.into(), Some(value.into()));
        set(TF_CONFIG, &planned.tf_config().to_string());
        set("DISTRIBUTE_SECRET", &self.secret);
        set("DISTRIBUTE_RESTART", &restart.to_string());
        let given = match self.environment.get(OsStr::new("RAYON_NUM_THREADS")) {
            Some(own) => own.is_some(),
            None => std::env::var_os("RAYON_NUM_THREADS").is_some(),
        };
        if self.one_core_each && planned.trains() && !given {
            set("RAYON_NUM_THREADS", "1");
        }
        environment_of
    }

    fn local(&self, planned: &PlannedTask, restart: u32) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", guard::GUARD, "distribute-launch"]);
        command.arg(&self.program).args(&self.arguments).current_dir(&self.folder);
        for (name, value) in self.environment_of(planned, restart) {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    fn remote(&self, host: &RemoteHost, prelude: usize) -> Command {
        let mut command = Command::new(&self.ssh[0]);
        command.args(&self.ssh[1..]).arg(host.destination()).arg(guard::remote(prelude));
        command
    }

    fn prelude(&self, planned: &PlannedTask, restart: u32) -> Vec<u8> {
        let sent = |name: &OsStr| ["DISTRIBUTE_", "RUST_"].iter().any(|prefix| begins_with(name, prefix));
        let mut environment_of: BTreeMap<_, _> = std::env::vars_os()
            .filter(|(name, _)| sent(name))
            .map(|(name, value)| (name, Some(value)))
            .collect();
        environment_of.extend(self.environment_of(planned, restart));
        let environment_of = environment_of.iter().filter(|(name, _)| guard::is_name(name));
        guard::prelude(
            &planned.task.to_string(),
            environment_of.filter_map(|(name, value)| Some((name.as_os_str(), value.as_deref()?))),
            self.folder.as_os_str(),
            std::iter::once(self.program.as_os_str()).chain(self.arguments.iter().map(OsString::as_os_str)),
        )
    }
}

fn begins_with(name: &OsStr, prefix: &str) -> bool {
    name.as_encoded_bytes().starts_with(prefix.as_bytes())
}

/// Returns whether several tasks that train on this machine have at most one core each, so that more threads would only
/// slow them down.
pub(crate) fn one_core_each(tasks: &[PlannedTask], cores: Option<&[Vec<usize>]>) -> bool {
    let here = tasks.iter().filter(|planned| planned.trains() && planned.host.is_none()).count();
    match cores {
        Some(cores) => cores.iter().all(|own| own.len() == 1),
        None => here > 1 && std::thread::available_parallelism().is_ok_and(|cores| cores.get() <= here),
    }
}
