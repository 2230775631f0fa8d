//! Two hosts, as network namespaces: they train with mutual TLS, and a stranger on a third is refused by
//! name.
//!
//! Needs root, `ip` of iproute2 and `openssl`, so it only runs on request:
//!
//! ```text
//! DISTRIBUTE_TEST_NAMESPACES=1 cargo test -p distribute-examples-tests --test namespaces
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use distribute::cluster::Deadline;
use distribute_testing::watched;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// A namespace for each worker, and one for the stranger.
const HOSTS: [&str; 3] = ["a", "b", "stranger"];

/// Hosts a and b are in one network. The stranger shares another network with a, so it can connect to a.
const ADDRESSES: [&str; 3] = ["10.77.0.1", "10.77.0.2", "10.77.1.3"];

/// The maximum time for anything that a process should do at once.
const PATIENCE: Duration = Duration::from_secs(30);

/// Three hosts, which are removed with all of their processes on drop. The test owns them outside the watchdog, because
/// it abandons hung tests.
struct Hosts(String);

impl Hosts {
    fn new(what: &str) -> Self {
        sweep();
        // From here on it is removed.
        let hosts = Self(format!("distribute-{}-{what}", std::process::id()));
        let [a, b, stranger] = HOSTS.map(|host| hosts.name(host));
        for host in [&a, &b, &stranger] {
            ip(&["netns", "add", host]);
        }
        for (device, other, network) in [("inside", &b, "10.77.0"), ("outside", &stranger, "10.77.1")] {
            let last = if device == "inside" { 2 } else { 3 };
            ip(&["link", "add", device, "netns", &a, "type", "veth", "peer", "name", device, "netns", other]);
            for (host, number) in [(&a, 1), (other, last)] {
                ip(&["-n", host, "address", "add", &format!("{network}.{number}/24"), "dev", device]);
                ip(&["-n", host, "link", "set", device, "up"]);
            }
        }
        ip(&["-n", &stranger, "route", "add", "10.77.0.0/24", "via", "10.77.1.1"]);
        hosts
    }

    fn name(&self, host: &str) -> String {
        format!("{}-{host}", self.0)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        HOSTS.iter().for_each(|host| remove(&self.name(host)));
    }
}

/// Removes a namespace and ends the processes in it.
fn remove(name: &str) {
    if let Ok(output) = Command::new("ip").args(["netns", "pids", name]).output() {
        for pid in text(&output.stdout).split_whitespace() {
            let _ = Command::new("kill").args(["-KILL", pid]).status();
        }
    }
    let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
}

/// Removes what killed tests have left.
fn sweep() {
    let output = Command::new("ip").args(["netns", "list"]).output().expect("this test needs ip of iproute2");
    for name in text(&output.stdout).lines().filter_map(|line| line.split_whitespace().next()) {
        let pid =
            name.strip_prefix("distribute-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(name);
        }
    }
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("this test needs ip of iproute2");
    assert!(output.status.success(), "ip {}: {} (it needs root)", arguments.join(" "), text(&output.stderr));
}

/// The credentials of a worker in the job.
#[derive(Clone)]
enum Identity {
    Secret(String),
    Certificates(PathBuf),
}

/// A process on a host, whose standard error is read line by line.
struct Running {
    output: mpsc::Receiver<Output>,
    errors: mpsc::Receiver<String>,
    lines: Vec<String>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let ((line, errors), (ended, output)) = (mpsc::channel(), mpsc::channel());
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|text| line.send(text)));
        std::thread::spawn(move || ended.send(child.wait_with_output().unwrap()));
        Self { output, errors, lines: Vec::new() }
    }

    /// Waits for a line that contains all `parts`, and returns it.
    fn wait_for_line(&mut self, parts: &[&str]) -> String {
        // It may print many other lines.
        let deadline = Deadline::after(PATIENCE);
        loop {
            let line = self.errors.recv_timeout(deadline.remaining());
            let line = line.unwrap_or_else(|_| panic!("nothing with {parts:?} in {:#?}", self.lines));
            self.lines.push(line.clone());
            if parts.iter().all(|part| line.contains(part)) {
                return line;
            }
        }
    }

    /// Waits until the process has ended, which must succeed if `well` and otherwise fail. Returns its standard output
    /// and errors.
    fn ends(mut self, well: bool) -> (String, String) {
        let output = self.output.recv_timeout(2 * PATIENCE);
        self.lines.extend(self.errors.iter());
        let errors = self.lines.join("\n");
        let output = output.unwrap_or_else(|_| panic!("it has not ended: {errors}"));
        assert_eq!(output.status.success(), well, "{errors}");
        (text(&output.stdout), errors)
    }
}

/// Returns the path of the example's program, built once with this test's profile: `cargo test --test` builds no
/// examples.
fn digits() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(cargo) = std::env::var_os("CARGO") {
            let mut build = Command::new(cargo);
            build.args(["build", "--quiet", "--locked", "--package", "distribute-examples"]);
            build.args(["--example", "digits"]);
            if !cfg!(debug_assertions) {
                build.arg("--release");
            }
            assert!(build.status().unwrap().success());
        }
        let test = std::env::current_exe().unwrap();
        test.parent().and_then(|deps| deps.parent()).unwrap().join("examples/digits")
    })
}

/// Returns the command that trains on a host, as worker 0 or 1 of a cluster of two hosts.
fn training(hosts: &Hosts, host: usize, cluster: [usize; 2], identity: &Identity) -> Command {
    let addresses = cluster.map(|host| format!("{}:2222", ADDRESSES[host]));
    let worker = usize::from(host != cluster[0]);
    let config = json!({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}});
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &hosts.name(HOSTS[host])]).arg(digits());
    command.args(["--strategy", "multi-worker", "--epochs", "1", "--replicas", "1", "--quiet", "--json"]);
    command.env("TF_CONFIG", config.to_string()).env_remove("DISTRIBUTE_SECRET");
    match identity {
        Identity::Secret(secret) => command.env("DISTRIBUTE_SECRET", secret),
        Identity::Certificates(folder) => command.arg("--certificates").arg(folder),
    };
    command
}

/// Checks that two hosts train together, even if strangers connect before the second one.
fn two_hosts_train(what: &str, identities: impl Fn(&Path) -> [Identity; 3]) {
    if std::env::var("DISTRIBUTE_TEST_NAMESPACES").as_deref() != Ok("1") {
        eprintln!("not asked for: DISTRIBUTE_TEST_NAMESPACES=1 runs it");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let identities = identities(folder.path());
    // Outside the watchdog.
    digits();
    // The thread of the watchdog shares the hosts; this thread drops them last.
    let hosts = Arc::new(Hosts::new(what));
    let theirs = Arc::downgrade(&hosts);
    watched(move || {
        let hosts = || theirs.upgrade().expect("the test goes on");
        let [a, b, other] = &identities;
        let start = |host, cluster, identity| Running::start(training(&hosts(), host, cluster, identity));

        let mut leader = start(0, [0, 1], a);
        leader.wait_for_line(&["1 of 2 workers joined", "missing worker 1 at 10.77.0.2:2222"]);

        // Another secret, or a certificate of another CA.
        let (_, said) = start(2, [0, 2], other).ends(false);
        assert!(said.contains("worker 0 at 10.77.0.1:2222"), "{said}");
        println!("the stranger: {said}");
        println!("the leader: {}", leader.wait_for_line(&["connection", "(address 10.77.1.3:"]));

        // No certificate.
        let mut none = Command::new("ip");
        none.args(["netns", "exec", &hosts().name(HOSTS[2]), "openssl", "s_client", "-quiet"]);
        none.args(["-no_ign_eof", "-connect", "10.77.0.1:2222"]);
        let none = Running::start(none);
        println!("the leader: {}", leader.wait_for_line(&["connection", "(address 10.77.1.3:"]));
        drop(none);

        let second = start(1, [0, 1], b);
        let (_, said) = second.ends(true);
        assert!(said.contains("worker 1 of 2"), "{said}");
        let (figures, said) = leader.ends(true);
        let figures: Value = serde_json::from_str(figures.lines().last().unwrap_or_default())
            .unwrap_or_else(|error| panic!("{error}: {figures}; {said}"));
        assert_eq!((&figures["same_weights"], &figures["replicas"]), (&json!(true), &json!(2)), "{figures}");
    });
}

#[test]
fn two_hosts_train_with_certificates_made_from_the_secret() {
    two_hosts_train("secret", |_| ["a", "a", "b"].map(|digit| Identity::Secret(digit.repeat(64))));
}

#[test]
fn two_hosts_train_with_certificates_by_path() {
    two_hosts_train("paths", |folder| {
        let (ours, theirs) = (ca(folder, "ours"), ca(folder, "theirs"));
        let identity = |ca: &Path, name: &str| Identity::Certificates(signed(ca, name));
        [identity(&ours, "a"), identity(&ours, "b"), identity(&theirs, "stranger")]
    });
}

/// Creates a folder with a new CA: its certificate `ca.pem` and its key.
fn ca(folder: &Path, name: &str) -> PathBuf {
    let ca = folder.join(name);
    std::fs::create_dir(&ca).unwrap();
    std::fs::write(ca.join("extensions"), "extendedKeyUsage = serverAuth, clientAuth\n").unwrap();
    openssl(&ca, &format!("req -x509 {NEW_KEY} -days 2 -subj /CN={name} -keyout ca-key.pem -out ca.pem"));
    ca
}

/// Creates a folder with a certificate signed by the CA, its key, and the CA's certificate.
fn signed(ca: &Path, name: &str) -> PathBuf {
    let folder = ca.join(name);
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(ca.join("ca.pem"), folder.join("ca.pem")).unwrap();
    openssl(&folder, &format!("req {NEW_KEY} -subj /CN={name} -keyout key.pem -out request.pem"));
    openssl(
        &folder,
        "x509 -req -in request.pem -CA ca.pem -CAkey ../ca-key.pem -set_serial 2 -days 2 -extfile ../extensions \
         -out certificate.pem",
    );
    folder
}

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl").args(arguments.split_whitespace()).current_dir(folder).output();
    let output = output.expect("this test needs openssl");
    assert!(output.status.success(), "openssl {arguments}: {}", text(&output.stderr));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
