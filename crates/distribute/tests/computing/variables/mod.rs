//! Variables: the effect of each operation in each context (semantics/variables.md), under all strategies.

mod contexts;
mod create;
mod scatter;
mod tables;
mod update;

use crate::everywhere::{everywhere, of_all};
use distribute::prelude::*;
use distribute::strategy::VariablePlacement;
use distribute::variables::{VariableAggregation as Aggregation, VariableSynchronization as Synchronization};

const AGGREGATIONS: [Aggregation; 4] =
    [Aggregation::None, Aggregation::Sum, Aggregation::Mean, Aggregation::OnlyFirstReplica];

/// The rules for the variables of a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    /// One copy of a single replica, with which everything is permitted (ONE-1, PSV-1).
    Ordinary,
    /// One copy, which all replicas share. ON_READ variables are treated as ON_WRITE (PSV-3).
    Shared,
    /// A copy for each replica.
    Mirrored,
}

impl Rules {
    fn of(strategy: &Strategy) -> Self {
        match strategy.extended().variable_placement() {
            VariablePlacement::Mirrored => Self::Mirrored,
            VariablePlacement::Ordinary => Self::Ordinary,
            VariablePlacement::Servers if strategy.world().replicas() == 1 => Self::Ordinary,
            _ => Self::Shared,
        }
    }

    /// Returns the value that is written if the replicas write `values`; `None` if that is an error.
    fn aggregate(self, aggregation: Aggregation, values: &[f32]) -> Option<f32> {
        let sum = values.iter().sum::<f32>();
        match aggregation {
            _ if self == Self::Ordinary => Some(values[0]),
            Aggregation::None => None,
            Aggregation::Sum => Some(sum),
            Aggregation::Mean => Some(sum / values.len() as f32),
            Aggregation::OnlyFirstReplica => Some(values[0]),
        }
    }
}

/// Creates a strategy with mirrored variables of two copies.
fn two() -> Strategy {
    MirroredStrategy::cpus(2).unwrap()
}

/// Creates a variable as in the tables of semantics/variables.md, with an initial value of 10.
fn ten(strategy: &Strategy, synchronization: Synchronization, aggregation: Aggregation) -> Variable {
    let variable = Variable::builder("v", 10f32).synchronization(synchronization).aggregation(aggregation);
    strategy.scope(|| variable.create()).unwrap()
}

/// Returns the value that a replica writes: its id plus 1.
fn own(ctx: &ReplicaContext) -> f32 {
    1. + ctx.replica_id_in_sync_group() as f32
}

/// Returns the result of [`own`] for the replicas of all workers.
fn own_of_all(strategy: &Strategy) -> Vec<f32> {
    of_all(strategy, |id| 1. + id as f32)
}

fn copies(variable: &Variable) -> Vec<f32> {
    variable.copies().unwrap()
}

/// Returns a value for each copy of a variable on this worker.
fn on_copies(variable: &Variable, value: f32) -> Vec<f32> {
    vec![value; variable.devices().len()]
}
