//! Programs that are measured from outside: what they say, waited for with a deadline.

use distribute::cluster::Deadline;
use shared_child::SharedChild;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long a program may say nothing. Importing TensorFlow takes seconds, a start of two PyTorch processes more.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// How long a killed program may take to end.
const KILLED_WITHIN: Duration = Duration::from_secs(10);

/// A program that was started. It is killed when dropped.
pub struct Program {
    child: Arc<SharedChild>,
    events: Receiver<Event>,
    status: Option<Result<ExitStatus>>,
    /// The last line of its standard error.
    complaint: Option<String>,
}

enum Event {
    Line(String),
    Complaint(String),
    Ended(Result<ExitStatus>),
}

impl Program {
    /// Starts a program. Its standard output is read, and where the command pipes its standard error, that, too.
    pub fn start(command: &mut Command) -> Result<Self> {
        let child = Arc::new(SharedChild::spawn(command.stdout(Stdio::piped()))?);
        let (send, events) = channel();
        // Both threads end with the program, which ends when it is dropped.
        if let Some(stderr) = child.take_stderr() {
            let send = send.clone();
            std::thread::spawn(move || forward(stderr, &send, Event::Complaint));
        }
        let (stdout, ended) = (child.take_stdout(), child.clone());
        std::thread::spawn(move || {
            if let Some(stdout) = stdout {
                forward(stdout, &send, Event::Line);
            }
            let _ = send.send(Event::Ended(ended.wait()));
        });
        Ok(Self { child, events, status: None, complaint: None })
    }

    /// Where it reads, if the command pipes it; once.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.take_stdin()
    }

    /// Its next line, none when it has ended.
    ///
    /// # Errors
    /// When the deadline passes first.
    pub fn line(&mut self, deadline: Deadline) -> Result<Option<String>> {
        loop {
            match self.events.recv_timeout(deadline.remaining()) {
                Ok(Event::Line(line)) => return Ok(Some(line)),
                Ok(Event::Complaint(line)) => self.complaint = Some(line),
                Ok(Event::Ended(status)) => self.status = Some(status),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    let reason = format!("nothing came for {} s", deadline.timeout().as_secs());
                    return Err(Error::new(ErrorKind::TimedOut, reason));
                }
            }
        }
    }

    /// The lines that are left, when it has ended.
    ///
    /// # Errors
    /// When the deadline passes first, and when it has failed: the last line of its standard error.
    pub fn rest(mut self, deadline: Deadline) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        while let Some(line) = self.line(deadline)? {
            lines.push(line);
        }
        match self.status.take().transpose()? {
            Some(status) if status.success() => Ok(lines),
            status => Err(Error::other(self.complaint.take().unwrap_or_else(|| {
                status.map_or("it was lost".into(), |status| format!("it ended with {status}"))
            }))),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let deadline = Deadline::after(KILLED_WITHIN);
        while let Ok(Some(_)) = self.line(deadline) {}
    }
}

/// Sends each line, until there are no more or nobody wants them.
fn forward(from: impl Read, to: &Sender<Event>, event: fn(String) -> Event) {
    let lines = BufReader::new(from).split(b'\n').map_while(Result::ok);
    let mut lines = lines.map(|line| String::from_utf8_lossy(&line).trim_end().to_string());
    let _ = lines.try_for_each(|line| to.send(event(line)));
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use std::io::Write;

    fn shell(script: &str) -> Program {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stderr(Stdio::piped());
        Program::start(&mut command).unwrap()
    }

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(30))
    }

    #[test]
    fn lines_come_as_they_are_said_and_the_rest_at_the_end() {
        let mut program = shell("read -r line; echo got $line; echo a; echo b");
        let mut stdin = program.take_stdin().unwrap();
        writeln!(stdin, "this").unwrap();
        assert_eq!(program.line(soon()).unwrap().unwrap(), "got this");
        assert_eq!(program.rest(soon()).unwrap(), ["a", "b"]);
    }

    #[test]
    fn a_failure_has_the_last_line_of_standard_error_or_the_status() {
        let error = shell("echo a; echo first >&2; echo last >&2; exit 3").rest(soon()).unwrap_err();
        assert_eq!(error.to_string(), "last");
        let error = shell("exit 3").rest(soon()).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }

    // INV-3
    #[test]
    fn a_silent_program_is_not_waited_for_longer_than_the_deadline_and_ends_with_its_owner() {
        let mut program = shell("exec cat");
        let _open = program.take_stdin();
        let error = program.line(Deadline::after(Duration::ZERO)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let child = program.child.clone();
        drop(program);
        assert!(!child.try_wait().unwrap().unwrap().success());
    }
}
