//! Programs that are measured from outside. Their output is read with a deadline.

use super::group::Group;
use distribute::cluster::Deadline;
use shared_child::SharedChild;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The maximum time without output. Importing TensorFlow takes seconds, and starting two PyTorch processes takes even
/// longer.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The maximum time until a killed program exits.
const KILLED_WITHIN: Duration = Duration::from_secs(10);

/// A running program, with all processes that it starts. They are killed when it is dropped.
pub struct Program {
    child: Arc<SharedChild>,
    events: Receiver<Event>,
    status: Option<Result<ExitStatus>>,
    /// The last line of the program's standard error.
    complaint: Option<String>,
}

enum Event {
    Line(String),
    Complaint(String),
    Ended(Result<ExitStatus>),
}

impl Program {
    /// Starts a program. Its standard output is read, and its standard error if the command pipes it.
    pub fn start(command: &mut Command) -> Result<Self> {
        let child = Arc::new(SharedChild::spawn(Group::lead(command.stdout(Stdio::piped())))?);
        let (send, events) = channel();
        // Both threads exit with the program, which is killed when it is dropped.
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

    /// Returns the id of the program's process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Takes the program's standard input, if the command pipes it. Only the first call returns it.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.take_stdin()
    }

    /// Stops the program, with all processes that it has started, until it is resumed.
    ///
    /// # Errors
    /// Returns an error if the program has exited or does not stop.
    pub fn stop(&self) -> Result<()> {
        self.group()?.stop()
    }

    /// Resumes the program.
    ///
    /// # Errors
    /// Returns an error if the program has exited.
    pub fn resume(&self) -> Result<()> {
        self.group()?.resume()
    }

    /// Returns the program's process group, or an error if the program has exited, because the system may have given
    /// its id to another process.
    fn group(&self) -> Result<Group> {
        match self.child.try_wait()? {
            None => Ok(Group::of(self.child.id())),
            Some(status) => Err(Error::other(format!("it ended with {status}"))),
        }
    }

    /// Returns the next line of output, or `None` if the program has exited and all lines have been returned.
    ///
    /// # Errors
    /// Returns an error if the deadline passes first.
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

    /// Returns the remaining lines of output, after the program has exited.
    ///
    /// # Errors
    /// - An error if the deadline passes before the program exits.
    /// - The last line of the program's standard error, if the program failed.
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
        let _ = self.group().and_then(|group| group.kill());
        let _ = self.child.kill();
        let deadline = Deadline::after(KILLED_WITHIN);
        while let Ok(Some(_)) = self.line(deadline) {}
    }
}

/// Sends each line until there are no more, or until the receiver is dropped.
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

    // INV-3
    #[test]
    fn a_stopped_program_says_nothing_until_it_is_resumed() {
        let mut program = shell("while read -r line; do echo got $line; done");
        let mut stdin = program.take_stdin().unwrap();
        program.stop().unwrap();
        writeln!(stdin, "this").unwrap();
        // It would answer within that time if it were not stopped.
        let error = program.line(Deadline::after(Duration::from_millis(200))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        program.resume().unwrap();
        assert_eq!(program.line(soon()).unwrap().unwrap(), "got this");
        // Often, and twice in a row.
        for _ in 0..20 {
            program.stop().unwrap();
            program.stop().unwrap();
            program.resume().unwrap();
            writeln!(stdin, "more").unwrap();
            assert_eq!(program.line(soon()).unwrap().unwrap(), "got more");
        }
    }

    /// Checks that all processes that a program has started stop with it.
    #[test]
    #[cfg(target_os = "linux")]
    fn children_of_a_program_are_stopped_and_killed_with_it() {
        let mut program = shell("exec 3<&0; cat <&3 & echo $!; wait");
        let started: u32 = program.line(soon()).unwrap().unwrap().parse().unwrap();
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{started}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0])
        };
        let becomes = |wanted: &dyn Fn(Option<u8>) -> bool| {
            let deadline = soon();
            while !wanted(state()) {
                assert!(!deadline.has_passed(), "{:?}", state());
                std::thread::yield_now();
            }
        };
        becomes(&|state| state == Some(b'S'));
        program.stop().unwrap();
        becomes(&|state| state == Some(b'T'));
        // They are killed while they are stopped, and reaped.
        let child = program.child.clone();
        drop(program);
        assert!(!child.try_wait().unwrap().unwrap().success());
        becomes(&|state| matches!(state, None | Some(b'Z' | b'X')));
    }

    #[test]
    fn a_program_that_has_ended_cannot_be_stopped() {
        let mut program = shell("exit 3");
        assert_eq!(program.line(soon()).unwrap(), None);
        let error = program.stop().unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
        assert!(program.resume().is_err());
    }
}
