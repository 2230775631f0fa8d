//! Counters on servers that closures increment.

use distribute::remote::WorkerContext;
use distribute::tensor::IndexedSlices;
use distribute::{ClusterCoordinator, HostTensor, ParameterServerStrategy, Result, Variable};

pub const ROWS: usize = 10;

/// Creates counters, sharded over all servers.
#[distribute::remote]
pub fn make_counters(worker: &WorkerContext) -> Result<Variable> {
    counters_of(worker.strategy())
}

pub fn counters_of(strategy: &ParameterServerStrategy) -> Result<Variable> {
    strategy.scope(|| Variable::new("counters", HostTensor::new(vec![0i64; ROWS], [ROWS, 1])?))
}

/// Increments two rows, which are on different servers, in two operations.
#[distribute::remote]
pub fn count(_worker: &WorkerContext, counters: &Variable, row: i64) -> Result<i64> {
    for row in [row, ROWS as i64 - 1 - row] {
        let one = HostTensor::new(vec![1i64], [1, 1])?;
        counters.scatter_add(IndexedSlices::new(one, HostTensor::vector(vec![row]), None)?)?;
    }
    Ok(row)
}

/// Returns the values of the counters.
pub fn read(counters: &Variable) -> Vec<i64> {
    counters.read::<HostTensor>().unwrap().to_vec::<i64>().unwrap()
}

/// Adds the increments that a closure makes for `row` to the expected values in `to`.
pub fn add(row: usize, to: &mut [i64]) {
    to[row] += 1;
    to[ROWS - 1 - row] += 1;
}

/// Creates a coordinator that retries closures without limit.
pub fn patient(strategy: &ParameterServerStrategy) -> ClusterCoordinator {
    ClusterCoordinator::builder(strategy).worker_losses(1000).server_failures(1000).build().unwrap()
}
