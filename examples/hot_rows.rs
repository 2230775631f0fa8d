//! The rows that workers read in each step from a table whose ids follow Zipf's law, with and without
//! [hot rows](../docs/clusters/tables.md#hot-rows), and the bytes that they send for the copies. Workers are threads of
//! this process, linked by TCP.
//!
//! ```text
//! cargo run --release --example hot_rows -- --workers 4
//! ```

use candle_core::{Device, Module, Tensor};
use clap::Parser;
use distribute::nn::{embedding, prefetch_rows};
use distribute::optimizer::Adagrad;
use distribute::parameter_server::{HotRowUsage, HotRows, PartitionStrategy, RowReads};
use distribute::strategy::{Links, TableHosts, TableOptions};
use distribute::{Error, prelude::*};
use serde_json::json;

/// Counts the rows that workers read from a table, with and without copies of the hottest rows
#[derive(Parser)]
struct Options {
    /// The number of workers
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// The number of replicas of each worker
    #[arg(long, default_value_t = 1)]
    replicas: usize,
    /// The number of rows of the table
    #[arg(long, default_value_t = 100_000)]
    rows: usize,
    /// The number of elements of a row
    #[arg(long, default_value_t = 16)]
    dims: usize,
    /// The number of ids of a replica in each step
    #[arg(long, default_value_t = 4096)]
    batch: usize,
    /// The exponent x of Zipf's law: the frequency of id k is in proportion to 1 / (k + 1)^x
    #[arg(long, default_value_t = 1.)]
    exponent: f64,
    /// The maximum number of hot rows
    #[arg(long, default_value_t = 1000)]
    hot: usize,
    /// Store a contiguous range of rows on each worker, so that the most frequent ids are on the first one
    #[arg(long)]
    contiguous: bool,
    /// Request the rows of the next step while a step ends
    #[arg(long)]
    prefetch: bool,
    /// The number of measured steps, after 48 others
    #[arg(long, default_value_t = 160)]
    steps: u64,
    /// The seed of initial weights and ids
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Print only the result
    #[arg(long)]
    quiet: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

/// The steps before the measured ones, in which the hot rows are chosen.
const FIRST: u64 = 48;

/// The results of one training.
struct Trained {
    /// The number of bytes that all workers have sent for copies in a step.
    copies: f64,
    /// The number of rows that were read from each shard in a step.
    reads: Vec<f64>,
    usage: HotRowUsage,
    sha256: String,
}

impl Trained {
    /// Returns the number of bytes of a step's reads: each row of `bytes` bytes, and its id of 8 bytes in the request.
    fn read_bytes(&self, bytes: usize) -> f64 {
        self.reads.iter().sum::<f64>() * (bytes + 8) as f64
    }
}

#[distribute::main(allocator = mimalloc::MiMalloc)]
fn main() -> distribute::Result<()> {
    let options = Options::parse();
    let (without, with) = (train(&options, None)?, train(&options, Some(HotRows::measured(options.hot)))?);
    if without.sha256 != with.sha256 {
        return Err(Error::other("hot rows have changed the weights"));
    }
    let row_bytes = options.dims * 4;
    if options.json {
        let trained = |it: &Trained| {
            json!({"read_bytes": it.read_bytes(row_bytes), "copy_bytes": it.copies, "reads": it.reads,
                "hot_rows": it.usage.rows})
        };
        let result = json!({"example": "hot_rows", "without": trained(&without), "with": trained(&with),
            "weights_sha256": with.sha256});
        println!("{result}");
        return Ok(());
    }
    if !options.quiet {
        println!(
            "{} workers, {} ids a replica, rows of {} elements",
            options.workers, options.batch, options.dims
        );
    }
    println!("In a step of all workers; reads include those of a worker's own shard, which are not sent:");
    println!("hot rows  bytes of reads  bytes of copies  rows read from each shard");
    for trained in [without, with] {
        let reads: Vec<_> = trained.reads.iter().map(|rows| format!("{rows:.0}")).collect();
        let (read, copies, rows) = (trained.read_bytes(row_bytes), trained.copies, trained.usage.rows);
        println!("{rows:8}  {read:14.0}  {copies:15.0}  {}", reads.join(" "));
    }
    Ok(())
}

fn train(options: &Options, hot_rows: Option<HotRows>) -> distribute::Result<Trained> {
    let partition = if options.contiguous { PartitionStrategy::Div } else { PartitionStrategy::Mod };
    let tables = TableOptions { min_bytes: 0, partition, hot_rows, ..TableHosts::Workers.into() };
    let builder = MultiWorkerMirroredStrategy::builder().replicas(options.replicas).tables(tables);
    let all = builder.on_threads(Links::Tcp, options.workers, |strategy| on_worker(strategy, options))?;
    let copies = all.iter().map(|of_worker| of_worker.copies).sum();
    let first = all.into_iter().next().ok_or_else(|| Error::other("there is no worker"))?;
    Ok(Trained { copies, ..first })
}

fn on_worker(strategy: &Strategy, options: &Options) -> distribute::Result<Trained> {
    let (rows, dims) = (options.rows, options.dims);
    let model = strategy.replicate_seeded(options.seed, move |vb| embedding(rows, dims, vb.pp("words")))?;
    let optimizer = Adagrad::new(&model.variables, 0.05)?;
    let zipf = Zipf::new(rows, options.exponent);
    let ids = |step: u64, replica: usize| {
        let mut random = Random(options.seed ^ (step << 20) ^ replica as u64);
        let ids: Vec<u32> = (0..options.batch).map(|_| zipf.id(random.next())).collect();
        Tensor::new(ids, &Device::Cpu)
    };
    let step = |step: u64| -> distribute::Result<()> {
        if options.prefetch {
            for (words, replica) in model.models().values().iter().zip(strategy.world().local_replicas()) {
                prefetch_rows(&[(words, &ids(step + 1, replica)?)])?;
            }
        }
        strategy.run(&model, |ctx, words| {
            let ids = ids(step, ctx.replica_id_in_sync_group())?;
            optimizer.minimize(ctx, words.forward(&ids)?.sqr()?.mean_all()?, options.batch)
        })?;
        Ok(())
    };
    let barrier = || strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32)).map(drop);
    let servers =
        strategy.extended().parameter_servers().ok_or_else(|| Error::other("there are no tables"))?;
    let reads = || -> Vec<RowReads> {
        servers.placement().placed().iter().map(|shard| shard.reads.unwrap_or_default()).collect()
    };
    (0..FIRST).try_for_each(step)?;
    // No worker continues before all have counted.
    barrier()?;
    let (sent, read) = (servers.hot_row_usage().sent_bytes, reads());
    barrier()?;
    (FIRST..FIRST + options.steps).try_for_each(step)?;
    barrier()?;
    let usage = servers.hot_row_usage();
    let of_step = |count: u64| count as f64 / options.steps as f64;
    let reads = reads().into_iter().zip(read).map(|(now, then)| of_step(now.rows - then.rows)).collect();
    barrier()?;
    let copies = of_step(usage.sent_bytes - sent);
    Ok(Trained { copies, reads, usage, sha256: model.variables.sha256()? })
}

/// Zipf's law, as the sums of its probabilities.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(rows: usize, exponent: f64) -> Self {
        let mut sum = 0.;
        let sums = (1..=rows).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self(sums.collect())
    }

    /// Returns the id for random bits.
    fn id(&self, random: u64) -> u32 {
        let all = self.0.last().copied().unwrap_or_default();
        let below = (random >> 11) as f64 / (1u64 << 53) as f64 * all;
        self.0.partition_point(|sum| *sum <= below).min(self.0.len().saturating_sub(1)) as u32
    }
}

/// The generator SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }
}
