//! Peers in processes of their own: the scripts of `bench/peers/`, led line by line (`--serve`).

use super::turns::Sample;
use distribute::cluster::Deadline;
use distribute::{Error, Result};
use serde_json::Value;
use std::io::{BufRead, BufReader, Error as IoError, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long a peer may take for a round. Importing TensorFlow takes seconds, a start of two PyTorch processes more.
const PATIENCE: Duration = Duration::from_secs(180);

/// A figure that a peer measures in one way.
#[derive(Clone, Debug)]
pub struct Entry {
    program: Vec<PathBuf>,
    /// The figure's name.
    pub figure: String,
    /// The library, and how it is used.
    pub peer: String,
}

/// What the peers can measure: the scripts with this Python, and burn's program where it has been built.
pub fn entries(python: &Path) -> Result<Vec<Entry>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/peers");
    let mut programs: Vec<Vec<PathBuf>> = ["peer_tensorflow.py", "peer_pytorch.py"]
        .into_iter()
        .map(|script| vec![python.into(), folder.join(script)])
        .collect();
    match std::env::var_os("DISTRIBUTE_PEER_BURN") {
        Some(path) => programs.push(vec![path.into()]),
        None => programs.push(vec![folder.join("burn/target/release/peer-burn")]),
    }
    let mut all = Vec::new();
    for program in programs {
        match list(&program) {
            Ok(entries) => all.extend(entries),
            Err(error) => eprintln!("{} is left out: {error}", program[program.len() - 1].display()),
        }
    }
    Ok(all)
}

fn command(program: &[PathBuf]) -> Command {
    let mut command = Command::new(&program[0]);
    // The peers have their own ideas of threads; ours were set for this process by #[distribute::main].
    command.args(&program[1..]).env_remove("RAYON_NUM_THREADS").env_remove("CANDLE_NUM_THREADS");
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn list(program: &[PathBuf]) -> Result<Vec<Entry>> {
    let output = command(program).arg("--list").output().map_err(failed)?;
    if !output.status.success() {
        return Err(failed(IoError::other(last_line(&output.stderr))));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .map(|line| {
            let value = parsed(line)?;
            let field = |name: &str| value[name].as_str().unwrap_or_default().to_string();
            Ok(Entry { program: program.to_vec(), figure: field("figure"), peer: field("peer") })
        })
        .collect()
}

impl Entry {
    /// Starts its process, and waits until it can be led.
    pub fn start(&self) -> Result<Process> {
        let mut child = command(&self.program)
            .args(["--serve", "--only", &self.figure, "--peer", &self.peer])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (send, lines) = channel();
        // Ends with the child's output.
        std::thread::spawn(move || {
            let lines = stdout.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(|l| l.ok());
            let _ = lines.into_iter().try_for_each(|line| send.send(line));
        });
        let mut process = Process { peer: self.peer.clone(), version: String::new(), child, stdin, lines };
        process.version = process.reply()?["version"].as_str().unwrap_or_default().into();
        Ok(process)
    }
}

/// A peer that is led; it is killed when dropped.
pub struct Process {
    /// The library, and how it is used.
    pub peer: String,
    /// Its version.
    pub version: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    /// One round of about so many seconds.
    pub fn round(&mut self, seconds: f64) -> Result<Sample> {
        if let Some(stdin) = &mut self.stdin {
            writeln!(stdin, "{seconds}").and_then(|()| stdin.flush()).map_err(failed)?;
        }
        let reply = self.reply()?;
        let value = reply["value"].as_f64();
        let value = value.ok_or_else(|| failed(IoError::other(format!("{} gave no value", self.peer))))?;
        let losses = reply["losses"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        Ok(Sample { value, losses })
    }

    fn reply(&self) -> Result<Value> {
        let line = self.lines.recv_timeout(Deadline::after(PATIENCE).remaining());
        parsed(&line.map_err(|_| {
            let reason = format!(
                "{} ended, or said nothing for {} s; run its script by itself to see why",
                self.peer,
                PATIENCE.as_secs()
            );
            failed(IoError::other(reason))
        })?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It is waiting for a line, and has nothing to lose.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn parsed(line: &str) -> Result<Value> {
    serde_json::from_str(line).map_err(|error| failed(IoError::other(format!("{error} in {line:?}"))))
}

fn last_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().last().unwrap_or("no message").to_string()
}

fn failed(source: IoError) -> Error {
    Error::Io { operation: "measuring a peer".into(), source }
}
