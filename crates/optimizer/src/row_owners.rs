//! The workers that store the rows of a table.

use candle_core::Var;
use distribute_base::Result;
use distribute_base::internal::Rows;
use distribute_core::Strategy;
use distribute_ps_client::internal::{LockStep, RemoteVariable};
use std::sync::Arc;

/// The workers that store the rows of a table.
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

    /// Returns the worker that owns a row.
    fn owner(&self, row: usize) -> usize {
        self.lock_step.sender(self.table.server_of(row))
    }

    /// Splits rows by their owner. The rows of each owner are in ascending order.
    ///
    /// # Errors
    /// Returns the errors of [`Rows::select`].
    pub(crate) fn split(&self, rows: &Rows, workers: usize) -> Result<Vec<Rows>> {
        let mut positions = vec![Vec::new(); workers];
        for (position, row) in rows.rows.iter().enumerate() {
            if let Some(of_owner) = positions.get_mut(self.owner(*row)) {
                of_owner.push(position);
            }
        }
        positions.iter().map(|positions| rows.select(positions)).collect()
    }
}
