//! The launcher in its own process: signals, SIGKILL, and checks that no process is left.

mod unread;

use crate::support::{Fifo, Heard, PATIENCE};
use distribute_launch::{Launch, Layout, Plan};
use distribute_testing::child::{Killed, command, output, part};
use distribute_testing::watched;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::io::Read;
use std::process::{Child, Command};
use std::sync::mpsc;
use std::time::Duration;

/// An environment variable with the script that the launcher's tasks run.
const SCRIPT: &str = "DISTRIBUTE_TEST_SCRIPT";

/// Runs a job of two workers that run the script, and exits, if this process was started as the launcher. The
/// launcher's options are the grace time and the time limit of the job.
fn launcher() {
    let Some(options) = part() else { return };
    let script = std::env::var(SCRIPT).unwrap();
    let launch = Launch::new(Plan::new(&Layout::new(2)).unwrap()).command("sh", ["-c", &script]);
    let mut times = options.split(' ').map(|millis| Duration::from_millis(millis.parse().unwrap()));
    let launch = launch.grace(times.next().unwrap()).timeout(times.next());
    let outcome = launch.forward_signals().run().unwrap();
    std::process::exit(outcome.exit_code());
}

/// A launcher that `test` has started, with the pipe that its tasks hold open.
struct Started {
    launcher: Killed,
    heard: Heard,
    _fifo: Fifo,
}

fn start(test: &str, options: &str, script: &str, ready: usize) -> Started {
    start_with(test, options, script, ready, |_| ())
}

fn start_with(
    test: &str,
    options: &str,
    script: &str,
    ready: usize,
    change: impl FnOnce(&mut Command),
) -> Started {
    let fifo = Fifo::new();
    let heard = fifo.read();
    let mut command = command(test, options);
    command.env(SCRIPT, format!("exec 9>\"$PIPE\"; {script}")).env("PIPE", fifo.path());
    change(&mut command);
    let launcher = Killed(command.spawn().unwrap());
    heard.lines(ready);
    Started { launcher, heard, _fifo: fifo }
}

impl Started {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.launcher.0)
    }

    /// Waits until the launcher and all its tasks have exited. Returns the lines of the pipe, the exit code and both
    /// outputs.
    fn ended(&mut self) -> (Vec<String>, Option<i32>, String, String) {
        let lines = self.heard.end();
        let (out, err) = (text(self.launcher.0.stdout.take()), text(self.launcher.0.stderr.take()));
        let (out, err) = (out.recv_timeout(PATIENCE).unwrap(), err.recv_timeout(PATIENCE).unwrap());
        (lines, self.launcher.0.wait().unwrap().code(), out, err)
    }
}

fn text(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = pipe.unwrap().read_to_string(&mut text);
        let _ = done.send(text);
    });
    wait
}

/// Tasks that exit on request, each with a child that does not.
const WILLING: &str = r#"trap 'echo asked >&9; echo last words; exit 1' TERM INT
    (trap '' TERM INT; echo child >&9; sleep 1000) & echo ready >&9; while :; do sleep 1000 & wait $!; done"#;

/// Tasks that do not exit on request.
const STUBBORN: &str = r#"trap '' TERM INT HUP; sleep 1000 & echo ready >&9; while :; do sleep 1000; done"#;

#[test]
fn sigterm_goes_to_all_and_nothing_is_left() {
    launcher();
    watched(|| {
        let mut started = start("endings::sigterm_goes_to_all_and_nothing_is_left", "30000", WILLING, 4);
        kill_process(started.pid(), Signal::TERM).unwrap();
        let (lines, code, out, err) = started.ended();
        assert_eq!(lines, ["asked", "asked"]);
        assert_eq!(code, Some(143), "{err}");
        for worker in ["worker 0 │ last words", "worker 1 │ last words"] {
            assert!(out.contains(worker), "{out}");
        }
        assert!(err.contains("launch   │ ended by SIGTERM after "), "{err}");
    });
}

#[test]
fn a_second_ctrl_c_kills_running_tasks() {
    launcher();
    watched(|| {
        let mut started = start("endings::a_second_ctrl_c_kills_running_tasks", "3600000", STUBBORN, 2);
        // Also where the tests run in the background, with SIGINT ignored: the launcher listens for it.
        kill_process(started.pid(), Signal::INT).unwrap();
        let mut pipe = started.launcher.0.stderr.take().unwrap();
        let (mut said, mut buffer) = (Vec::new(), [0; 256]);
        while !String::from_utf8_lossy(&said).contains("send it again to kill them") {
            let n = pipe.read(&mut buffer).unwrap();
            assert!(n > 0);
            said.extend_from_slice(&buffer[..n]);
        }
        started.launcher.0.stderr = Some(pipe);
        kill_process(started.pid(), Signal::INT).unwrap();
        let (_, code, _, err) = started.ended();
        assert_eq!(code, Some(130), "{err}");
        assert!(err.contains("ended by SIGINT after"), "{err}");
        // The tasks were given less time than the hour of their grace period.
        let (_, had) = err.split_once("; killed because they did not exit within ").unwrap();
        let (had, tasks) = had.trim().split_once(": ").unwrap();
        assert_eq!(tasks, "worker 0, worker 1");
        assert!(had.ends_with(" ms") || had.trim_end_matches(" s").parse::<f64>().unwrap() < 60.0, "{had}");
    });
}

/// Whether this process and its children ignore SIGHUP.
fn ignores_hup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 > 0)
}

#[test]
fn a_task_that_does_not_exit_in_the_grace_period_is_killed() {
    launcher();
    watched(|| {
        let mut started =
            start("endings::a_task_that_does_not_exit_in_the_grace_period_is_killed", "50", STUBBORN, 2);
        // Under nohup, which these tests may run under, a launcher goes on.
        let (signal, expected) = if ignores_hup() { (Signal::TERM, 143) } else { (Signal::HUP, 129) };
        kill_process(started.pid(), signal).unwrap();
        let (_, code, _, err) = started.ended();
        assert_eq!(code, Some(expected), "{err}");
        assert!(err.contains("because they did not exit within 50 ms: worker 0, worker 1"), "{err}");
    });
}

// INV-30
#[test]
fn nothing_is_left_when_the_launcher_is_killed() {
    launcher();
    watched(|| {
        let mut started = start("endings::nothing_is_left_when_the_launcher_is_killed", "30000", STUBBORN, 2);
        started.launcher.0.kill().unwrap();
        started.ended();
    });
}

#[test]
fn nothing_is_left_when_the_launcher_is_killed_while_its_tasks_are_suspended() {
    launcher();
    watched(|| {
        let script = format!("echo $$ >&9; {STUBBORN}");
        let fifo = Fifo::new();
        let heard = fifo.read();
        let mut command = command(
            "endings::nothing_is_left_when_the_launcher_is_killed_while_its_tasks_are_suspended",
            "30000",
        );
        command.env(SCRIPT, format!("exec 9>\"$PIPE\"; {script}")).env("PIPE", fifo.path());
        let mut launcher = Killed(command.spawn().unwrap());
        for line in heard.lines(4).iter().filter(|line| *line != "ready") {
            let group = Pid::from_raw(line.parse().unwrap()).unwrap();
            kill_process_group(group, Signal::STOP).unwrap();
            // The system continues a suspended group that has lost its launcher.
            until_suspended(group);
        }
        launcher.0.kill().unwrap();
        heard.end();
    });
}

/// Waits until every process of a group is suspended. A process receives a signal when it next runs. A shell that has
/// just started another program waits for it in the system and receives no signals. It counts as suspended, because
/// its child is.
fn until_suspended(group: Pid) {
    // What follows the name of a program, which is in parentheses: its state, its parent, its group.
    let of_group = |stat: String| {
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect();
        (fields.get(2)? == &group.as_raw_nonzero().to_string()).then(|| fields[0].clone())
    };
    loop {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = all.filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
        let states: Vec<String> = stats.filter_map(of_group).collect();
        let has = |state: &str| states.iter().any(|found| found == state);
        if has("T") && states.iter().all(|state| ["T", "D"].contains(&state.as_str())) {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn lines_have_the_name_of_their_task_and_no_colour_in_a_pipe() {
    launcher();
    watched(|| {
        let mut command =
            command("endings::lines_have_the_name_of_their_task_and_no_colour_in_a_pipe", "1000");
        command.env(SCRIPT, "echo out; echo err >&2; printf 'no end'");
        let (out, err) = output(command, PATIENCE);
        for worker in 0..2 {
            assert!(out.contains(&format!("worker {worker} │ out\n")), "{out}");
            assert!(out.contains(&format!("worker {worker} │ no end\n")), "{out}");
            assert!(err.contains(&format!("worker {worker} │ err\n")), "{err}");
        }
        assert!(
            err.contains("launch   │ 2 tasks on this machine")
                && err.contains("launch   │ the job succeeded"),
            "{err}"
        );
        assert!(!out.contains('\x1b') && !err.contains('\x1b'));
    });
}

/// Tasks continue if their output has no reader.
#[test]
fn a_closed_output_does_not_end_the_job() {
    launcher();
    watched(|| {
        let go = Fifo::new();
        let script = format!(
            "echo ready >&9; read go <{}; i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; echo done >&9",
            go.path().display()
        );
        let mut started = start("endings::a_closed_output_does_not_end_the_job", "1000", &script, 2);
        let child: &mut Child = &mut started.launcher.0;
        drop((child.stdout.take(), child.stderr.take()));
        let _go = go.release(2);
        assert_eq!(started.heard.end(), ["done", "done"]);
        assert_eq!(started.launcher.0.wait().unwrap().code(), Some(0));
    });
}
