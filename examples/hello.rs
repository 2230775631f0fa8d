//! The smallest program: every replica contributes its id, and receives the sum of all.

use clap::Parser;
use distribute::prelude::*;

/// Sums the ids of all replicas: the smallest program
#[derive(Parser)]
struct Options {
    /// The number of replicas [default: one for each core]
    #[arg(long)]
    replicas: Option<usize>,
}

#[distribute::main]
fn main() -> distribute::Result<()> {
    let strategy = match Options::parse().replicas {
        Some(replicas) => MirroredStrategy::cpus(replicas)?,
        None => MirroredStrategy::all_cores()?,
    };
    let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, ctx.replica_id_in_sync_group()))?;
    println!("{sums}");
    Ok(())
}
