//! Tasks on other hosts, with a mock of ssh and with Debian's sshd.

use crate::support::{self, Fifo, Said, ended};
use distribute_cluster::TfConfig;
use distribute_launch::{Cause, End, Job, Launch, Layout, Plan, Signal, Task, parse_hosts};
use distribute_testing::child::{Killed, command, part};
use distribute_testing::{Port, watched};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A mock of ssh. Like sshd it uses another session, a separate environment, and the login shell for the command. The
/// connection is the pipe.
const FAKE: &str = r#"#!/bin/sh
printf '%s\n' "$@" >>"$0.log"
for last; do :; done
exec setsid --wait env -i HOME=/ PATH="$PATH" sh -c "$last"
"#;

fn worker(index: usize) -> Task {
    Job::Worker.task(index)
}

fn fake() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let ssh = folder.path().join("ssh");
    std::fs::write(&ssh, FAKE).unwrap();
    std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o755)).unwrap();
    (folder, ssh)
}

/// Creates a launch of a script with a command that reaches hosts, in a folder whose name needs quotes. Also returns
/// the output, the folder and the secret of the job.
fn launch(ssh: Vec<String>, hosts: &str, workers: usize, script: &str) -> (Launch, Said, TempDir, String) {
    let folder = tempfile::Builder::new().prefix("it's a folder ").tempdir().unwrap();
    let plan = Plan::new(&Layout::new(workers).hosts(parse_hosts(hosts).unwrap())).unwrap();
    let secret = plan.secret().to_hex();
    let said = Said::default();
    let launch = Launch::new(plan).command("sh", ["-c", script, "name", "it's \"$HOME\"\n two"]);
    let launch = said.keep(launch).ssh(ssh).folder(folder.path()).backoff(Duration::from_millis(1));
    (launch, said, folder, secret)
}

const TOLD: &str =
    r#"echo "$TF_CONFIG"; pwd; echo "$1"; echo "${#DISTRIBUTE_SECRET} $DISTRIBUTE_RESTART $MINE""#;

fn words(ssh: &Path) -> Vec<String> {
    vec![ssh.to_str().unwrap().into(), "-p".into(), "2222".into()]
}

#[test]
fn tasks_on_hosts_get_the_same_variables_as_local_ones() {
    watched(|| {
        let (_kept, ssh) = fake();
        let (launch, said, folder, secret) = launch(words(&ssh), "a,me@b", 4, TOLD);
        let outcome = ended(launch.env("MINE", "x'y").spawn().unwrap());
        assert!(outcome.is_success(), "{outcome}\n{}", said.all());
        for index in 0..4 {
            let lines = said.of(&worker(index));
            let config: TfConfig = lines[0].parse().unwrap();
            assert_eq!(config.task(), Some(worker(index)));
            let addresses: Vec<_> = config.cluster.tasks().map(|(_, address)| address.to_string()).collect();
            assert_eq!(addresses, ["a:2222", "a:2223", "b:2222", "b:2223"]);
            assert_eq!(lines[1..], [folder.path().to_str().unwrap(), "it's \"$HOME\"", " two", "64 0 x'y"]);
        }
        let log = std::fs::read_to_string(ssh.with_extension("log")).unwrap();
        assert!(!log.contains(&secret) && !log.contains("TF_CONFIG"), "{log}");
        assert!(log.contains("-p\n2222\na\nexec sh -c '") && log.contains("me@b\n"), "{log}");
        assert!(said.notices()[0].contains("4 tasks on 2 hosts"), "{:?}", said.notices());
    });
}

#[test]
fn missing_programs_on_a_host_are_named() {
    watched(|| {
        let (_kept, ssh) = fake();
        let (launch, said, folder, _) = launch(words(&ssh), "a", 1, "");
        let launch = launch.command("no-such-command", ["x"]);
        assert_eq!(ended(launch.spawn().unwrap()).exit_code(), 127);
        let text = said.all();
        assert!(text.contains("distribute launch: worker 0: no command no-such-command on "), "{text}");
        drop(folder);

        let (launch, said, folder, _) = self::launch(words(&ssh), "a", 1, "");
        drop(folder);
        assert_eq!(ended(launch.spawn().unwrap()).exit_code(), 126);
        assert!(said.all().contains("it's a folder"), "{}", said.all());

        // ssh itself is looked for before anything is started.
        let (launch, _, _folder, _) = self::launch(vec!["no-such-ssh".into()], "a", 1, "");
        let error = launch.spawn().map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("no command \"no-such-ssh\""), "{error}");
    });
}

#[test]
fn signals_and_ends_cross_the_connection() {
    watched(|| {
        let (_kept, ssh) = fake();
        signals_and_ends(words(&ssh), "a,b");
    });
}

/// Runs two workers. Signals reach them and their children, the one that fails stops the other, and no process is
/// left.
fn signals_and_ends(ssh: Vec<String>, hosts: &str) {
    let fifo = Fifo::new();
    let heard = fifo.read();
    let text = r#"exec 9>"$PIPE"; trap 'echo again >&9' USR1; trap 'echo asked >&9; exit 0' TERM; echo ready >&9
        (trap '' TERM USR1; sleep 1000) & while :; do sleep 1000 & wait $!; done"#;
    let (launch, said, _folder, _) = launch(ssh, hosts, 2, text);
    let mut running = launch.env("PIPE", fifo.path()).spawn().unwrap();
    assert_eq!(heard.lines(2), ["ready", "ready"]);
    running.kill(&worker(1), Signal::User1).unwrap();
    assert_eq!(heard.line(), "again");
    running.kill(&worker(0), Signal::Kill).unwrap();
    let outcome = running.wait(distribute_launch::Deadline::after(support::PATIENCE)).unwrap();
    assert_eq!(outcome.cause, Cause::Failed(0), "{}", said.all());
    let other = outcome.task(&worker(1)).unwrap();
    assert_eq!((&other.end, other.stopped, other.killed), (&Some(End::Exited(0)), true, false));
    assert_eq!(heard.end(), ["asked"]);
}

// INV-30
#[test]
fn nothing_is_left_when_a_connection_ends() {
    watched(|| {
        let (_kept, ssh) = fake();
        connection_ends(words(&ssh), "a,b");
    });
}

/// Kills ssh, and checks that the processes on the other host exit.
fn connection_ends(ssh: Vec<String>, hosts: &str) {
    let fifo = Fifo::new();
    let heard = fifo.read();
    let text =
        r#"exec 9>"$PIPE"; trap '' TERM HUP; sleep 1000 & echo ready >&9; while :; do sleep 1000; done"#;
    let (launch, _, _folder, _) = launch(ssh, hosts, 2, text);
    let running = launch.env("PIPE", fifo.path()).grace(Duration::from_millis(100)).spawn().unwrap();
    assert_eq!(heard.lines(2), ["ready", "ready"]);
    let ssh = rustix::process::Pid::from_raw(running.pid(&worker(0)).unwrap().try_into().unwrap()).unwrap();
    rustix::process::kill_process_group(ssh, rustix::process::Signal::KILL).unwrap();
    let outcome = ended(running);
    assert_eq!((outcome.cause.clone(), outcome.exit_code()), (Cause::Failed(0), 137), "{outcome}");
    assert_eq!(heard.end(), [] as [&str; 0]);
}

#[test]
fn a_single_loopback_host_gets_free_ports() {
    watched(|| {
        let (_kept, ssh) = fake();
        let (launch, said, _folder, _) = launch(words(&ssh), "localhost", 2, TOLD);
        assert!(ended(launch.spawn().unwrap()).is_success());
        let config: TfConfig = said.of(&worker(0))[0].parse().unwrap();
        let addresses: BTreeSet<_> = config.cluster.tasks().map(|(_, address)| address.to_string()).collect();
        assert_eq!(addresses.len(), 2);
        assert!(addresses.iter().all(|address| address.starts_with("localhost:")), "{addresses:?}");
    });
}

/// The environment is larger than a pipe. It is sent over the connection before the task starts.
#[test]
fn a_large_environment_crosses_the_connection() {
    watched(|| {
        let (_kept, ssh) = fake();
        let (launch, said, _folder, _) = launch(words(&ssh), "a,b", 2, "echo ${#LARGE}");
        let launch = launch.env("LARGE", "'\n".repeat(60_000));
        let outcome = ended(launch.spawn().unwrap());
        assert!(outcome.is_success(), "{outcome}\n{}", said.all());
        assert_eq!(said.of(&worker(1)), ["120000"].map(String::from));
    });
}

/// Runs the launcher of [`with_sshd`] that is killed.
fn launcher() {
    let Some(ssh) = part() else { return };
    let text =
        r#"exec 9>"$PIPE"; trap '' TERM HUP; sleep 1000 & echo ready >&9; while :; do sleep 1000; done"#;
    let (launch, _, _folder, _) = launch(distribute_launch::split_words(&ssh).unwrap(), "localhost", 2, text);
    let pipe = std::env::var_os("PIPE").unwrap();
    std::process::exit(launch.env("PIPE", pipe).run().unwrap().exit_code());
}

/// Runs against a real sshd on loopback, from Debian's openssh-server: `DISTRIBUTE_TEST_SSHD=/usr/sbin/sshd cargo test
/// -p distribute-launch --test it ssh`.
#[test]
fn with_sshd() {
    launcher();
    let Some(sshd) = std::env::var_os("DISTRIBUTE_TEST_SSHD") else {
        println!("skipped: DISTRIBUTE_TEST_SSHD names no sshd");
        return;
    };
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
        for key in ["host", "user"] {
            let made =
                Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]).status();
            assert!(made.unwrap().success());
        }
        std::fs::copy(path("user.pub"), path("authorized")).unwrap();
        let reserved = Port::reserve();
        let port = reserved.number();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\nMaxStartups 100\n",
            path("host"),
            path("authorized")
        );
        std::fs::write(path("config"), config).unwrap();
        // It separates its privileges in a folder that Debian makes when the service starts.
        let _ = std::fs::create_dir("/run/sshd");
        let server =
            Command::new(sshd).args(["-D", "-e", "-f", &path("config")]).stderr(Stdio::piped()).spawn();
        let mut server = Killed(server.unwrap());
        let mut lines = BufReader::new(server.0.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("Server listening")));
        std::thread::spawn(move || lines.for_each(drop));
        let ssh = format!(
            "ssh -T -F none -p {port} -i {} -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
             -o LogLevel=ERROR",
            path("user")
        );
        let words = || distribute_launch::split_words(&ssh).unwrap();

        let (launch, said, home, secret) = launch(
            words(),
            "localhost",
            2,
            &format!("{TOLD}; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'"),
        );
        let outcome = ended(launch.env("MINE", "x'y").spawn().unwrap());
        assert!(outcome.is_success(), "{outcome}\n{}", said.all());
        for index in 0..2 {
            let lines = said.of(&worker(index));
            assert_eq!(lines[0].parse::<TfConfig>().unwrap().task(), Some(worker(index)));
            assert_eq!(lines[1..5], [home.path().to_str().unwrap(), "it's \"$HOME\"", " two", "64 0 x'y"]);
        }
        assert!(!said.all().contains(&secret));

        for (script, code) in
            [("echo last >&2; exit 3", 3), ("kill -KILL $$", 255), ("sleep 1000 & exit 5", 5)]
        {
            let (launch, _, _folder, _) = self::launch(words(), "localhost", 1, script);
            assert_eq!(ended(launch.spawn().unwrap()).exit_code(), code, "{script}");
        }
        signals_and_ends(words(), "localhost");
        connection_ends(words(), "localhost");

        // The launcher itself is killed.
        let fifo = Fifo::new();
        let heard = fifo.read();
        let mut command = command("ssh::with_sshd", &ssh);
        let mut launcher = Killed(command.env("PIPE", fifo.path()).spawn().unwrap());
        assert_eq!(heard.lines(2), ["ready", "ready"]);
        launcher.0.kill().unwrap();
        assert_eq!(heard.end(), [] as [&str; 0]);
    });
}
