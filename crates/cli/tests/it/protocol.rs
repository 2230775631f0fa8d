//! Runs the reader in docs/reference/protocol.md, which needs only Python's standard library, against
//! `distribute serve`, with a secret and without one.

use distribute::cluster::{ClusterSpec, Job, Task};
use distribute::net::{Credentials, Secret};
use distribute_ps_server::Connection;
use distribute_ps_tables::{Channel, Request, TableSpec};
use distribute_rpc::ClientBuilder;
use distribute_tensor::HostTensor;
use distribute_testing::child::{self, Killed};
use distribute_testing::{Port, block, skipped};
use std::process::{Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn the_reader_of_the_protocols_page_reads_tables() {
    if Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_err() {
        return skipped("there is no python3");
    }
    let reader = block("reference/protocol.md", "python");
    let text = "5a".repeat(32);
    for secret in [None, Some(text.as_str())] {
        let port = Port::reserve();
        let address = port.address().to_string();
        let set = |command: &mut Command| {
            command.env_remove("DISTRIBUTE_SECRET").envs(secret.map(|secret| ("DISTRIBUTE_SECRET", secret)));
        };
        let mut serve = Command::new(env!("CARGO_BIN_EXE_distribute"));
        set(serve.args(["serve", "--servers", &address]).stderr(Stdio::null()));
        let _server = Killed(serve.spawn().unwrap());

        let cluster = ClusterSpec::from_lists([("ps", [&address])]).unwrap();
        let mut credentials = Credentials::new().any_job();
        if let Some(secret) = secret {
            credentials = credentials.secret(Secret::from_hex(secret, "a test").unwrap());
        }
        let clients = ClientBuilder::new(cluster, Task::new("test", 0)).credentials(credentials);
        let ps = Connection::new(clients, Job::Ps.task(0));
        let values = HostTensor::new((0..6).map(|x| x as f32).collect(), [3, 2]).unwrap();
        let steps = TableSpec::values("steps", HostTensor::scalar(7i64));
        for spec in [TableSpec::values("w", values), steps] {
            ps.call(Request::Create(spec), PATIENCE).unwrap();
        }

        let read = |arguments: &[&str]| {
            let mut python = Command::new("python3");
            set(python.args(["-I", "-c", &reader, &address]).args(arguments));
            child::output(python, PATIENCE).0
        };
        assert_eq!(read(&[]), "steps dense [] int64 1\nw dense [3, 2] float32 3\n");
        assert_eq!(read(&["w", "2", "0"]), "4.0 5.0\n0.0 1.0\n");
    }
}
