//! A parameter server on loopback, and clients of it.

#![allow(dead_code)]

use distribute_cluster::{ClusterSpec, Deadline, Job, Task};
use distribute_net::{Certificates, Identity, Settings};
use distribute_rpc::{Call, Client, ClientBuilder, Reply, Server, ServerBuilder};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

pub const PATIENCE: Duration = Duration::from_secs(50);

pub fn ps() -> Task {
    Job::Ps.task(0)
}

pub fn cluster() -> ClusterSpec {
    let local = || "127.0.0.1:0";
    ClusterSpec::from_lists([
        ("chief", vec![local()]),
        ("ps", vec![local()]),
        ("worker", vec![local(), local()]),
    ])
    .unwrap()
}

/// Returns settings with which a busy machine is not taken for a failed one.
pub fn patient() -> Settings {
    Settings { silence: Duration::from_secs(30), ..Settings::default() }
}

pub fn server(setup: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Server {
    let builder = Server::builder(cluster()).task(ps()).credentials(Identity::None).settings(patient());
    setup(builder).start().unwrap()
}

pub fn clients(server: &Server, from: Task) -> ClientBuilder {
    ClientBuilder::new(server.cluster().clone(), from).credentials(Identity::None).settings(patient())
}

pub fn client(server: &Server, from: Task) -> Client {
    clients(server, from).connect(&ps(), PATIENCE).unwrap()
}

pub fn echo(call: Call, reply: Reply) {
    reply.answer(call.message.head, call.message.body);
}

/// Waits until a condition is true.
pub fn until(what: &str, is: impl Fn() -> bool) {
    let (_keep, never) = mpsc::channel::<()>();
    let deadline = Deadline::after(PATIENCE);
    while !is() {
        assert!(!deadline.has_passed(), "{what} has not happened");
        let _ = never.recv_timeout(Duration::from_millis(2));
    }
}

/// Creates files with a CA and a certificate that it has signed.
pub fn certificates(folder: &Path, name: &str) -> Certificates {
    let [ca, certificate, key] = distribute_testing::certificates(folder, name);
    Certificates { ca, certificate, key }
}
