//! A benchmark of parameter servers over loopback: `cargo run --release -p distribute-ps-server --example servers`.
//!
//! The two servers are processes, and the two clients are threads. Dense variables are pulled and pushed, rows of 32
//! numbers are looked up and scattered, and a lookup of 1,024 rows is timed while another client pushes. Everything is
//! measured without a log, and then with one.
//!
//! `-- closures` compares plain pushes with pushes by closures, which are applied once, in alternate rounds. `--
//! growth` measures tables of 10⁵ to 10⁷ rows, and 1 to 8 servers.

mod cluster;
mod work;

use cluster::{Channels, Cluster, rate, serve};
use distribute_cluster::Stopwatch;
use distribute_tensor::HostTensor;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use work::{
    Closures, ELEMENTS, Pushing, Rows, WIDTH, bytes_of_row, create_dense, create_ids, create_rows, pull, push,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SERVERS: usize = 2;
const CLIENTS: usize = 2;
const MINUTE: Duration = Duration::from_secs(60);
const ROWS: usize = 1_000_000;
const BATCH: usize = 8192;

/// The time for which each figure is measured, in seconds.
const WHILE: f64 = 3.0;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", index, servers, address, folder] => {
            serve(index.parse()?, servers.parse()?, address, folder)
        }
        [] => {
            for folder in [None, Some(tempfile::tempdir()?)] {
                println!("{}", if folder.is_some() { "with a log and snapshots" } else { "in memory" });
                measure(folder.as_ref().map_or("", |folder| folder.path().to_str().unwrap_or_default()))?;
            }
            Ok(())
        }
        ["closures"] => closures(),
        ["growth"] => growth(),
        other => Err(format!("unknown arguments {other:?}").into()),
    }
}

fn measure(folder: &str) -> Result<()> {
    let mut cluster = Cluster::start(SERVERS, folder)?;
    let all = cluster.channels(CLIENTS);
    dense(&all)?;
    rows(&all)?;
    if !folder.is_empty() {
        let (bytes, seconds) = cluster.restart(&all[0])?;
        println!("  a killed server with {:.0} MB of tables answers again after {seconds:.2} s", bytes / 1e6);
    }
    Ok(())
}

/// Returns the size of the dense variable on all servers, in GB.
fn gigabytes() -> f64 {
    (SERVERS * ELEMENTS * 4) as f64 / 1e9
}

fn gradient() -> Result<HostTensor> {
    Ok(HostTensor::new(vec![1e-3f32; ELEMENTS], [ELEMENTS])?)
}

fn plain(step: u64) -> Pushing {
    Pushing { step, closure: None }
}

fn dense(all: &[Channels]) -> Result<()> {
    create_dense(&all[0])?;
    let pulls = rate(all, WHILE, |_, _, channels| pull(channels))?;
    let gradient = gradient()?;
    let pushes = rate(all, WHILE, |_, step, channels| push(channels, &plain(step), &gradient))?;
    let (pulls, pushes) = (pulls * gigabytes(), pushes * gigabytes());
    println!("  dense, 16 MiB a server: pull {pulls:.2} GB/s, push {pushes:.2} GB/s");
    Ok(())
}

fn rows(all: &[Channels]) -> Result<()> {
    create_rows(&all[0], "rows", ROWS)?;
    println!("  a million dense rows of {WIDTH}: {:.0} MB", bytes_of_row(&all[0], "rows")?);
    let some = Rows { table: "rows", rows: ROWS, count: BATCH };
    let millions = BATCH as f64 / 1e6;
    let looked = rate(all, WHILE, |client, step, channels| some.look_up(channels, client, step))?;
    let scattered = rate(all, WHILE, |client, step, channels| some.scatter(channels, client, &plain(step)))?;
    println!(
        "  rows of {WIDTH}: {:.2} M/s looked up, {:.2} M/s scattered",
        looked * millions,
        scattered * millions
    );
    let (p50, p99) = under_load(all, &some)?;
    println!("  a lookup of 1,024 rows while another client scatters: p50 {p50:.0} µs, p99 {p99:.0} µs");

    create_ids(&all[0], "ids")?;
    let ids = Rows { table: "ids", ..some };
    let made = rate(all, WHILE, |client, step, channels| ids.scatter(channels, client, &plain(step)))?;
    println!(
        "  dynamic rows of {WIDTH}: {:.2} M/s scattered; {:.0} MB for a million",
        made * millions,
        bytes_of_row(&all[0], "ids")?
    );
    Ok(())
}

/// Measures the time of a lookup of 1,024 rows while another client scatters. Returns the median and p99, in µs.
fn under_load(all: &[Channels], rows: &Rows<'_>) -> Result<(f64, f64)> {
    let stop = AtomicBool::new(false);
    let mut times = std::thread::scope(|scope| -> Result<Vec<f64>> {
        let load = scope.spawn(|| -> Result<()> {
            let mut step = 0;
            while !stop.load(Ordering::Relaxed) {
                rows.scatter(&all[1], 1, &plain(step))?;
                step += 1;
            }
            Ok(())
        });
        let few = Rows { count: 1024, ..*rows };
        let (mut times, waited) = (Vec::new(), Stopwatch::start());
        while waited.seconds() < WHILE {
            let one = Stopwatch::start();
            few.look_up(&all[0], 0, times.len() as u64)?;
            times.push(one.seconds());
        }
        stop.store(true, Ordering::Relaxed);
        load.join().map_err(|_| "a client has panicked")??;
        Ok(times)
    })?;
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize] * 1e6;
    Ok((at(0.5), at(0.99)))
}

/// Measures how much slower pushes are if each contains the number of its closure.
fn closures() -> Result<()> {
    const ROUNDS: usize = 15;
    const SECONDS: f64 = 0.5;
    let cluster = Cluster::start(SERVERS, "")?;
    let all = cluster.channels(CLIENTS);
    create_dense(&all[0])?;
    create_rows(&all[0], "rows", ROWS)?;
    let gradient = gradient()?;
    let closures = Closures::new(CLIENTS);
    let pushing = |client, step, is_of_closure: bool| Pushing {
        step,
        closure: is_of_closure.then(|| closures.next(client)),
    };
    let count = |count| Rows { table: "rows", rows: ROWS, count };
    let ratios = |what: &str, work: &(dyn Fn(usize, u64, &Channels, bool) -> Result<()> + Sync)| {
        let mut ratios = Vec::new();
        for _ in 0..ROUNDS {
            let of = |is_of_closure| {
                rate(&all, SECONDS, |client, step, channels| work(client, step, channels, is_of_closure))
            };
            let plain = of(false)?;
            ratios.push(of(true)? / plain);
        }
        ratios.sort_by(f64::total_cmp);
        println!(
            "{what}: of a closure {:.3} times as many a second (median of {ROUNDS} rounds)",
            ratios[ROUNDS / 2]
        );
        Result::Ok(())
    };
    ratios("dense, 16 MiB a server", &|client, step, channels, of| {
        push(channels, &pushing(client, step, of), &gradient)
    })?;
    ratios("8192 rows", &|client, step, channels, of| {
        count(BATCH).scatter(channels, client, &pushing(client, step, of))
    })?;
    ratios("16 rows", &|client, step, channels, of| {
        count(16).scatter(channels, client, &pushing(client, step, of))
    })
}

/// Measures lookups and scatters in larger tables, and in tables on more servers.
fn growth() -> Result<()> {
    println!(
        "| servers | rows | M rows/s looked up | scattered | lookup of 1,024 under load, p50, µs | p99 | MB a million rows |"
    );
    println!("|---|---|---|---|---|---|---|");
    let sizes = [100_000, 1_000_000, 10_000_000].map(|rows| (SERVERS, rows));
    for (servers, rows) in sizes.into_iter().chain([1, 4, 8].map(|servers| (servers, ROWS))) {
        let cluster = Cluster::start(servers, "")?;
        let all = cluster.channels(CLIENTS);
        let before = cluster.resident()?;
        create_rows(&all[0], "rows", rows)?;
        let bytes = (cluster.resident()? - before) / rows as f64;
        let some = Rows { table: "rows", rows, count: BATCH };
        let looked = rate(&all, WHILE, |client, step, channels| some.look_up(channels, client, step))?;
        let scattered =
            rate(&all, WHILE, |client, step, channels| some.scatter(channels, client, &plain(step)))?;
        let (p50, p99) = under_load(&all, &some)?;
        let millions = BATCH as f64 / 1e6;
        println!(
            "| {servers} | {rows} | {:.1} | {:.1} | {p50:.0} | {p99:.0} | {bytes:.0} |",
            looked * millions,
            scattered * millions
        );
    }
    Ok(())
}
