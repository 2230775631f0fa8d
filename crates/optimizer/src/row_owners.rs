//! The workers that store the rows of a table.

use candle_core::Var;
use distribute_base::internal::Rows;
use distribute_base::{Error, Result};
use distribute_core::Strategy;
use distribute_ps_client::internal::{LockStep, RemoteVariable};
use std::sync::Arc;

/// The assignment of a table's rows to the workers that store them.
#[derive(Debug)]
pub(crate) struct RowOwners {
    table: Arc<RemoteVariable>,
    lock_step: LockStep,
}

impl RowOwners {
    /// Returns the owners of a variable's rows; `None` if the variable is not a table that the workers store together.
    pub(crate) fn of(strategy: &Strategy, variable: &Var) -> Option<Self> {
        let lock_step = strategy.session()?.lock_step()?;
        let table = strategy.container(variable.id())?.remote()?.clone();
        Some(Self { table, lock_step })
    }

    fn owner(&self, row: usize) -> usize {
        self.lock_step.sender(self.table.server_of(row))
    }

    /// Counts the rows that this worker owns in the gradients of the replicas of one worker, so that the hottest rows
    /// are known. Call this once for each worker and step.
    pub(crate) fn count<'r>(&self, replicas: impl IntoIterator<Item = &'r [usize]>) {
        self.table.count_rows(replicas);
    }

    /// Splits rows by their owner. The rows of each owner are in ascending order.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a row belongs to a worker outside the world.
    /// - The errors of [`Rows::select`].
    pub(crate) fn split(&self, rows: &Rows, workers: usize) -> Result<Vec<Rows>> {
        let positions = positions(&rows.rows, workers, |row| self.owner(row))?;
        positions.iter().map(|positions| rows.select(positions)).collect()
    }
}

/// Returns, for each worker, the positions in `rows` of the rows that the worker owns.
fn positions(rows: &[usize], workers: usize, owner: impl Fn(usize) -> usize) -> Result<Vec<Vec<usize>>> {
    let mut positions = vec![Vec::new(); workers];
    for (position, row) in rows.iter().enumerate() {
        let owner = owner(*row);
        let Some(of_owner) = positions.get_mut(owner) else {
            let reason = format!(
                "row {row} of a table that the workers store together belongs to worker {owner}, but there are \
                 {workers} workers; create the optimizer after the workers have re-formed their group"
            );
            return Err(Error::invalid("optimizer step", reason));
        };
        of_owner.push(position);
    }
    Ok(positions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_of_a_worker_outside_the_world_is_dropped() {
        assert_eq!(positions(&[0, 3, 4, 7], 2, |row| row % 2).unwrap(), [vec![0, 2], vec![1, 3]]);
        let error = positions(&[0, 3, 5], 2, |row| row % 3).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains("row 5 of a table"), "{error}");
        assert!(error.to_string().contains("belongs to worker 2, but there are 2 workers"), "{error}");
    }
}
