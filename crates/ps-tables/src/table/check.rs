//! Checks of the arguments of a table's operations.

use super::Table;
use crate::{Error, Result};
use distribute_tensor::HostTensor;

impl Table {
    /// Checks the shape and dtype of a value for the complete table.
    pub(super) fn check_whole(&self, operation: &'static str, value: &HostTensor) -> Result<()> {
        self.check(operation, &self.shape, value)
    }

    /// Checks that the table contains all of the rows, and that `values` contains one row for each.
    pub(super) fn check_rows(
        &self,
        operation: &'static str,
        rows: &[usize],
        values: &HostTensor,
    ) -> Result<()> {
        let row = self.shape.get(1..).unwrap_or_default();
        let expected: Vec<usize> = [rows.len()].iter().chain(row).copied().collect();
        self.check(operation, &expected, values)?;
        self.check_rows_exist(operation, rows)
    }

    pub(super) fn check_rows_exist(&self, operation: &'static str, rows: &[usize]) -> Result<()> {
        let all = self.rows();
        match rows.iter().position(|row| *row >= all) {
            None => Ok(()),
            Some(position) => {
                let (table, row) = (self.name.clone(), rows[position]);
                Err(Error::Row { operation, table, row, position, rows: all })
            }
        }
    }

    pub(super) fn check(
        &self,
        operation: &'static str,
        expected: &[usize],
        value: &HostTensor,
    ) -> Result<()> {
        if value.dims() != expected {
            let (expected, found) = (expected.to_vec(), value.dims().to_vec());
            return Err(Error::Shape { operation, table: self.name.clone(), expected, found });
        }
        if value.dtype() != self.dtype {
            let (expected, found) = (self.dtype, value.dtype());
            return Err(Error::DType { operation, table: self.name.clone(), expected, found });
        }
        Ok(())
    }
}
