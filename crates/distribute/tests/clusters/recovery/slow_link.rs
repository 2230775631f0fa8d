//! Two hosts with a slow link, which are network namespaces of this machine. One has one worker, the other all others.

use distribute_testing::child::Killed;
use std::io::{BufRead, BufReader};
use std::process::{ChildStdin, Command, Stdio};

/// The environment variable that enables tests with network namespaces, which need root.
const NAMESPACES: &str = "DISTRIBUTE_TEST_NAMESPACES";

/// The first port of a worker. No other process is in the namespaces.
const PORT: usize = 4_000;

/// The link between a worker and all others.
pub struct SlowLink {
    /// The worker with a slow link.
    worker: usize,
    /// The host of that worker, and that of the others.
    hosts: [Host; 2],
}

/// A network namespace, and the process that keeps it alive.
struct Host {
    keeper: Killed,
    _open: ChildStdin,
}

impl SlowLink {
    /// Returns whether such tests are enabled.
    pub fn is_enabled() -> bool {
        std::env::var(NAMESPACES).as_deref() == Ok("1")
    }

    /// Creates a link of this many Mbit/s between the given worker and all others.
    pub fn new(worker: usize, megabits: usize) -> Self {
        let hosts = [Host::new(), Host::new()];
        let other = hosts[1].keeper.0.id();
        hosts[0].run(&format!("ip link add name link0 type veth peer name link0 netns {other}"));
        for (number, host) in hosts.iter().enumerate() {
            host.run(&format!("ip address add {}/24 dev link0", address(number)));
            host.run("ip link set lo up");
            host.run("ip link set link0 up");
            let limit = format!("rate {megabits}mbit burst 20kb latency 200ms");
            host.run(&format!("tc qdisc add dev link0 root tbf {limit}"));
        }
        Self { worker, hosts }
    }

    fn host(&self, worker: usize) -> usize {
        usize::from(worker != self.worker)
    }

    /// Returns the addresses of all workers.
    pub fn addresses(&self, workers: usize) -> Vec<String> {
        (0..workers).map(|worker| format!("{}:{}", address(self.host(worker)), PORT + worker)).collect()
    }

    /// Returns a command that runs on the host of a worker.
    pub fn within(&self, worker: usize, command: &Command) -> Command {
        let mut within = self.hosts[self.host(worker)].command(command.get_program());
        within.args(command.get_args()).env("DISTRIBUTE_SECRET", "a secret of this test");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => within.env(name, value),
                None => within.env_remove(name),
            };
        }
        within
    }
}

fn address(host: usize) -> String {
    format!("10.78.0.{}", host + 1)
}

impl Host {
    fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "--", "sh", "-c", "echo inside; exec cat"]);
        let mut keeper = Killed(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let (open, out) = (keeper.0.stdin.take().unwrap(), keeper.0.stdout.take().unwrap());
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert_eq!(line, "inside\n", "network namespaces need root");
        Self { keeper, _open: open }
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.keeper.0.id())).arg("--").arg(program);
        command
    }

    fn run(&self, text: &str) {
        let mut words = text.split_whitespace();
        let status = self.command(words.next().unwrap()).args(words).status().unwrap();
        assert!(status.success(), "{text}: {status}");
    }
}
