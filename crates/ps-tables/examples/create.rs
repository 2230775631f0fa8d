//! The time and memory in which a worker creates its shard of a table, which all workers request at the same time:
//! `cargo run --release -p distribute-ps-tables --example create -- ROWS WIDTH WORKERS`.

use distribute_cluster::Stopwatch;
use distribute_ps_tables::{
    Contents, Initializer, PartitionStrategy, Request, RowPartition, TableSpec, Tables,
};
use distribute_tensor::DType;
use distribute_tensor::random::Distribution;
use std::error::Error;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<(), Box<dyn Error>> {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let [rows, width, workers] = numbers[..] else { return Err("usage: create ROWS WIDTH WORKERS".into()) };
    let contents = Contents::Initialized {
        shape: vec![rows, width],
        dtype: DType::F32,
        initializer: Initializer::new(Distribution::Normal { mean: 0., stdev: 1. }, 42, "table.weight"),
        partition: RowPartition::new(PartitionStrategy::Mod, rows, workers),
        shard: 0,
    };
    let create = Request::Create(TableSpec { name: "table".into(), contents, rule: None, rounding: None });
    let (tables, watch) = (Tables::new(), Stopwatch::start());
    let created = std::thread::scope(|scope| {
        let requests: Vec<_> = (0..workers).map(|_| scope.spawn(|| tables.handle(&create))).collect();
        requests.into_iter().map(|request| request.join()).collect::<Vec<_>>()
    });
    let seconds = watch.seconds();
    for created in created {
        created.map_err(|_| "a thread panicked")??;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("peak unknown");
    println!("shard of {} MB in {seconds:.2} s; {peak}", tables.bytes() / 1_000_000);
    Ok(())
}
