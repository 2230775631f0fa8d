//! Starting this program again as a process that measures and prints one line: `--child NAME`.

use super::program::Program;
use distribute::cluster::{Deadline, Stopwatch};
use distribute::{Error, Result};
use std::io::Error as IoError;
use std::process::Command;
use std::time::Duration;

/// Starts this program again with `--child NAME`, and waits until it exits. Returns the line that it prints first, and
/// the time in seconds until the line was printed. Returns an error if the program fails, prints nothing, or does not
/// exit within `patience`.
pub fn spawned(name: &str, patience: Duration) -> Result<(String, f64)> {
    let watch = Stopwatch::start();
    let io = |source| Error::Io { operation: format!("bench --child {name}"), source };
    let deadline = Deadline::after(patience);
    let path = std::env::current_exe().map_err(io)?;
    let mut program = Program::start(Command::new(path).args(["--child", name])).map_err(io)?;
    let line = program.line(deadline).map_err(io)?;
    let seconds = watch.seconds();
    program.rest(deadline).map_err(io)?;
    let line = line.ok_or_else(|| io(IoError::other("it printed nothing")))?;
    Ok((line, seconds))
}

/// Returns the peak memory of this process, in MiB. Returns an error on systems other than Linux.
pub fn peak_mib() -> Result<f64> {
    let io = |source| Error::Io { operation: "reading /proc/self/status".into(), source };
    let status = std::fs::read_to_string("/proc/self/status").map_err(io)?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.map(|kib| kib / 1024.).ok_or_else(|| io(IoError::other("it has no VmHWM")))
}
