//! Variables whose rows are ids of 64 bits, on parameter servers.

use super::variable::Variable;
use crate::checkpoint::{Reader, Restore, Writer, require_names};
use distribute_base::{Error, Result};
use distribute_ps_client::internal::Dynamic;
use distribute_ps_tables::{DynamicOptions, DynamicState};
use distribute_tensor::{DType, HostTensor};

/// The saved values of ids.
pub struct SavedRows {
    pub ids: Vec<i64>,
    pub values: HostTensor,
}

/// Returns the name of the ids in a checkpoint whose values, or slots, have this name.
fn of_ids(name: &str) -> String {
    format!("{name}/ids")
}

/// Returns the name of the step in which each id was last pushed to.
fn of_uses(name: &str) -> String {
    format!("{name}/last_used")
}

impl Variable {
    /// Whether its rows are ids of 64 bits: a dynamic embedding. [`gather`](Variable::gather) returns a row for
    /// each id; there is no complete value.
    pub fn is_dynamic(&self) -> bool {
        self.ids().is_some()
    }

    /// Returns the options that decide which ids get rows and which are evicted, if its rows are ids.
    pub fn dynamic_options(&self) -> Option<DynamicOptions> {
        self.ids().map(Dynamic::options)
    }

    /// Returns all ids that have a row, ascending, with their values and the slots of the rule that trains
    /// them. Also returns the step in which each id was last pushed to.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the variable [is not dynamic](Variable::is_dynamic).
    /// - [`Error::Server`](distribute_base::Error::Server): a server fails.
    #[doc(alias = "tfra.dynamic_embedding.Variable.export")]
    pub fn dynamic_rows(&self) -> Result<DynamicState> {
        const OPERATION: &str = "dynamic_rows";
        self.strategy().await_updates()?;
        self.require_ids(OPERATION)?.rows(OPERATION)
    }

    /// Returns its rows, if they are ids.
    pub(super) fn ids(&self) -> Option<&Dynamic> {
        self.remote()?.ids()
    }

    pub(super) fn require_ids(&self, operation: &'static str) -> Result<&Dynamic> {
        self.ids().ok_or_else(|| {
            let reason = format!("the rows of variable {} are not ids", self.name());
            Error::invalid(operation, reason)
        })
    }

    /// Adds its rows to a checkpoint, without slots.
    pub(super) fn save_ids(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let DynamicState { ids, used, values, .. } = self.dynamic_rows()?;
        writer.insert(of_ids(prefix), HostTensor::vector(ids))?;
        writer.insert(of_uses(prefix), HostTensor::vector(used))?;
        writer.insert(prefix, values)?;
        Ok(())
    }

    /// Returns the change that replaces its rows by those of a checkpoint.
    pub(super) fn restore_ids<'a>(self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        const OPERATION: &str = "Checkpoint::restore";
        require_names(from, &[of_uses(prefix)])?;
        let SavedRows { ids, values } = self.saved_rows(prefix, prefix, from)?;
        let used = from.tensor(&of_uses(prefix))?.into_vec::<u64>()?;
        if used.len() != ids.len() {
            return Err(unfit(
                from,
                prefix,
                &format!("has {} ids, and {} times of use", ids.len(), used.len()),
            ));
        }
        Ok(Box::new(move || {
            self.writing(|| self.require_ids(OPERATION)?.set_values(OPERATION, &ids, &used, &values))
        }))
    }

    /// Returns rows of this variable in a checkpoint. Their values have the name `name`, and their ids are next
    /// to the values of `beside`.
    #[doc(hidden)]
    pub fn saved_rows(&self, name: &str, beside: &str, from: &Reader) -> Result<SavedRows> {
        let ids = of_ids(beside);
        require_names(from, &[ids.clone(), name.to_owned()])?;
        if from.describe(&ids)?.dtype != DType::I64 {
            return Err(unfit(from, &ids, "is not int64"));
        }
        let (ids, values) = (from.tensor(&ids)?.into_vec::<i64>()?, from.tensor(name)?);
        let row = self.require_ids("Checkpoint::restore")?.tables().dims().get(1..).unwrap_or_default();
        let dims: Vec<usize> = std::iter::once(&ids.len()).chain(row).copied().collect();
        if values.dims() != dims || values.dtype() != self.dtype() {
            let (found, dtype) = (values.describe(), self.dtype());
            return Err(unfit(
                from,
                name,
                &format!("is {found}, and here it is {dtype}{dims:?}, a row for each id"),
            ));
        }
        Ok(SavedRows { ids, values })
    }

    /// Adds slots to a checkpoint, by the names that `name` returns, with the ids next to the name `beside`.
    #[doc(hidden)]
    pub fn save_slots_of_ids(
        &self,
        writer: &mut Writer,
        beside: &str,
        name: impl Fn(&str) -> String,
    ) -> Result<()> {
        let DynamicState { ids, slots, .. } = self.dynamic_rows()?;
        writer.insert(of_ids(beside), HostTensor::vector(ids))?;
        slots.into_iter().try_for_each(|(slot, value)| Ok(writer.insert(name(&slot), value)?))
    }

    /// Sets the slots of the rows of ids.
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

fn unfit(from: &Reader, name: &str, what: &str) -> Error {
    Error::invalid("Checkpoint::restore", format!("{name} in {} {what}", from.path().display()))
}
