//! A benchmark of sums of vectors over processes of this machine. The vectors are in shared buffers of the group, and
//! the sums replace them, so nothing is copied before or after.
//!
//! ```text
//! cargo run --release -p distribute-collective --example all_reduce -- \
//!     --workers 2 --links shared|tcp --order exact|fast --wire full|f16|bf16 [--largest BYTES] [--json]
//! ```

use distribute_cluster::{Fingerprint, Operation, ReplicaStatus, Stopwatch, World};
use distribute_collective::group::{Group, GroupCall, Order, Session, SumOptions, Wire, numbers};
use distribute_net::{Listener, Rendezvous, SharedMemory};
use std::error::Error;
use std::panic::Location;
use std::process::{Child, Command};
use std::time::Duration;

/// The environment variable with the address of the first process and the worker's index. The first process sets it in
/// those that it starts.
const PART: &str = "DISTRIBUTE_ALL_REDUCE";

/// The approximate number of bytes to sum for each size of vectors. Sums of short vectors are repeated more often.
const BYTES: usize = 512 << 20;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Asked {
    workers: usize,
    shared_memory: SharedMemory,
    options: SumOptions,
    largest: usize,
    json: bool,
}

impl Asked {
    fn read(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut asked = Self {
            workers: 2,
            shared_memory: SharedMemory::Auto,
            options: SumOptions::default(),
            largest: 64 << 20,
            json: false,
        };
        while let Some(name) = args.next() {
            if name == "--json" {
                asked.json = true;
                continue;
            }
            let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
            match (&*name, &*value) {
                ("--workers", count) => asked.workers = count.parse()?,
                ("--largest", bytes) => asked.largest = bytes.parse()?,
                ("--links", "shared") => asked.shared_memory = SharedMemory::Auto,
                ("--links", "tcp") => asked.shared_memory = SharedMemory::Never,
                ("--order", "exact") => asked.options.order = Order::Exact,
                ("--order", "fast") => asked.options.order = Order::Fast,
                ("--wire", "full") => asked.options.wire = Wire::Full,
                ("--wire", "f16") => asked.options.wire = Wire::F16,
                ("--wire", "bf16") => asked.options.wire = Wire::Bf16,
                _ => return Err(format!("{name} {value}: see the top of this example").into()),
            }
        }
        Ok(asked)
    }

    fn join(&self, worker: usize, address: &str, listener: Option<Listener>) -> Result<Group> {
        let world = World::new(self.workers, worker, 1)?;
        let others = (1..self.workers).map(|_| "127.0.0.1:0".to_owned());
        let addresses = std::iter::once(address.to_owned()).chain(others).collect();
        let rendezvous = Rendezvous::new(world, addresses).shared_memory(self.shared_memory);
        Ok(Group::join(
            world,
            match listener {
                Some(listener) => rendezvous.listener(listener),
                None => rendezvous,
            },
        )?)
    }
}

/// The processes of the other workers, which are killed when this value is dropped.
struct Others(Vec<Child>);

impl Drop for Others {
    fn drop(&mut self) {
        for other in &mut self.0 {
            let _ = other.kill();
            let _ = other.wait();
        }
    }
}

impl Others {
    fn start(count: usize, address: &str) -> Result<Self> {
        let mut others = Self(Vec::new());
        for worker in 1..count {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(std::env::args().skip(1)).env(PART, format!("{worker} {address}"));
            others.0.push(command.spawn()?);
        }
        Ok(others)
    }
}

/// Returns the median time of a sum of vectors of `bytes` bytes.
fn median(session: &Session, options: &SumOptions, bytes: usize) -> Result<Duration> {
    let world = session.world();
    let calling = || {
        let call = Fingerprint::new(Operation::AllReduce, format!("{bytes} bytes"), Location::caller());
        GroupCall::new(session, vec![ReplicaStatus::waiting(world.worker(), call)], Duration::from_secs(60))
    };
    let mut vector = calling().buffers().take(bytes);
    let mine = (world.worker() + 1) as f32;
    vector.bytes_mut().as_chunks_mut().0.fill(mine.to_ne_bytes());
    let vector = [vector.freeze()];
    let weights = vec![1f32; world.workers()];
    let mut times = Vec::new();
    for _ in 0..(BYTES / bytes).clamp(9, 500) {
        let watch = Stopwatch::start();
        let sum = calling().all_reduce_vectors(&vector, &weights, options)?;
        times.push(watch.elapsed());
        let expected = (1..=world.workers()).sum::<usize>() as f32;
        let ends = |piece| numbers::<f32>(piece).first() != Some(&expected);
        if sum.iter().filter(|piece| !piece.is_empty()).any(|piece| ends(piece)) {
            return Err(format!("a sum of {bytes} bytes is wrong").into());
        }
    }
    times.sort();
    Ok(times[times.len() / 2])
}

fn run(group: &Group, asked: &Asked) -> Result<()> {
    let session = group.open("all_reduce", 1);
    let is_first = group.world().worker() == 0;
    if is_first && !asked.json {
        println!("{} workers, {}", asked.workers, asked.options);
        println!("{:>10} {:>12} {:>10}", "bytes", "median", "GB/s");
    }
    let mut bytes = 64;
    while bytes <= asked.largest {
        let seconds = median(&session, &asked.options, bytes)?.as_secs_f64();
        if is_first && asked.json {
            println!("{{\"bytes\":{bytes},\"seconds\":{seconds:e}}}");
        } else if is_first {
            println!("{bytes:>10} {:>9.1} µs {:>10.2}", seconds * 1e6, bytes as f64 / seconds / 1e9);
        }
        bytes *= 4;
    }
    Ok(())
}

fn main() -> Result<()> {
    let asked = Asked::read(std::env::args().skip(1))?;
    if let Ok(part) = std::env::var(PART) {
        let (worker, address) = part.split_once(' ').ok_or("no worker and address")?;
        let group = asked.join(worker.parse()?, address, None)?;
        let ran = run(&group, &asked);
        group.end();
        return ran;
    }
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.address()?.to_string();
    let mut others = Others::start(asked.workers, &address)?;
    let group = asked.join(0, &address, Some(listener))?;
    run(&group, &asked)?;
    group.end();
    // The other processes exit now, because this one has notified them.
    for other in &mut others.0 {
        other.wait()?;
    }
    Ok(())
}
