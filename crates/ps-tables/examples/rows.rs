//! A benchmark of tables that look up, scatter and update rows of 32 `f32`, on one thread and on two, compared to loops
//! over a plain vector: `cargo run --release -p distribute-ps-tables --example rows [-- 100000 1000000 10000000]`.
//!
//! Each thread has separate rows, and requests 1,024 random ones at a time. In lines with "the same", all threads share
//! the rows, and the first rows are the most frequent, by Zipf's law. The vector has neither locks nor rules, so its
//! speed is that of memory. Each figure is the best of seven runs; for two threads, it is the sum of the best of each,
//! because other programs may use the machine.

use distribute_cluster::Stopwatch;
use distribute_optim::{Adagrad, Sgd, Step};
use distribute_ps_tables::{DynamicOptions, DynamicTable, Initializer, Push, RowPartition, Table};
use distribute_tensor::random::{Distribution, mix};
use distribute_tensor::{DType, HostTensor, Write};
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

// As binaries should have it: the system's allocator gives large blocks back, and gets them again page by page.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const WIDTH: usize = 32;
const BATCH: usize = 1024;
const BATCHES: usize = 400;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome {
    let sizes: Vec<usize> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    println!("{:>10} {:28} {:>10} {:>10}", "rows", "", "1 thread", "2 threads");
    println!("{:>10} {:28} {:>10} {:>10}", "", "", "Mrows/s", "Mrows/s");
    for rows in if sizes.is_empty() { vec![100_000, 1_000_000, 10_000_000] } else { sizes } {
        vectors(rows)?;
        tables(rows)?;
        dynamic_tables(rows)?;
    }
    Ok(())
}

/// Measures plain vectors, one for each thread, as the limit that memory sets.
fn vectors(rows: usize) -> Outcome {
    line(rows, "vector: copied out", |threads| {
        rate(threads, rows, |mine| {
            let table = vec![1f32; mine.len() * WIDTH];
            let mut out = vec![0f32; BATCH * WIDTH];
            move |ids: &[usize], first: usize| {
                for (id, out) in ids.iter().zip(out.chunks_exact_mut(WIDTH)) {
                    out.copy_from_slice(&table[(id - first) * WIDTH..][..WIDTH]);
                }
                std::hint::black_box(&out);
                Ok(())
            }
        })
    })?;
    line(rows, "vector: added to", |threads| {
        rate(threads, rows, |mine| {
            let mut table = vec![1f32; mine.len() * WIDTH];
            let from = vec![1f32; BATCH * WIDTH];
            move |ids: &[usize], first: usize| {
                for (id, from) in ids.iter().zip(from.chunks_exact(WIDTH)) {
                    let row = &mut table[(id - first) * WIDTH..][..WIDTH];
                    row.iter_mut().zip(from).for_each(|(row, from)| *row += from);
                }
                Ok(())
            }
        })
    })
}

fn tables(rows: usize) -> Outcome {
    let make = || -> Outcome<Arc<Table>> {
        let ones = Initializer::new(Distribution::Constant(1.), 0, "t");
        let whole = (RowPartition::div(rows, 1), 0);
        Ok(Arc::new(Table::initialized("t", &[rows, WIDTH], DType::F32, &ones, whole)?))
    };
    let values = HostTensor::new(vec![1f32; BATCH * WIDTH], [BATCH, WIDTH])?;
    let push = Push::at(Step::after(0, 0.01));
    let table = make()?;
    line(rows, "read_rows", |threads| {
        rate(threads, rows, |_| {
            |ids: &[usize], _| {
                std::hint::black_box(table.read_rows(ids)?);
                Ok(())
            }
        })
    })?;
    line(rows, "write_rows, Add", |threads| {
        rate(threads, rows, |_| |ids: &[usize], _| Ok(table.write_rows(Write::Add, ids, &values)?))
    })?;
    table.set_rule(Arc::new(Sgd))?;
    line(rows, "push_rows, SGD", |threads| {
        rate(threads, rows, |_| |ids: &[usize], _| Ok(table.push_rows(push, ids, &values)?))
    })?;
    line(rows, "push_rows, SGD, the same", |threads| {
        rate_of(threads, rows, true, |_| |ids: &[usize], _| Ok(table.push_rows(push, ids, &values)?))
    })?;
    drop(table);
    let table = make()?;
    table.set_rule(Arc::new(Adagrad::default()))?;
    line(rows, "push_rows, Adagrad", |threads| {
        rate(threads, rows, |_| |ids: &[usize], _| Ok(table.push_rows(push, ids, &values)?))
    })?;
    println!("{rows:>10} {:28} {:>10.0} bytes a row", "", table.bytes() as f64 / rows as f64);
    dense(&table)
}

/// Measures operations on a complete table, in GB/s of its values. Two threads use the same table.
fn dense(table: &Table) -> Outcome {
    let gradient = table.read()?.value;
    let gigabytes = (gradient.len() * 4) as f64 / 1e9;
    let rate = |threads: usize, call: &(dyn Fn() -> Outcome + Sync)| -> Outcome<f64> {
        let mut rates = Vec::new();
        for _ in 0..7 {
            let watch = Stopwatch::start();
            std::thread::scope(|scope| {
                let started: Vec<_> = (0..threads).map(|_| scope.spawn(call)).collect();
                started.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
            })?;
            rates.push(threads as f64 * gigabytes / watch.seconds());
        }
        Ok(best(rates))
    };
    let line = |what: &str, call: &(dyn Fn() -> Outcome + Sync)| -> Outcome {
        println!("{:>10} {what:28} {:>10.1} {:>10.1} GB/s", table.rows(), rate(1, call)?, rate(2, call)?);
        Ok(())
    };
    line("read", &|| {
        std::hint::black_box(table.read()?);
        Ok(())
    })?;
    line("push, Adagrad", &|| Ok(table.push(Push::at(Step::after(0, 0.01)), &gradient)?))
}

fn dynamic_tables(rows: usize) -> Outcome {
    let uniform = Initializer::new(Distribution::Uniform { lo: -1., up: 1. }, 0, "t");
    let table = DynamicTable::new("t", &[WIDTH], DType::F32, uniform, DynamicOptions::default())?;
    table.set_rule(Arc::new(Adagrad::default()))?;
    let push = Push::at(Step::after(0, 0.01));
    let values = HostTensor::new(vec![1f32; BATCH * WIDTH], [BATCH, WIDTH])?;
    let watch = Stopwatch::start();
    for first in (0..rows).step_by(BATCH) {
        let ids: Vec<i64> = (first..first + BATCH).map(id).collect();
        table.push_rows(push, &ids, &values)?;
    }
    let created = table.len() as f64 / watch.seconds() / 1e6;
    println!("{rows:>10} {:28} {created:>10.1}", "dynamic: rows made");
    line(rows, "dynamic: read_rows", |threads| {
        rate(threads, rows, |_| {
            |ids: &[usize], _| {
                let ids: Vec<i64> = ids.iter().map(|row| id(*row)).collect();
                std::hint::black_box(table.read_rows(&ids)?);
                Ok(())
            }
        })
    })?;
    line(rows, "dynamic: push_rows, Adagrad", |threads| {
        rate(threads, rows, |_| {
            |ids: &[usize], _| {
                let ids: Vec<i64> = ids.iter().map(|row| id(*row)).collect();
                table.push_rows(push, &ids, &values)?;
                Ok(())
            }
        })
    })?;
    println!("{rows:>10} {:28} {:>10.0} bytes a row", "", table.bytes() as f64 / table.len() as f64);
    Ok(())
}

/// Returns the id of a row. The ids are spread over all 64 bits.
fn id(row: usize) -> i64 {
    mix(row as u64).cast_signed()
}

fn line(rows: usize, what: &str, rate: impl Fn(usize) -> Outcome<f64>) -> Outcome {
    println!("{rows:>10} {what:28} {:>10.1} {:>10.1}", rate(1)?, rate(2)?);
    Ok(())
}

/// Returns the number of rows per second of all threads together, in millions. Each thread has an equal part of the
/// rows.
fn rate<F: FnMut(&[usize], usize) -> Outcome>(
    threads: usize,
    rows: usize,
    make: impl Fn(Range<usize>) -> F + Sync,
) -> Outcome<f64> {
    rate_of(threads, rows, false, make)
}

fn rate_of<F: FnMut(&[usize], usize) -> Outcome>(
    threads: usize,
    rows: usize,
    same: bool,
    make: impl Fn(Range<usize>) -> F + Sync,
) -> Outcome<f64> {
    let share = if same { rows } else { rows / threads };
    let thread = |i: usize| -> Outcome<Vec<f64>> {
        let first = if same { 0 } else { i * share };
        let mut call = make(first..first + share);
        let row = |draw: u64| {
            if same {
                ((share as f64).powf(draw as f64 / u64::MAX as f64) as usize - 1).min(share - 1)
            } else {
                first + draw as usize % share
            }
        };
        let draws = |batch: usize| (0..BATCH).map(move |at| mix(((i * BATCHES + batch) * BATCH + at) as u64));
        let batches: Vec<Vec<usize>> = (0..BATCHES).map(|batch| draws(batch).map(row).collect()).collect();
        let mut rates = Vec::new();
        for _ in 0..7 {
            let watch = Stopwatch::start();
            batches.iter().try_for_each(|ids| call(ids, first))?;
            rates.push((BATCH * BATCHES) as f64 / watch.seconds() / 1e6);
        }
        Ok(rates)
    };
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|i| {
                scope.spawn({
                    let thread = &thread;
                    move || thread(i)
                })
            })
            .collect();
        let mut sum = 0.;
        for started in started {
            sum += best(started.join().map_err(|_| "a thread panicked")??);
        }
        Ok(sum)
    })
}

fn best(values: Vec<f64>) -> f64 {
    values.into_iter().fold(0., f64::max)
}
