//! The requests of clients, for a dense variable and for tables.

use crate::cluster::{Channels, together};
use crate::{MINUTE, Result};
use distribute_optim::{RuleSpec, Sgd, Step};
use distribute_ps_tables::{
    Contents, DynamicOptions, Initializer, Origin, Push, Request, Response, RowPartition, TableSpec,
};
use distribute_tensor::random::{Distribution, Draws};
use distribute_tensor::{DType, HostTensor};
use std::sync::atomic::{AtomicU64, Ordering};

pub const WIDTH: usize = 32;
/// The number of elements of the dense variable on each server.
pub const ELEMENTS: usize = 4 << 20;

fn create(channels: &Channels, name: &str, contents: impl Fn(usize) -> Contents) -> Result<()> {
    for (i, channel) in channels.iter().enumerate() {
        let rule = Some(RuleSpec::Sgd(Sgd));
        channel.call(
            Request::Create(TableSpec { name: name.into(), contents: contents(i), rule, rounding: None }),
            MINUTE,
        )?;
    }
    Ok(())
}

/// Creates a dense variable of zeros, with [`ELEMENTS`] elements on each server.
pub fn create_dense(channels: &Channels) -> Result<()> {
    let zeros = HostTensor::zeros(DType::F32, [ELEMENTS])?;
    create(channels, "dense", |_| Contents::Values(zeros.clone()))
}

fn initializer(name: &str) -> Initializer {
    Initializer::new(Distribution::Uniform { lo: -0.1, up: 0.1 }, 1, name)
}

/// Creates a table of `rows` rows.
pub fn create_rows(channels: &Channels, name: &str, rows: usize) -> Result<()> {
    let (initializer, partition) = (initializer(name), RowPartition::div(rows, channels.len()));
    create(channels, name, |shard| Contents::Initialized {
        shape: vec![rows, WIDTH],
        dtype: DType::F32,
        initializer,
        partition,
        shard,
    })
}

/// Creates a table whose rows are identified by ids.
pub fn create_ids(channels: &Channels, name: &str) -> Result<()> {
    let (initializer, options) = (initializer(name), DynamicOptions::default());
    create(channels, name, |_| Contents::Dynamic {
        row_shape: vec![WIDTH],
        dtype: DType::F32,
        initializer,
        options,
    })
}

/// The number of a closure, and the number below which all closures have completed.
#[derive(Clone, Copy)]
pub struct Closure {
    number: u64,
    floor: u64,
}

/// The closures of all clients. Each client runs one at a time.
pub struct Closures {
    next: AtomicU64,
    /// A lower bound of the number of each client's closure.
    in_progress: Vec<AtomicU64>,
}

impl Closures {
    pub fn new(clients: usize) -> Self {
        Self { next: AtomicU64::new(0), in_progress: (0..clients).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Begins the next closure of a client, after its previous one.
    pub fn next(&self, client: usize) -> Closure {
        // Before the number is taken, so that no other client takes this closure for ended, however long this thread
        // sleeps.
        self.in_progress[client].store(self.next.load(Ordering::SeqCst), Ordering::SeqCst);
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let floor = self.in_progress.iter().map(|least| least.load(Ordering::SeqCst)).min();
        Closure { number, floor: floor.unwrap_or(number) }
    }
}

/// A push in a step, by a closure if there is one.
pub struct Pushing {
    pub step: u64,
    pub closure: Option<Closure>,
}

impl Pushing {
    fn request(&self, change: impl FnOnce(Push) -> Request) -> Request {
        let change = change(Push::at(Step::after(self.step, 0.1)));
        match self.closure {
            Some(closure) => {
                let origin = Origin { job: 0, closure: closure.number, floor: closure.floor };
                Request::Once { origin, number: 0, change: Box::new(change) }
            }
            None => change,
        }
    }
}

pub fn pull(channels: &Channels) -> Result<()> {
    together(channels, |_| Request::Read { table: "dense".into(), known: None, may_round: false }).map(drop)
}

pub fn push(channels: &Channels, pushing: &Pushing, gradient: &HostTensor) -> Result<()> {
    let change = |push| Request::Push { table: "dense".into(), push, gradient: gradient.clone() };
    together(channels, |_| pushing.request(change)).map(drop)
}

/// The rows of a table that is sharded over all servers.
pub struct Rows<'a> {
    pub table: &'a str,
    /// The number of rows on all servers together.
    pub rows: usize,
    /// The number of rows in a request.
    pub count: usize,
}

impl Rows<'_> {
    fn ids(&self, client: usize, step: u64, server: usize, servers: usize) -> Vec<i64> {
        let draws = Draws::new(client as u64, step * servers as u64 + server as u64);
        let here = (self.rows / servers) as u64;
        (0..(self.count / servers) as u64).map(|i| (draws.bits(i) % here) as i64).collect()
    }

    pub fn look_up(&self, channels: &Channels, client: usize, step: u64) -> Result<()> {
        let rows = |server| self.ids(client, step, server, channels.len());
        let request = |server| Request::ReadRows { table: self.table.into(), rows: rows(server) };
        together(channels, request).map(drop)
    }

    pub fn scatter(&self, channels: &Channels, client: usize, pushing: &Pushing) -> Result<()> {
        let count = self.count / channels.len();
        let gradient = HostTensor::new(vec![1e-3f32; count * WIDTH], [count, WIDTH])?;
        let request = |server| {
            pushing.request(|push| Request::PushRows {
                table: self.table.into(),
                push,
                rows: self.ids(client, pushing.step, server, channels.len()),
                gradient: gradient.clone(),
            })
        };
        together(channels, request).map(drop)
    }
}

/// Returns the number of bytes of memory that a table takes for each of its rows.
pub fn bytes_of_row(channels: &Channels, name: &str) -> Result<f64> {
    let (mut rows, mut bytes) = (0, 0);
    for answer in together(channels, |_| Request::List)? {
        let Response::Tables(all) = answer else { return Err("no list".into()) };
        for info in all.iter().filter(|info| info.name == name) {
            (rows, bytes) = (rows + info.rows, bytes + info.bytes);
        }
    }
    Ok(bytes as f64 / rows as f64)
}
