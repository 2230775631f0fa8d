//! Runs the script that `distribute launch --print slurm` prints, with Slurm on this machine: a real
//! controller and a real node.
//!
//! Needs root and Debian's `slurmctld`, `slurmd`, `slurm-client` and `munge`, so it only runs on request:
//!
//! ```text
//! cargo build -p distribute-examples --examples
//! DISTRIBUTE_TEST_SLURM=1 cargo test -p distribute-examples-tests --test slurm
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod processes;

use distribute_launch::Layout;
use distribute_launch::print::{Job, Target};
use distribute_testing::{Port, child::Killed, watched_for};
use processes::{example, text};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Slurm with one node, which ends on drop.
struct Slurm {
    _daemons: [Killed; 2],
    munge: Munge,
    folder: tempfile::TempDir,
    _ports: [Port; 2],
}

/// The daemon by which Slurm's daemons authenticate each other.
struct Munge(PathBuf);

impl Drop for Munge {
    fn drop(&mut self) {
        let socket = format!("--socket={}", self.0.display());
        let _ = Command::new("munged").args([&socket, "--stop"]).output();
    }
}

impl Munge {
    fn start(folder: &Path) -> Self {
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        let at = |name: &str| folder.join(name);
        fs::write(at("key"), [7; 64]).unwrap();
        fs::set_permissions(at("key"), Permissions::from_mode(0o600)).unwrap();
        let option = |name: &str, file: &str| format!("--{name}={}", at(file).display());
        // It is ready when this returns.
        let started = Command::new("munged")
            .arg("--force")
            .args([option("key-file", "key"), option("socket", "munge"), option("pid-file", "munge.pid")])
            .args([option("log-file", "munge.log"), option("seed-file", "munge.seed")])
            .output()
            .unwrap();
        assert!(started.status.success(), "{}", text(&started.stderr));
        Self(at("munge"))
    }
}

impl Slurm {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let munge = Munge::start(folder.path());
        for name in ["state", "spool"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let host = text(&Command::new("hostname").arg("-s").output().unwrap().stdout).trim().to_owned();
        let ports = [Port::reserve(), Port::reserve()];
        let configuration = format!(
            "ClusterName=here\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
             AuthType=auth/munge\nAuthInfo=socket={folder}/munge\nCredType=cred/munge\n\
             SlurmctldPort={}\nSlurmdPort={}\nStateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\n\
             SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd.pid\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\nReturnToService=2\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
             SlurmdParameters=config_overrides\nNodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN\n\
             PartitionName=here Nodes={host} Default=YES MaxTime=10 State=UP\n",
            ports[0].number(),
            ports[1].number(),
            folder = folder.path().display(),
        );
        fs::write(folder.path().join("slurm.conf"), configuration).unwrap();
        let daemon = |name: &str, ready: &str| {
            let mut command = Command::new(name);
            command.args(["-D", "-v", "-f"]).arg(folder.path().join("slurm.conf"));
            let mut daemon = Killed(
                command.stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap(),
            );
            let mut said = BufReader::new(daemon.0.stderr.take().unwrap()).lines().map_while(Result::ok);
            let mut all = Vec::new();
            while !all.last().is_some_and(|line: &String| line.contains(ready)) {
                all.push(said.next().unwrap_or_else(|| panic!("{name} has ended: {}", all.join("\n"))));
            }
            // It continues to print.
            std::thread::spawn(move || said.for_each(drop));
            daemon
        };
        let _daemons =
            [daemon("slurmctld", "Running as primary controller"), daemon("slurmd", "slurmd started on")];
        Self { _daemons, munge, folder, _ports: ports }
    }

    /// Submits a script, waits for its end, and returns its output. It must succeed.
    fn run(&self, script: &str) -> String {
        let at = |name: &str| self.folder.path().join(name);
        fs::write(at("job.sh"), script).unwrap();
        let submitted = Command::new("sbatch")
            .arg("--wait")
            .arg(format!("--output={}", at("job.out").display()))
            .arg(at("job.sh"))
            .env("SLURM_CONF", at("slurm.conf"))
            .output()
            .unwrap();
        let said = fs::read_to_string(at("job.out")).unwrap_or_default();
        assert!(submitted.status.success(), "{}\n{said}", text(&submitted.stderr));
        assert!(self.munge.0.exists());
        said
    }
}

fn figures(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}"))
}

#[test]
fn printed_commands_train_the_weights_of_one_process() {
    if std::env::var_os("DISTRIBUTE_TEST_SLURM").is_none() {
        return println!("not asked for: DISTRIBUTE_TEST_SLURM=1");
    }
    watched_for(Duration::from_secs(300), || {
        let digits = example("digits").display().to_string();
        let options = ["--epochs", "1", "--quiet", "--json"];
        let words = [&*digits, "--strategy", "multi-worker", "--replicas", "1"];
        let command: Vec<_> = words.iter().chain(&options).map(|word| (*word).to_owned()).collect();
        let layout = Layout::new(2);
        let job = Job::new(&layout, &command);
        let slurm = Slurm::start();
        let said = slurm.run(&job.print(Target::Slurm).unwrap());
        let chief = said.lines().find_map(|line| line.strip_prefix("0: {"));
        let chief = figures(&format!("{{{}", chief.unwrap_or_else(|| panic!("{said}"))));
        let one = Command::new(&digits).args(["--replicas", "2"]).args(options).output().unwrap();
        let one = figures(text(&one.stdout).lines().last().unwrap());
        assert_eq!(chief["weights_sha256"], one["weights_sha256"], "{said}");
        assert_eq!(chief["workers"], 2);

        // A chief schedules: without it, servers and workers would wait for one for ever.
        let packages = example("packages").display().to_string();
        let command =
            [&*packages, "--strategy", "ps", "--epochs", "1", "--quiet", "--json"].map(str::to_owned);
        let layout = Layout::new(1).with_chief().ps(1);
        let said = slurm.run(&Job::new(&layout, &command).print(Target::Slurm).unwrap());
        assert!(
            said.lines().any(|line| line.starts_with("0: {") && line.contains("\"example\":\"packages\"")),
            "{said}"
        );

        // The third job of this Slurm would have this port.
        let taken = TcpListener::bind(("127.0.0.1", 10_000 + 3 * 64)).unwrap();
        let command = ["sh", "-c", "echo port $DISTRIBUTE_PORT_BASE"].map(str::to_owned);
        let said = slurm.run(&Job::new(&Layout::new(1), &command).print(Target::Slurm).unwrap());
        let port =
            said.lines().find_map(|line| line.strip_prefix("0: port ")).unwrap_or_else(|| panic!("{said}"));
        assert!(port.parse::<u16>().unwrap() > taken.local_addr().unwrap().port(), "{said}");
    });
}
