//! Checks that the launcher exits even if its output has no reader, and reports what it has dropped if it can.

use super::*;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::{ChildStderr, ChildStdout, Stdio};

/// The outputs of the launcher that have no reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unread {
    Out,
    Err,
    Both,
}

/// A launcher whose tasks wait for `go`, and whose outputs are already full.
struct Blocked {
    started: Started,
    go: (Fifo, Option<File>),
    out: Option<ChildStdout>,
    err: Option<ChildStderr>,
}

/// Fills a pipe completely.
fn fill(pipe: &impl std::os::fd::AsRawFd) {
    // The pipe is opened again, so that the flags of the launcher's descriptor do not change.
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let full = rustix::fs::open(path, flags, Mode::empty()).unwrap();
    for size in [4096, 1] {
        while rustix::io::write(&full, &vec![b'.'; size]).is_ok() {}
    }
}

fn blocked(test: &str, options: &str, script: &str, unread: Unread) -> Blocked {
    let go = Fifo::new();
    let script = format!("echo ready >&9; read go <\"{}\"; {script}", go.path().display());
    let mut started = start(&format!("endings::unread::{test}"), options, &script, 2);
    let child = &mut started.launcher.0;
    let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    if unread != Unread::Err {
        fill(&out);
    }
    if unread != Unread::Out {
        fill(&err);
    }
    Blocked { started, go: (go, None), out: Some(out), err: Some(err) }
}

impl Blocked {
    fn go(&mut self) {
        self.go.1 = Some(self.go.0.release(2));
    }

    /// Returns the exit code, without reading the outputs.
    fn code(&mut self) -> Option<i32> {
        self.started.heard.end();
        self.started.launcher.0.wait().unwrap().code()
    }

    /// Returns the output from now on.
    fn read(&mut self) -> (String, String) {
        let (out, err) = (text(self.out.take()), text(self.err.take()));
        (out.recv_timeout(PATIENCE).unwrap(), err.recv_timeout(PATIENCE).unwrap())
    }
}

/// A script that writes more than launcher and pipes hold. Its tasks do not exit on request.
const FLOOD: &str = "trap 'echo asked >&9' TERM INT; yes \"$(printf %1000s x)\" & yes errors >&2 & echo says >&9; \
    while :; do wait; done";

/// A script that writes lines and does not exit.
const LINES: &str = "i=0; while [ $i -lt 50 ]; do echo line; echo error >&2; i=$((i+1)); done; \
    trap 'echo asked >&9' TERM INT; echo says >&9; while :; do sleep 1000 & wait $!; done";

#[test]
fn a_second_signal_stops_a_launcher_whose_output_is_not_read() {
    launcher();
    watched(|| {
        let test = "a_second_signal_stops_a_launcher_whose_output_is_not_read";
        for unread in [Unread::Out, Unread::Err, Unread::Both] {
            for (script, signal, expected) in [(LINES, Signal::TERM, 143), (FLOOD, Signal::INT, 130)] {
                let mut blocked = blocked(test, "30000", script, unread);
                blocked.go();
                assert_eq!(blocked.started.heard.lines(2), ["says", "says"]);
                kill_process(blocked.started.pid(), signal).unwrap();
                assert_eq!(blocked.started.heard.lines(2), ["asked", "asked"]);
                kill_process(blocked.started.pid(), signal).unwrap();
                assert_eq!(blocked.code(), Some(expected), "{unread:?}");
            }
        }
    });
}

#[test]
fn a_job_ends_without_a_reader_by_its_timeout_and_by_the_end_of_a_task() {
    launcher();
    watched(|| {
        let test = "a_job_ends_without_a_reader_by_its_timeout_and_by_the_end_of_a_task";
        let fails = "case $TF_CONFIG in *'\"index\":0'*) exit 3;; esac";
        // At the same time: each waits a while for a reader.
        let cases = [
            ("300 5000", FLOOD.to_string(), 124),
            ("300", format!("{fails}; {FLOOD}"), 3),
            ("30000", "echo line; echo error >&2; echo says >&9".into(), 0),
        ];
        let mut all: Vec<_> = cases
            .iter()
            .map(|(options, script, code)| (blocked(test, options, script, Unread::Both), *code))
            .collect();
        all.iter_mut().for_each(|(blocked, _)| blocked.go());
        for (blocked, code) in &mut all {
            assert_eq!(blocked.code(), Some(*code));
        }
    });
}

#[test]
fn a_late_reader_gets_the_complete_output() {
    launcher();
    watched(|| {
        let test = "a_late_reader_gets_the_complete_output";
        let lines =
            "i=0; while [ $i -lt 2000 ]; do echo line $i; echo error $i >&2; i=$((i+1)); done; exit 5";
        let mut blocked = blocked(test, "30000", lines, Unread::Both);
        blocked.go();
        // The job has ended.
        blocked.started.heard.end();
        let (out, err) = blocked.read();
        assert_eq!(blocked.code(), Some(5), "{err}");
        for worker in ["worker 0 │", "worker 1 │"] {
            let lines = |text: &str| text.lines().filter(|line| line.contains(worker)).count();
            // The other may have been stopped before its end.
            assert!(lines(&out) == 2000 || lines(&err) < 2000, "{}, {}", lines(&out), lines(&err));
        }
        assert!(out.contains("line 1999\n") && err.contains("error 1999\n"), "{err}");
        assert!(err.contains(" failed first: exit code 5") && !err.contains("dropped"), "{err}");
    });
}

#[test]
fn output_beyond_the_launchers_buffer_is_dropped_and_reported() {
    launcher();
    watched(|| {
        let test = "output_beyond_the_launchers_buffer_is_dropped_and_reported";
        // Each task writes 40 MB, which must not block when the job is ending.
        let script = "trap 'yes \"$(printf %1000s x)\" | head -c 40000000; exit 1' TERM; echo says >&9; \
            while :; do sleep 1000 & wait $!; done";
        let mut blocked = blocked(test, "30000", script, Unread::Out);
        blocked.go();
        assert_eq!(blocked.started.heard.lines(2), ["says", "says"]);
        kill_process(blocked.started.pid(), Signal::TERM).unwrap();
        blocked.started.heard.end();
        let (out, err) = blocked.read();
        assert_eq!(blocked.code(), Some(143), "{err}");
        assert!((15 << 20..18 << 20).contains(&out.len()), "{}", out.len());
        let told = err.lines().find(|line| line.contains("launch   │ dropped ")).unwrap();
        assert!(
            told.contains(" of the tasks' standard output: they were written faster than they were read"),
            "{told}"
        );
        let words: Vec<_> = told.split_whitespace().collect();
        let dropped: usize = words[3].parse().unwrap();
        let written = out.lines().filter(|line| line.contains("worker")).count();
        assert_eq!(dropped + written, 2 * 40_000_000_usize.div_ceil(1001), "{told}");
    });
}

#[test]
fn a_closed_reader_is_reported_on_the_other_stream() {
    launcher();
    watched(|| {
        let lines = "i=0; while [ $i -lt 50 ]; do echo line; i=$((i+1)); done";
        let mut blocked =
            blocked("a_closed_reader_is_reported_on_the_other_stream", "30000", lines, Unread::Out);
        drop(blocked.out.take());
        blocked.go();
        let err = text(blocked.err.take()).recv_timeout(PATIENCE).unwrap();
        assert_eq!(blocked.code(), Some(0));
        let told = "launch   │ dropped 100 lines (500 bytes) of the tasks' standard output: Broken pipe";
        assert!(err.contains(told) && err.contains("the job succeeded"), "{err}");
    });
}

#[test]
fn a_stopped_terminal_does_not_delay_the_exit() {
    launcher();
    watched(|| {
        let test = "a_stopped_terminal_does_not_delay_the_exit";
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = || rustix::fs::open(&name, flags, Mode::empty()).unwrap();
        let (out, err): (OwnedFd, OwnedFd) = (open(), open());
        let go = Fifo::new();
        let script = format!("echo ready >&9; read go <\"{}\"; {LINES}", go.path().display());
        let mut started = start_with(&format!("endings::unread::{test}"), "30000", &script, 2, |command| {
            command.stdout(Stdio::from(out)).stderr(Stdio::from(err));
        });
        // Ctrl-S.
        rustix::io::write(&master, b"\x13").unwrap();
        let _go = go.release(2);
        assert_eq!(started.heard.lines(2), ["says", "says"]);
        kill_process(started.pid(), Signal::INT).unwrap();
        assert_eq!(started.heard.lines(2), ["asked", "asked"]);
        kill_process(started.pid(), Signal::INT).unwrap();
        started.heard.end();
        assert_eq!(started.launcher.0.wait().unwrap().code(), Some(130));
    });
}
