//! A variable as a component of a checkpoint.

use super::variable::Variable;
use crate::checkpoint::{
    Checkpointed, Reader, Restore, RestoreFilter, RestoreReport, SOME, Writer, decide, read_as, read_cast,
    require_names, verify_as,
};
use crate::strategy::Strategy;
use distribute_base::Result;
use distribute_checkpoint::LiveTensors;
use distribute_decisions::internal::{Access, AccessPlan, VariableKind, copies_name};
use distribute_ps_client::internal::{Sharded, no_value};
use distribute_tensor::{HostTensor, Leaf, Write};
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

/// An ON_WRITE variable is saved as one value. An ON_READ variable is saved as the value that a read outside `run`
/// returns, so it cannot be saved if its aggregation is NONE. The copies of its replicas are saved as well, and are
/// restored if their number and dtype are the same. Otherwise, the value is assigned by the rules of `assign`: with
/// SUM, it is divided equally.
impl Checkpointed for Variable {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        if writer.is_in_parts() && self.has_own_rows() {
            return self.save_own_rows(prefix, writer);
        }
        if !self.is_saved_here() {
            return Ok(());
        }
        if self.is_dynamic() {
            return self.save_ids(prefix, writer);
        }
        if let Some(tables) = self.saved_by_range().filter(|_| writer.is_saved_at_once()) {
            self.strategy().await_updates()?;
            let (tables, dims) = (tables.clone(), self.dims());
            let read = move |rows| Ok(tables.read_range("Checkpoint::save", rows)?);
            return Ok(writer.insert_read(prefix, self.dtype(), dims, read)?);
        }
        if let Some(live) = self.live(writer)? {
            return Ok(writer.insert_live(prefix, self.dtype(), self.dims(), &live, 0)?);
        }
        writer.insert(prefix, self.read_leaf()?.to_host()?)?;
        self.save_copies(prefix, writer)
    }

    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        require_names(from, &[prefix.to_string()])?;
        if self.is_dynamic() {
            return self.clone().restore_ids(prefix, from);
        }
        if self.saved_by_range().is_some() {
            return self.clone().restore_ranges(prefix, from);
        }
        let value = read_as(from, prefix, self.dtype(), self.dims())?;
        self.change(value, prefix, from)
    }

    fn restore_some<'a>(
        &'a self,
        prefix: &str,
        from: &Reader,
        select: &RestoreFilter<'_>,
    ) -> Result<(Restore<'a>, RestoreReport)> {
        if self.is_dynamic() {
            return Err(no_value(SOME));
        }
        let here = [(prefix.to_string(), self.dtype(), self.dims().to_vec())];
        let restored = decide(select, from, here)?;
        let change = match restored.restored.get(prefix) {
            Some(source) => self.change(read_cast(from, source, self.dtype())?, source, from)?,
            None => Box::new(|| Ok(())),
        };
        Ok((change, restored))
    }

    fn strategy(&self) -> Option<&Strategy> {
        Some(Variable::strategy(self))
    }
}

impl Variable {
    /// Returns the value as a live tensor, which is copied during the save. Returns `None` if `writer` does not save at
    /// once, or if the value is not a single candle tensor in CPU memory.
    fn live(&self, writer: &Writer) -> Result<Option<Arc<dyn LiveTensors>>> {
        const OPERATION: &str = "Checkpoint::save";
        if !writer.is_saved_at_once() || self.0.kind == VariableKind::OnRead {
            return Ok(None);
        }
        let site = self.access_site(OPERATION, false)?;
        match self.plan(OPERATION, Access::Read, site.kind)? {
            AccessPlan::Own => self.nearest(&site)?.live(),
            AccessPlan::Combined(_) => Ok(None),
            _ => self.copy(0)?.live(),
        }
    }

    /// Returns `true` if this worker reads the value for a checkpoint. Only the chief reads a table that the workers
    /// store together.
    #[doc(hidden)]
    pub fn is_saved_here(&self) -> bool {
        let strategy = Variable::strategy(self);
        self.remote().is_none() || !strategy.shares_tables() || strategy.world().is_chief()
    }

    /// Returns the tables if a checkpoint saves and restores them in ranges of rows. This is the case if the workers
    /// store the table together, because the complete table may be too large for one worker.
    #[doc(hidden)]
    pub fn saved_by_range(&self) -> Option<&Sharded> {
        let tables = self.remote()?.numbered()?;
        (Variable::strategy(self).shares_tables() && tables.has_ranges()).then_some(tables)
    }

    /// Returns a closure that restores a variable that is [saved by range](Self::saved_by_range). First reads the saved
    /// value once, to verify it.
    ///
    /// # Errors
    /// - [`Error::Checkpoint`](distribute_base::Error::Checkpoint): the value is missing or damaged.
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): its dtype or shape differs.
    pub(super) fn restore_ranges<'a>(self, name: &str, from: &Reader) -> Result<Restore<'a>> {
        const OPERATION: &str = "Checkpoint::restore";
        verify_as(from, name, self.dtype(), self.dims())?;
        let (from, name) = (from.clone(), name.to_owned());
        Ok(Box::new(move || {
            let write = || {
                let Some(tables) = self.saved_by_range() else { return Ok(()) };
                let scan = from.scan(name.as_str());
                self.write_ranges(from.row_ranges(&name)?, |rows| {
                    if tables.sends_some(&rows) {
                        tables.write_range(OPERATION, rows.start, &scan.rows(rows)?)?;
                    }
                    Ok(())
                })
            };
            self.restoring(|| self.writing(write))
        }))
    }

    /// Calls `write` for ranges of rows. The workers exchange their results after every 16 ranges, so that none waits
    /// for the others beyond the timeout. All workers must therefore pass the same ranges.
    ///
    /// # Errors
    /// Returns the error of `write` on this worker, or on another worker if the results have been exchanged since. Some
    /// rows may have been written.
    #[doc(hidden)]
    pub fn write_ranges(
        &self,
        ranges: impl Iterator<Item = Range<usize>>,
        write: impl Fn(Range<usize>) -> Result<()>,
    ) -> Result<()> {
        const AGREE_EVERY: usize = 16;
        let mut written = Ok(());
        for (number, rows) in (1..).zip(ranges) {
            if written.is_ok() {
                written = write(rows);
            }
            if number % AGREE_EVERY == 0 {
                written = self.agree("a part of a restored value", written).map(Ok)?;
            }
        }
        written
    }

    /// Returns a closure that restores the variable. If the same number of copies was saved, with the variable's dtype,
    /// the closure sets each copy to its saved value; otherwise it sets the variable to `value`.
    fn change<'a>(&'a self, value: HostTensor, source: &str, from: &Reader) -> Result<Restore<'a>> {
        const OPERATION: &str = "restore";
        let site = self.access_site(OPERATION, true)?;
        let same_dtype = from.describe(source)?.dtype == self.dtype();
        let saved = if same_dtype { self.saved_copies(source, from)? } else { None };
        let copies = match saved {
            Some(copies) => copies,
            None => match self.plan(OPERATION, Access::Write(Write::Assign), site.kind)? {
                AccessPlan::Split => self.split(&value)?,
                _ => vec![value; self.copy_count()],
            },
        };
        Ok(Box::new(move || {
            self.restoring(|| self.writing(|| self.set_copies(&copies)))?;
            self.strategy().record_equal(self);
            Ok(())
        }))
    }
}

impl Variable {
    /// Adds the copies of the replicas of all workers to a checkpoint if this is an ON_READ variable.
    #[track_caller]
    pub(super) fn save_copies(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        if self.0.kind == VariableKind::OnRead {
            let copies = self.gather_copies(Location::caller())?;
            let copies = copies.iter().map(Leaf::to_host).collect::<Result<Vec<_>, _>>()?;
            writer.insert(copies_name(prefix), HostTensor::stack(&copies.iter().collect::<Vec<_>>())?)?;
        }
        Ok(())
    }

    /// Returns this worker's part of the saved copies of an ON_READ variable. Returns `None` if none were
    /// saved, or if their number differs from the number of copies on all workers.
    pub(super) fn saved_copies(&self, prefix: &str, from: &Reader) -> Result<Option<Vec<HostTensor>>> {
        let (name, (mine, count)) = (copies_name(prefix), self.copy_numbers());
        let as_many = || Ok::<_, distribute_base::Error>(from.describe(&name)?.shape.first() == Some(&count));
        if self.0.kind != VariableKind::OnRead || !from.contains(&name) || !as_many()? {
            return Ok(None);
        }
        let shape: Vec<usize> = [count].iter().chain(self.dims()).copied().collect();
        let rows = read_as(from, &name, self.dtype(), &shape)?;
        Ok(Some(mine.map(|copy| rows.row(copy)).collect::<Result<_, _>>()?))
    }
}
