//! Parameter servers on loopback, and connections to them.

#![allow(dead_code)]

use distribute_cluster::{ClusterSpec, Deadline, Job, Task};
use distribute_net::{Identity, Settings};
use distribute_optim::{RuleSpec, Sgd, Step};
use distribute_ps_server::{Connection, ParameterServer, SERVICE};
use distribute_ps_tables::{
    Channel, Contents, DynamicOptions, Initializer, Push, Request, Response, TableSpec,
};
use distribute_rpc::{ClientBuilder, Server};
use distribute_tensor::random::Distribution;
use distribute_tensor::{DType, HostTensor, Write};
use std::sync::mpsc;
use std::time::Duration;

pub const PATIENCE: Duration = Duration::from_secs(50);

pub fn ps() -> Task {
    Job::Ps.task(0)
}

/// Returns a cluster with one server, at this port.
pub fn cluster(port: u16) -> ClusterSpec {
    let (at, worker) = (format!("127.0.0.1:{port}"), || "127.0.0.1:0".to_owned());
    ClusterSpec::from_lists([("ps", vec![at]), ("worker", vec![worker(), worker(), worker()])]).unwrap()
}

/// Returns settings with which a busy machine is not taken for a failed one.
pub fn patient() -> Settings {
    Settings { silence: Duration::from_secs(30), ..Settings::default() }
}

pub fn server(cluster: ClusterSpec, tables: ParameterServer, identity: Identity) -> Server {
    let builder = Server::builder(cluster).task(ps()).credentials(identity).settings(patient());
    builder.service(SERVICE, tables).start().unwrap()
}

pub fn clients(cluster: &ClusterSpec, worker: usize, identity: Identity) -> ClientBuilder {
    ClientBuilder::new(cluster.clone(), Job::Worker.task(worker)).credentials(identity).settings(patient())
}

pub fn connection(cluster: &ClusterSpec, worker: usize) -> Connection {
    Connection::new(clients(cluster, worker, Identity::None), ps())
}

pub fn matrix(values: &[f32], width: usize) -> HostTensor {
    HostTensor::new(values.to_vec(), [values.len() / width, width]).unwrap()
}

/// Creates a dynamic table of rows of one number. Rows start at 0 and are updated by plain gradient descent.
pub fn dynamic(name: &str) -> Request {
    let initializer = Initializer::new(Distribution::Constant(0.), 7, name);
    let contents = Contents::Dynamic {
        row_shape: vec![1],
        dtype: DType::F64,
        initializer,
        options: DynamicOptions::default(),
    };
    Request::Create(TableSpec {
        name: name.to_owned(),
        contents,
        rule: Some(RuleSpec::Sgd(Sgd)),
        rounding: None,
    })
}

/// Creates a table of counters.
pub fn counters(name: &str, rows: usize) -> Request {
    Request::Create(TableSpec::values(name, HostTensor::zeros(DType::I64, [rows, 1]).unwrap()))
}

/// Adds 1 to a row of counters.
pub fn count(table: &str, row: i64) -> Request {
    let values = HostTensor::new(vec![1i64], [1, 1]).unwrap();
    Request::WriteRows { table: table.to_owned(), how: Write::Add, rows: vec![row], values }
}

/// Adds 1 to the row of an id.
pub fn push(table: &str, id: i64) -> Request {
    let gradient = HostTensor::new(vec![-1f64], [1, 1]).unwrap();
    let push = Push::at(Step::after(0, 1.));
    Request::PushRows { table: table.to_owned(), push, rows: vec![id], gradient }
}

/// Returns the values of some rows.
pub fn rows(channel: &dyn Channel, table: &str, rows: Vec<i64>) -> HostTensor {
    match channel.call(Request::ReadRows { table: table.to_owned(), rows }, PATIENCE).unwrap() {
        Response::Rows(rows) => rows,
        other => panic!("{other:?}"),
    }
}

/// Waits until a condition is true.
pub fn until(what: &str, is: impl Fn() -> bool) {
    let (_keep, never) = mpsc::channel::<()>();
    let deadline = Deadline::after(PATIENCE);
    while !is() {
        assert!(!deadline.has_passed(), "{what} has not happened");
        let _ = never.recv_timeout(Duration::from_millis(1));
    }
}
