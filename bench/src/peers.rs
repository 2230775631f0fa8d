//! Processes that are controlled line by line (`--serve`): peers, which are the scripts in `bench/peers/`, and this
//! program. Each runs only while it is measured, and is otherwise stopped.

use super::error::invalid;
use super::hosts::Hosts;
use super::program::{PATIENCE, Program};
use super::sample::Sample;
use crate::output::remark;
use distribute::cluster::Deadline;
use distribute::{Error, Result};
use serde_json::Value;
use std::io::{Error as IoError, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

/// A figure that a peer can measure in one configuration.
#[derive(Clone, Debug)]
pub struct Entry {
    program: Vec<PathBuf>,
    /// The name of the figure.
    pub figure: String,
    /// The name and the configuration of the library.
    pub peer: String,
}

const SCRIPTS: [&str; 7] = [
    "peer_tensorflow.py",
    "peer_tensorflow_workers.py",
    "peer_tensorflow_servers.py",
    "peer_tensorflow_coordinator.py",
    "peer_pytorch.py",
    "peer_jax.py",
    "peer_mpi.py",
];

/// Returns the entries of all peers: the scripts in `folder`, run with the given Python, and burn's program, at the
/// path in `DISTRIBUTE_PEER_BURN` or where cargo builds it. A program that cannot list its entries is reported on
/// stderr and omitted. Returns an error if `folder` does not contain all scripts.
pub fn entries(folder: &Path, python: &Path) -> Result<Vec<Entry>> {
    if let Some(missing) = SCRIPTS.iter().find(|script| !folder.join(script).is_file()) {
        return Err(invalid(format!(
            "--peers: {} has no {missing}; run it in the root of the repository, or name the peers' folder: --peers FOLDER",
            folder.display()
        )));
    }
    let mut programs: Vec<Vec<PathBuf>> =
        SCRIPTS.iter().map(|script| vec![python.into(), folder.join(script)]).collect();
    match std::env::var_os("DISTRIBUTE_PEER_BURN") {
        Some(path) => programs.push(vec![path.into()]),
        None => programs.push(vec![folder.join("burn/target/release/peer-burn")]),
    }
    let mut all = Vec::new();
    for program in programs {
        match list(&program) {
            Ok(entries) => all.extend(entries),
            Err(error) => {
                remark(format!("{} is left out: {error}", program[program.len() - 1].display()));
            }
        }
    }
    Ok(all)
}

/// Creates the command that runs a peer's program. If there are hosts, the program runs on the first of them.
fn command(program: &[PathBuf], hosts: Option<&Hosts>) -> Command {
    let mut command =
        hosts.map_or_else(|| Command::new(&program[0]), |hosts| hosts.first().command(&program[0]));
    // The peers choose their own numbers of threads; #[distribute::main] has set ours for this process.
    command.args(&program[1..]).env_remove("RAYON_NUM_THREADS").env_remove("CANDLE_NUM_THREADS");
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn list(program: &[PathBuf]) -> Result<Vec<Entry>> {
    let mut command = command(program, None);
    command.arg("--list").stdin(Stdio::null()).stderr(Stdio::piped());
    let lines = Program::start(&mut command).and_then(|listing| listing.rest(Deadline::after(PATIENCE)));
    lines
        .map_err(failed)?
        .iter()
        .map(|line| {
            let value = parsed(line)?;
            let field = |name: &str| value[name].as_str().unwrap_or_default().to_string();
            Ok(Entry { program: program.to_vec(), figure: field("figure"), peer: field("peer") })
        })
        .collect()
}

impl Entry {
    /// Starts the peer's process.
    pub fn start(&self, hosts: Option<&Hosts>) -> Result<Process> {
        let mut command = command(&self.program, hosts);
        command.args(["--serve", "--only", &self.figure, "--peer", &self.peer]);
        if let Some(hosts) = hosts {
            command.args(["--hosts", &hosts.to_string()]);
        }
        Process::start(&self.peer, command.stderr(Stdio::null()))
    }
}

/// Starts this program again to measure a figure. If there are hosts, the figure is measured between them.
pub fn ours(figure: &str, hosts: Option<&Hosts>) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["--serve", figure]);
    if let Some(hosts) = hosts {
        command.args(["--hosts", &hosts.to_string()]);
    }
    Process::start("this program", &mut command)
}

/// A controlled program, which is stopped except during its own rounds. When the process is dropped, the program is
/// waiting for a line, so it can be killed safely.
pub struct Process {
    /// The name and the configuration of the library.
    pub peer: String,
    /// The version of the library.
    pub version: String,
    program: Program,
    stdin: Option<ChildStdin>,
}

impl Process {
    fn start(name: &str, command: &mut Command) -> Result<Self> {
        let mut program = Program::start(command.stdin(Stdio::piped())).map_err(failed)?;
        let stdin = program.take_stdin();
        Ok(Self { peer: name.into(), version: String::new(), program, stdin })
    }

    /// Waits until the process is ready. Several processes may start at the same time, because none of them is being
    /// measured yet.
    pub fn greeted(mut self) -> Result<Self> {
        self.version = self.reply()?["version"].as_str().unwrap_or_default().into();
        self.program.stop().map_err(failed)?;
        Ok(self)
    }

    /// Resumes the process, runs one round of approximately this duration, and stops the process again.
    pub fn round(&mut self, seconds: f64) -> Result<Sample> {
        self.program.resume().map_err(failed)?;
        if let Some(stdin) = &mut self.stdin {
            writeln!(stdin, "{seconds}").and_then(|()| stdin.flush()).map_err(failed)?;
        }
        let reply = self.reply()?;
        self.program.stop().map_err(failed)?;
        Sample::said(&reply).ok_or_else(|| {
            let reason = reply["error"].as_str().unwrap_or("it gave no value");
            failed(IoError::other(format!("{}: {reason}", self.peer)))
        })
    }

    fn reply(&mut self) -> Result<Value> {
        let line = self.program.line(Deadline::after(PATIENCE)).ok().flatten();
        parsed(&line.ok_or_else(|| {
            let reason = format!(
                "{} ended, or printed nothing for {} s; run it alone to see why",
                self.peer,
                PATIENCE.as_secs()
            );
            failed(IoError::other(reason))
        })?)
    }
}

fn parsed(line: &str) -> Result<Value> {
    serde_json::from_str(line).map_err(|error| failed(IoError::other(format!("{error} in {line:?}"))))
}

fn failed(source: IoError) -> Error {
    Error::Io { operation: "measuring in another process".into(), source }
}
