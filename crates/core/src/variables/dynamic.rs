//! Dynamic embeddings: variables on parameter servers whose rows are identified by 64-bit ids.

use super::variable::Variable;
use crate::checkpoint::{Reader, Restore, Writer, require_names};
use distribute_base::{Error, Result};
use distribute_ps_client::internal::Dynamic;
use distribute_ps_tables::{DynamicOptions, DynamicState};
use distribute_tensor::{DType, HostTensor};

/// The ids that a checkpoint contains, and one row of values for each.
pub struct SavedRows {
    pub ids: Vec<i64>,
    pub values: HostTensor,
}

/// Returns the name under which a checkpoint stores the ids for the values or slots named `name`.
fn ids_name(name: &str) -> String {
    format!("{name}/ids")
}

/// Returns the name under which a checkpoint stores the step in which gradients for each id were last pushed.
fn uses_name(name: &str) -> String {
    format!("{name}/last_used")
}

impl Variable {
    /// Returns `true` if the variable is a dynamic embedding, whose rows are identified by 64-bit ids.
    /// [`gather`](Variable::gather) returns the row of each id; there is no complete value.
    pub fn is_dynamic(&self) -> bool {
        self.ids().is_some()
    }

    /// Returns the options that decide which ids get rows and which rows are evicted. Returns `None` if the
    /// variable is not dynamic.
    pub fn dynamic_options(&self) -> Option<DynamicOptions> {
        self.ids().map(Dynamic::options)
    }

    /// Returns all ids that have a row, in ascending order, with their values and the slots of the rule that trains
    /// them. Also returns the step in which gradients for each id were last pushed. First waits until the servers have
    /// acknowledged all gradients.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the variable [is not dynamic](Variable::is_dynamic).
    /// - [`Error::Server`](distribute_base::Error::Server): a server failed.
    #[doc(alias = "tfra.dynamic_embedding.Variable.export")]
    pub fn dynamic_rows(&self) -> Result<DynamicState> {
        const OPERATION: &str = "dynamic_rows";
        self.strategy().await_updates()?;
        self.require_ids(OPERATION)?.rows(OPERATION)
    }

    /// Returns the tables of a dynamic variable, or `None` if the variable is not dynamic.
    pub(super) fn ids(&self) -> Option<&Dynamic> {
        self.remote()?.ids()
    }

    pub(super) fn require_ids(&self, operation: &'static str) -> Result<&Dynamic> {
        self.ids().ok_or_else(|| {
            let reason = format!("the rows of variable {} are not ids", self.name());
            Error::invalid(operation, reason)
        })
    }

    /// Adds the rows to a checkpoint, without their slots.
    pub(super) fn save_ids(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let DynamicState { ids, used, values, .. } = self.dynamic_rows()?;
        writer.insert(ids_name(prefix), HostTensor::vector(ids))?;
        writer.insert(uses_name(prefix), HostTensor::vector(used))?;
        writer.insert(prefix, values)?;
        Ok(())
    }

    /// Returns a closure that replaces the variable's rows with those of a checkpoint.
    pub(super) fn restore_ids<'a>(self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        const OPERATION: &str = "Checkpoint::restore";
        require_names(from, &[uses_name(prefix)])?;
        let row = self.require_ids(OPERATION)?.tables().dims().get(1..).unwrap_or_default();
        let SavedRows { ids, values } = self.saved_rows(prefix, prefix, row, from)?;
        let used = from.tensor(&uses_name(prefix))?.into_vec::<u64>()?;
        if used.len() != ids.len() {
            return Err(does_not_fit(
                from,
                prefix,
                &format!("has {} ids, but {} times of use", ids.len(), used.len()),
            ));
        }
        Ok(Box::new(move || {
            let write = || self.require_ids(OPERATION)?.set_values(OPERATION, &ids, &used, &values);
            self.restoring(|| self.writing(write))
        }))
    }

    /// Reads rows of this variable from a checkpoint. `name` is the name of their values or slots, and `row` is the
    /// shape of a row. The ids are read from the entry that belongs to the values named `values_name`.
    #[doc(hidden)]
    pub fn saved_rows(
        &self,
        name: &str,
        values_name: &str,
        row: &[usize],
        from: &Reader,
    ) -> Result<SavedRows> {
        let ids = ids_name(values_name);
        require_names(from, &[ids.clone(), name.to_owned()])?;
        if from.describe(&ids)?.dtype != DType::I64 {
            return Err(does_not_fit(from, &ids, "is not int64"));
        }
        let (ids, values) = (from.tensor(&ids)?.into_vec::<i64>()?, from.tensor(name)?);
        let dims: Vec<usize> = std::iter::once(&ids.len()).chain(row).copied().collect();
        if values.dims() != dims || values.dtype() != self.dtype() {
            let (found, dtype) = (values.describe(), self.dtype());
            return Err(does_not_fit(
                from,
                name,
                &format!("is {found}, but here it is {dtype}{dims:?}, a row for each id"),
            ));
        }
        Ok(SavedRows { ids, values })
    }

    /// Adds the slots of all rows to a checkpoint, under the names that `name` returns. Also adds the ids, under the
    /// name that belongs to values named `values_name`.
    #[doc(hidden)]
    pub fn save_slots_of_ids(
        &self,
        writer: &mut Writer,
        values_name: &str,
        name: impl Fn(&str) -> String,
    ) -> Result<()> {
        let DynamicState { ids, slots, .. } = self.dynamic_rows()?;
        writer.insert(ids_name(values_name), HostTensor::vector(ids))?;
        slots.into_iter().try_for_each(|(slot, value)| Ok(writer.insert(name(&slot), value)?))
    }

    /// Sets the slots of the rows that have the given ids.
    #[doc(hidden)]
    pub fn set_slots_of_ids(
        &self,
        operation: &'static str,
        ids: &[i64],
        slots: &[(String, HostTensor)],
    ) -> Result<()> {
        self.require_ids(operation)?.set_slots(operation, ids, slots)
    }
}

fn does_not_fit(from: &Reader, name: &str, what: &str) -> Error {
    Error::invalid("Checkpoint::restore", format!("{name} in {} {what}", from.path().display()))
}
