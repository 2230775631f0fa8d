//! The smallest program: every replica contributes its id, and receives the sum of all.

mod common;
use distribute::prelude::*;

#[distribute::main]
fn main() -> distribute::Result<()> {
    let options: common::Options = common::parse("Sums the ids of all replicas: the smallest program");
    let strategy = options.strategy()?; // MirroredStrategy::all_cores()?, unless --strategy says otherwise
    let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, ctx.replica_id_in_sync_group()))?;
    options.finish(&sums.to_string(), &[("example", "hello".into()), ("replicas", sums.len().into())]);
    Ok(())
}
