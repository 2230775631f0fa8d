//! Variables: the effect of each operation in each context (semantics/variables.md).

mod contexts;
mod create;
mod scatter;
mod tables;
mod update;

use distribute::prelude::*;
use distribute::{Variable, VariableAggregation as Aggregation, VariableSynchronization as Synchronization};

const AGGREGATIONS: [Aggregation; 4] =
    [Aggregation::None, Aggregation::Sum, Aggregation::Mean, Aggregation::OnlyFirstReplica];

fn two() -> Strategy {
    MirroredStrategy::cpus(2).unwrap().into()
}

/// Creates a variable of the tables: 10 on both replicas.
fn ten(strategy: &Strategy, synchronization: Synchronization, aggregation: Aggregation) -> Variable {
    let variable = Variable::builder("v", 10f32).synchronization(synchronization).aggregation(aggregation);
    strategy.scope(|| variable.create()).unwrap()
}

/// Returns the value that replicas 0 and 1 write in the tables.
fn own(ctx: &ReplicaContext) -> f32 {
    1. + ctx.replica_id_in_sync_group() as f32
}

fn copies(variable: &Variable) -> Vec<f32> {
    variable.copies().unwrap()
}
