//! Runs `distribute status` as users do.

use distribute::monitor::Monitor;
use distribute::prelude::*;
use distribute_testing::{Port, child};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn status(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_distribute"));
    command.arg("status").args(arguments);
    command
}

#[test]
fn a_running_job_is_printed_as_a_table_and_as_json() {
    let strategy = MirroredStrategy::cpus(2).unwrap();
    let monitor = Monitor::builder(&strategy).address("127.0.0.1:0").start().unwrap();
    let address = monitor.address().unwrap().to_string();
    strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32)).unwrap();
    let deadline = distribute::cluster::Deadline::after(PATIENCE);
    while monitor.report().unwrap().progress.steps == 0 {
        assert!(!deadline.has_passed());
        std::thread::yield_now();
    }
    for address in [address.clone(), format!("http://{address}/")] {
        let (table, _) = child::output(status(&[&address]), PATIENCE);
        let first = table.lines().next().unwrap();
        assert!(first.contains(&format!("(process {})", std::process::id())), "{table}");
        assert!(first.contains("MirroredStrategy: 1 worker, 2 replicas"), "{table}");
        assert!(table.contains("steps  steps/s") && table.contains("replica  device"), "{table}");
        assert!(!table.contains('\x1b'), "{table:?}");
    }
    let (json, _) = child::output(status(&[&address, "--json"]), PATIENCE);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["progress"]["steps"], &json["world"]["replicas"]), (&1.into(), &2.into()));
}

#[test]
fn an_address_without_an_answer_is_in_the_error() {
    let port = Port::reserve();
    let address = port.address().to_string();
    let (out, error) = child::refused(status(&[&address]), PATIENCE);
    let expected = format!("status: no job answers at http://{address}: ");
    assert!(out.is_empty() && error.contains(&expected), "{error}");
    assert!(error.contains("is it running"), "{error}");
}

#[test]
fn an_address_without_a_monitor_is_reported() {
    for (answer, reason) in [
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nnope\n", "it answers 404 Not Found: nope"),
        ("HTTP/1.1 500 Oops\r\nContent-Length: 9\r\n\r\nno\x1b[2J\u{9b}m\n", "no\\u{1b}[2J\\u{9b}m"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "missing field"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let (_, error) = child::refused(status(&[&address]), PATIENCE);
        other.join().unwrap();
        assert!(!error.contains(|c: char| c.is_control() && c != '\n'), "{error:?}");
        assert!(error.contains("is not a monitor of this version") && error.contains(reason), "{error}");
    }
}

/// Checks commands whose output is not read: a signal ends one whose pipe is full, and one whose pipe is closed
/// succeeds.
#[cfg(unix)]
#[test]
fn unread_output_delays_no_command() {
    use rustix::fs::{Mode, OFlags};
    use std::os::fd::AsRawFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;
    distribute_testing::watched(|| {
        let strategy = MirroredStrategy::cpus(1).unwrap();
        let monitor = Monitor::builder(&strategy).address("127.0.0.1:0").start().unwrap();
        let address = monitor.address().unwrap().to_string();
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("ps-0")).unwrap();
        std::fs::write(folder.path().join("ps-0/life"), "1").unwrap();
        let tables = folder.path().to_str().unwrap();
        let commands: [&[&str]; 4] = [
            &["status", &address],
            &["doctor"],
            &["launch", "--print", "slurm", "--", "train"],
            &["launch", "--ps", "1", "--ps-folder", tables, "--", "true"],
        ];
        let command = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_distribute"));
            command.args(arguments).env_remove("TF_CONFIG").stdin(Stdio::null());
            command
        };
        for arguments in commands {
            let (reader, writer) = std::io::pipe().unwrap();
            let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let full = rustix::fs::open(path, flags, Mode::empty()).unwrap();
            for size in [4096, 1] {
                while rustix::io::write(&full, &vec![b'.'; size]).is_ok() {}
            }
            let mut blocked = command(arguments);
            blocked.stdout(writer.try_clone().unwrap()).stderr(writer);
            let mut blocked = child::Killed(blocked.spawn().unwrap());
            let pid = rustix::process::Pid::from_child(&blocked.0);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            let status = blocked.0.wait().unwrap();
            assert!(status.signal() == Some(15) || status.code() == Some(143), "{arguments:?}: {status}");
            drop(reader);

            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let mut closed = command(arguments);
            closed.stdout(writer.try_clone().unwrap()).stderr(writer);
            let status = child::Killed(closed.spawn().unwrap()).0.wait().unwrap();
            assert_eq!(status.code(), Some(0), "{arguments:?}: {status}");
        }
    });
}

#[test]
#[cfg(unix)]
fn a_launched_job_has_the_given_secret_or_a_new_one() {
    let launch = |given: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_distribute"));
        command.args(["launch", "--workers", "2", "--", "sh", "-c", "echo \"<$DISTRIBUTE_SECRET>\""]);
        command.env_remove("TF_CONFIG").env_remove("DISTRIBUTE_SECRET");
        if let Some(given) = given {
            command.env("DISTRIBUTE_SECRET", given);
        }
        command
    };
    let given = "7f".repeat(32);
    let secrets = |command| -> Vec<String> {
        let (out, _) = child::output(command, PATIENCE);
        let of = |line: &str| Some(line.split_once('<')?.1.split_once('>')?.0.to_owned());
        out.lines().filter_map(of).collect()
    };
    assert_eq!(secrets(launch(Some(&given))), [given.clone(), given]);
    let (one, other) = (secrets(launch(None)), secrets(launch(None)));
    assert!(one.len() == 2 && one[0] == one[1] && one[0].len() == 64, "{one:?}");
    assert_ne!(one, other);
    let (_, error) = child::refused(launch(Some("letters")), PATIENCE);
    assert!(error.contains("the secret of the job in DISTRIBUTE_SECRET is not 64"), "{error}");
}

#[test]
#[cfg(unix)]
fn a_launched_job_has_the_number_of_spares_of_its_option() {
    for (options, spares) in [(&["--spares", "0"][..], "0"), (&[], "1")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_distribute"));
        command.args(["launch", "--workers", "2"]).args(options);
        command.args(["--", "sh", "-c", "echo \"<$DISTRIBUTE_SPARES>\""]);
        command.env_remove("TF_CONFIG").env("DISTRIBUTE_SPARES", "1");
        let (out, _) = child::output(command, PATIENCE);
        let tasks = out.lines().filter(|line| line.ends_with(&format!("<{spares}>"))).count();
        assert_eq!(tasks.to_string(), if spares == "0" { "2" } else { "3" }, "{out}");
    }
}
