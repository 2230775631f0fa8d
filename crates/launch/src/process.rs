//! [`Process`]: the process of a task, and all processes that it has started.

use crate::lines::Lines;
use crate::printer::Printer;
use crate::{End, Signal, Stream, Task, cores};
use distribute_cluster::{Deadline, Stopwatch};
use distribute_log::plain;
use parking_lot::Mutex;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

/// The time for which descendants of a task may continue to write after the task has exited, before they are killed.
const LINGER: Duration = Duration::from_millis(500);

/// The time without output after which a pipe is no longer read once the descendants were killed. Only a process that
/// has left the task's group can still hold the pipe open.
const DRAIN: Duration = Duration::from_secs(2);

/// The maximum time for which output is read once the descendants were killed.
const MAX_DRAIN: Duration = Duration::from_secs(10);

/// The maximum length in bytes of the last line of standard error in reports.
const LAST_LINE: usize = 300;

/// The running process of a task, which leads its own process group.
pub(crate) struct Process {
    group: Pid,
    /// The child process; `None` once it was reaped, because its id may then be reused.
    child: Mutex<Option<Child>>,
    /// The guard's standard input. Closing it makes the guard kill the task.
    guard: Arc<Mutex<Option<ChildStdin>>>,
    remote: bool,
}

/// A report about a process that has exited.
pub(crate) enum Report {
    /// The process has exited after running for `after`.
    Ended { end: End, after: Duration },
    /// All output of the process was passed on.
    Drained { last_error_line: Option<String> },
}

/// The parameters of [`Process::start`].
pub(crate) struct Start<'a> {
    pub index: usize,
    pub task: &'a Task,
    /// The command that starts the guard and then becomes the task. [`Process::start`] sets its standard streams.
    pub command: &'a mut Command,
    /// The bytes to write to the guard's input first, for a task on another host; `None` on this machine.
    pub prelude: Option<Vec<u8>>,
    /// The processors that the task may use. If this is empty, the task may use all that the launcher may use.
    pub cores: &'a [usize],
}

impl Process {
    /// Starts the process. Another thread calls `report` once with each variant of [`Report`].
    pub(crate) fn start(
        start: Start<'_>,
        printer: &Arc<Printer>,
        report: impl Fn(Report) + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let Start { index, task, command, prelude, cores } = start;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = spawn_on(command, cores)?;
        let group = Pid::from_child(&child);
        let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let process = Arc::new(Self {
            group,
            child: Mutex::new(Some(child)),
            guard: Arc::default(),
            remote: prelude.is_some(),
        });
        // From here on, the process must be killed if a step fails.
        let started = (|| {
            process.feed(stdin, prelude)?;
            let (mut drain, runs) = (Drain::default(), Arc::new(AtomicBool::new(true)));
            let task = Arc::new(task.clone());
            for (stream, pipe) in [(Stream::Out, out.map(boxed)), (Stream::Err, err.map(boxed))] {
                let Some(pipe) = pipe else { continue };
                let (task, printer, runs) = (task.clone(), printer.clone(), runs.clone());
                let (pace, done) = drain.add();
                thread::Builder::new().name(format!("output of {task}")).spawn(move || {
                    let last = read(pipe, &pace, |text| printer.line(index, &task, stream, text, &runs));
                    let _ = done.send(last.filter(|_| stream == Stream::Err));
                })?;
            }
            let (process, printer, watch) = (process.clone(), printer.clone(), Stopwatch::start());
            thread::Builder::new().name(format!("end of {task}")).spawn(move || {
                let end = process.wait();
                report(Report::Ended { end, after: watch.elapsed() });
                printer.stop_waiting_for(&runs);
                drain.wait(LINGER, LINGER);
                process.kill_and_reap();
                drain.wait(DRAIN, MAX_DRAIN);
                report(Report::Drained { last_error_line: drain.last });
            })?;
            Ok(())
        })();
        if let Err(error) = started {
            process.kill_and_reap();
            return Err(error);
        }
        Ok(process)
    }

    /// Returns the id of the process, which is also the id of its process group.
    pub(crate) fn pid(&self) -> u32 {
        self.group.as_raw_nonzero().get().unsigned_abs()
    }

    /// Sends a signal to the task's process group. Returns `false` if the process was already reaped.
    ///
    /// On another host, the guard sends the signal to the group there. The local ssh process receives SIGKILL, and
    /// other signals only until the guard can be reached.
    pub(crate) fn send(&self, signal: Signal) -> bool {
        let child = self.child.lock();
        if child.is_none() {
            return false;
        }
        if self.remote {
            // To the guard there. ssh itself is not asked to exit, because the last output of the task goes
            // through it.
            let mut guard = self.guard.lock();
            if let Some(stdin) = guard.as_mut() {
                // This does not block. If ssh reads nothing, the connection is as good as lost.
                let _ = writeln!(stdin, "{}", signal.name());
            }
            // There is no connection yet, or the signals had no effect.
            if guard.is_some() && signal != Signal::Kill {
                return true;
            }
        }
        let _ = kill_process_group(self.group, raw(signal));
        true
    }

    /// Returns whether a signal has suspended the task. For a task on another host, this is unknown, and the result is
    /// `false`.
    pub(crate) fn is_suspended(&self) -> bool {
        let child = self.child.lock();
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        child.is_some() && !self.remote && matches!(waitid(WaitId::Pid(self.group), options), Ok(Some(_)))
    }

    /// Writes `prelude`, if there is one, to the guard's input on a separate thread, and keeps the input open.
    fn feed(&self, stdin: Option<ChildStdin>, prelude: Option<Vec<u8>>) -> io::Result<()> {
        let keep = |guard: &Mutex<Option<ChildStdin>>, stdin| {
            *guard.lock() = stdin;
        };
        let Some(mut stdin) = stdin else { return Ok(()) };
        let Some(prelude) = prelude else {
            keep(&self.guard, Some(stdin));
            return Ok(());
        };
        let guard = self.guard.clone();
        // A connection may be slow, and the prelude may be larger than a pipe's buffer.
        thread::Builder::new().name("environment of a task".into()).spawn(move || {
            // If ssh has exited, its exit code is reported.
            if stdin.write_all(&prelude).is_ok() && fcntl_setfl(&stdin, OFlags::NONBLOCK).is_ok() {
                keep(&guard, Some(stdin));
            }
        })?;
        Ok(())
    }

    /// Blocks until the task's process exits, without reaping it. Returns how it has ended.
    fn wait(&self) -> End {
        // The process is not reaped: while it is a zombie, its number and its group's are not reused, so its
        // descendants can be killed by it. There is no timeout, because ending the task is up to the
        // supervisor.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        loop {
            match waitid(WaitId::Pid(self.group), options) {
                Err(rustix::io::Errno::INTR) | Ok(None) => (),
                Err(error) => return End::NotStarted(format!("its exit status is unknown: {error}")),
                Ok(Some(status)) => {
                    return match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => End::Exited(code),
                        (None, signal) => End::Signaled(signal.unwrap_or_default()),
                    };
                }
            }
        }
    }

    /// Kills the task's process group, even if the task has exited. Then reaps the process and closes the guard's
    /// input.
    fn kill_and_reap(&self) {
        let mut child = self.child.lock();
        if let Some(child) = child.as_mut() {
            let _ = kill_process_group(self.group, raw(Signal::Kill));
            let _ = child.wait();
        }
        *child = None;
        self.guard.lock().take();
    }
}

/// The pipes of a task that are still being read.
#[derive(Default)]
struct Drain {
    readers: Vec<(Arc<AtomicUsize>, Receiver<Option<String>>)>,
    last: Option<String>,
}

impl Drain {
    /// Adds a pipe. Returns the counter of its lines, and the sender of its last line.
    fn add(&mut self) -> (Arc<AtomicUsize>, Sender<Option<String>>) {
        let (pace, (done, end)) = (Arc::default(), channel());
        self.readers.push((Arc::clone(&pace), end));
        (pace, done)
    }

    /// Waits until all pipes have ended, a pipe had no output for `patience`, or `max` has passed.
    fn wait(&mut self, patience: Duration, max: Duration) {
        let mut max = Deadline::after(max);
        while let Some((pace, end)) = self.readers.last() {
            let (mut deadline, mut seen) = (Deadline::after(patience), pace.load(Ordering::Relaxed));
            loop {
                match end.recv_timeout(deadline.look().min(max.look())) {
                    Err(RecvTimeoutError::Timeout) if max.has_passed() => return,
                    Err(RecvTimeoutError::Timeout) => {
                        let now = pace.load(Ordering::Relaxed);
                        if now != seen {
                            (deadline, seen) = (Deadline::after(patience), now);
                        } else if deadline.has_passed() {
                            return;
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                    Ok(last) => {
                        self.last = self.last.take().or(last);
                        break;
                    }
                }
            }
            self.readers.pop();
        }
    }
}

fn boxed(pipe: impl Read + Send + 'static) -> Box<dyn Read + Send> {
    Box::new(pipe)
}

/// Starts a command on the given processors, or on all if the list is empty. The process inherits this limit from the
/// thread that starts it.
fn spawn_on(command: &mut Command, cores: &[usize]) -> io::Result<Child> {
    if cores.is_empty() {
        return command.spawn();
    }
    let limited = || {
        cores::limit_this_thread(cores)?;
        command.spawn()
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("start of a task".into()).spawn_scoped(scope, limited)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
    })
}

fn raw(signal: Signal) -> rustix::process::Signal {
    use rustix::process::Signal as Raw;
    match signal {
        Signal::Hangup => Raw::HUP,
        Signal::Interrupt => Raw::INT,
        Signal::Terminate => Raw::TERM,
        Signal::Kill => Raw::KILL,
        Signal::Stop => Raw::STOP,
        Signal::Continue => Raw::CONT,
        Signal::User1 => Raw::USR1,
        Signal::User2 => Raw::USR2,
    }
}

/// Reads a pipe until its end, passes each line to `line`, and counts the lines in `pace`. Returns the beginning of the
/// last line that is neither empty nor Rust's hint about `RUST_BACKTRACE`; `None` if there is none.
fn read(mut pipe: impl Read, pace: &AtomicUsize, mut line: impl FnMut(&[u8])) -> Option<String> {
    let (mut lines, mut last, mut buffer) = (Lines::default(), Vec::new(), [0; 8192]);
    let mut take = |text: &[u8]| {
        pace.fetch_add(1, Ordering::Relaxed);
        line(text);
        // This line of Rust's panic message has no information about the cause.
        if !text.trim_ascii().is_empty() && !text.starts_with(b"note: run with `RUST_BACKTRACE") {
            last.clear();
            last.extend_from_slice(&text[..text.len().min(LAST_LINE)]);
        }
    };
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => lines.take(&buffer[..n], &mut take),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(_) => break,
        }
    }
    lines.finish(&mut take);
    (!last.is_empty()).then(|| plain(&String::from_utf8_lossy(last.trim_ascii())).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_one_that_says_something() {
        let last = |text: &str| read(text.as_bytes(), &AtomicUsize::new(0), |_| ());
        let panic = "thread 'main' panicked at src/main.rs:2:5:\nno data\nnote: run with `RUST_BACKTRACE=1` for …\n\n";
        assert_eq!(last(panic).as_deref(), Some("no data"));
        assert_eq!(last("\x1b[31mred").as_deref(), Some(r"\u{1b}[31mred"));
        assert_eq!(last("\n \n"), None);
        assert_eq!(last(&"x".repeat(100_000)).map(|text| text.len()), Some(LAST_LINE));
    }
}
