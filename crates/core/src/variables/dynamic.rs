//! Dynamic embeddings: variables on parameter servers whose rows are identified by 64-bit ids.

use super::variable::Variable;
use crate::checkpoint::{Reader, Restore, Writer, require_names, verify_as};
use distribute_base::{Error, Result};
use distribute_cluster::World;
use distribute_ps_client::internal::Dynamic;
use distribute_ps_tables::{DynamicOptions, DynamicState};
use distribute_tensor::{DType, HostTensor};
use std::cell::{Cell, RefCell};
use std::ops::Range;

/// The ids that a checkpoint contains, and the names of tensors with a row for each of them. All are read by ranges of
/// rows, of which each worker keeps its own.
pub struct SavedIds {
    from: Reader,
    /// The name of the ids.
    ids: String,
    names: Vec<String>,
}

impl SavedIds {
    /// Returns the ranges of rows in which the tensor with the largest rows is read. All workers have the same ranges,
    /// and each begins with others, so that they do not write one after another. After a save of this number of
    /// workers, a worker begins with its own rows.
    fn ranges(&self, world: &World) -> Result<Vec<Range<usize>>> {
        let elements = |name: &&String| {
            self.from.describe(name).map_or(0, |found| found.shape.iter().product::<usize>())
        };
        let largest = self.names.iter().max_by_key(elements).unwrap_or(&self.ids);
        let mut ranges: Vec<_> = self.from.row_ranges(largest)?.collect();
        let count = ranges.len();
        ranges.rotate_left((count.saturating_mul(world.worker()) / world.workers().max(1)).min(count));
        Ok(ranges)
    }

    /// Reads the ids of a range of rows. Returns those whose rows this worker sends, and their positions in the range.
    fn own(&self, of: &Dynamic, rows: Range<usize>) -> Result<(Vec<i64>, Vec<usize>)> {
        let all = self.from.rows(&self.ids, rows)?.into_vec::<i64>()?;
        let own = all.iter().enumerate().filter(|(_, id)| of.is_own(**id));
        Ok(own.map(|(at, id)| (*id, at)).unzip())
    }
}

/// Returns the name under which a checkpoint stores the ids for the values or slots named `name`.
pub(super) fn ids_name(name: &str) -> String {
    format!("{name}/ids")
}

/// Returns the name under which a checkpoint stores the step in which gradients for each id were last pushed.
pub(super) fn uses_name(name: &str) -> String {
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

    /// Returns a closure that replaces the variable's rows with those of a checkpoint. First reads these once, to
    /// verify them.
    pub(super) fn restore_ids<'a>(self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        const OPERATION: &str = "Checkpoint::restore";
        let row = self.require_ids(OPERATION)?.tables().dims().get(1..).unwrap_or_default().to_vec();
        let saved = self.saved_ids(prefix, vec![(prefix.to_owned(), row)], from)?;
        let (uses, name) = (uses_name(prefix), prefix.to_owned());
        let count = from.describe(&saved.ids)?.shape;
        require_names(from, std::slice::from_ref(&uses))?;
        verify_as(from, &uses, DType::U64, &count)?;
        Ok(Box::new(move || {
            self.restoring(|| self.writing(|| self.write_ids(OPERATION, &saved, &uses, &name)))
        }))
    }

    fn write_ids(&self, operation: &'static str, saved: &SavedIds, uses: &str, name: &str) -> Result<()> {
        let (to, from) = (self.require_ids(operation)?, &saved.from);
        let used = |rows: Range<usize>, positions: &[usize]| {
            let all = from.rows(uses, rows)?.into_vec::<u64>()?;
            Ok::<_, Error>(positions.iter().map(|at| all[*at]).collect::<Vec<_>>())
        };
        let all = RefCell::new((Vec::new(), Vec::new()));
        let read = self.write_ranges(from.row_ranges(&saved.ids)?, |rows| {
            let (mut ids, positions) = saved.own(to, rows.clone())?;
            let (all_ids, all_used) = &mut *all.borrow_mut();
            all_ids.append(&mut ids);
            all_used.append(&mut used(rows, &positions)?);
            Ok(())
        });
        let (ids, all_used) = all.into_inner();
        let prepared = read.and_then(|()| {
            to.keep_own(operation, &ids)?;
            to.reserve(operation, &ids, &all_used)
        });
        drop((ids, all_used));
        // The workers agree again below, so none of them may have ended here alone.
        self.agree("the ids of a restored value", prepared)?;
        let left_out = Cell::new(0);
        self.write_ranges(saved.ranges(&self.strategy().world())?.into_iter(), |rows| {
            let (ids, positions) = saved.own(to, rows.clone())?;
            let values = from.rows(name, rows.clone())?;
            let some = |some: &[usize]| {
                Ok(values.take_rows(&some.iter().map(|at| positions[*at]).collect::<Vec<_>>())?)
            };
            let left = to.set_values(operation, &ids, &used(rows, &positions)?, some)?;
            left_out.set(left_out.get() + left);
            Ok(())
        })?;
        to.warn_left_out(left_out.get());
        Ok(())
    }

    /// Finds tensors with a row for each id in a checkpoint, and reads them once, to verify them. `rows` contains the
    /// name and the shape of a row of each. The ids are in the entry that belongs to the values named `values_name`.
    ///
    /// # Errors
    /// - [`Error::Checkpoint`]: an entry is missing or damaged.
    /// - [`Error::InvalidArgument`]: the dtype or shape of an entry differs.
    #[doc(hidden)]
    pub fn saved_ids(
        &self,
        values_name: &str,
        rows: Vec<(String, Vec<usize>)>,
        from: &Reader,
    ) -> Result<SavedIds> {
        let ids = ids_name(values_name);
        let names: Vec<String> = rows.iter().map(|(name, _)| name.clone()).collect();
        require_names(from, &[std::slice::from_ref(&ids), &names].concat())?;
        let found = from.describe(&ids)?;
        if found.dtype != DType::I64 || found.shape.len() != 1 {
            return Err(does_not_fit(from, &ids, "is not a vector of int64"));
        }
        verify_as(from, &ids, DType::I64, &found.shape)?;
        for (name, row) in &rows {
            let dims = [&*found.shape, row].concat();
            let saved = from.describe(name)?;
            if saved.shape != dims || saved.dtype != self.dtype() {
                let (found, dtype) = (format!("{}{:?}", saved.dtype, saved.shape), self.dtype());
                return Err(does_not_fit(
                    from,
                    name,
                    &format!("is {found}, but here it is {dtype}{dims:?}, a row for each id"),
                ));
            }
            verify_as(from, name, self.dtype(), &dims)?;
        }
        Ok(SavedIds { from: from.clone(), ids, names })
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

    /// Sets the slots `names` of all rows to the tensors in `saved`, which are in the same order.
    #[doc(hidden)]
    pub fn restore_slots_of_ids(
        &self,
        operation: &'static str,
        names: &[String],
        saved: &SavedIds,
    ) -> Result<()> {
        let (to, left_out) = (self.require_ids(operation)?, Cell::new(0));
        self.write_ranges(saved.ranges(&self.strategy().world())?.into_iter(), |rows| {
            let (ids, positions) = saved.own(to, rows.clone())?;
            let slot = |(name, saved_name): (&String, &String)| {
                let slot = saved.from.rows(saved_name, rows.clone())?;
                Ok((name.clone(), slot.take_rows(&positions)?))
            };
            let slots = names.iter().zip(&saved.names).map(slot).collect::<Result<Vec<_>>>()?;
            left_out.set(left_out.get() + to.set_slots(operation, &ids, &slots)?);
            Ok(())
        })?;
        to.warn_left_out(left_out.get());
        Ok(())
    }
}

fn does_not_fit(from: &Reader, name: &str, what: &str) -> Error {
    Error::invalid("Checkpoint::restore", format!("{name} in {} {what}", from.path().display()))
}
