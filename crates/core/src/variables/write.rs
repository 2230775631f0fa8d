//! Writing variables.

// - **INV-20** All copies of an ON_WRITE variable have the same bits, unless a closure of `update` computes another
//   value for each: values are extracted and checked before the first write, two threads never write all copies at
//   once, and an update reaches every copy. An optimizer writes the first copy of a model's variable, and other
//   copies, which `colocate_vars_with` has requested, follow at the end of its step
//   (`Variable::copy_to_followers`). Tests: `computing/variables/`, `computing/contexts/beside.rs`.

use super::checksum::host_checksum;
use super::storage::Storage;
use super::variable::Variable;
use crate::context::{Mode, ReplicaContext, current_kind, with_mode};
use bytes::Bytes;
use candle_core::Tensor;
use distribute_base::internal::lock;
use distribute_base::{ContextKind, Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_decisions::internal::{Access, AccessPlan, Combine};
use distribute_ps_client::internal::Session;
use distribute_tensor::{HostTensor, IndexedSlices, Leaf, ReduceOp, Tree, Write};
use distribute_values::{Components, PerReplica, Reducible};
use std::ops::Range;
use std::panic::Location;
use std::sync::MutexGuard;

macro_rules! writes {
    ($($name:ident $how:ident $what:literal $alias:literal;)*) => {
        impl Variable {$(
            #[doc = concat!($what, " See [`Variable`] for which copies are written where.")]
            ///
            /// # Errors
            /// - [`Error::VariableAccess`]: the variable cannot be written in this context. The error
            ///   includes advice.
            /// - [`Error::InvalidArgument`]: the value has a different shape or dtype than the variable, or
            ///   is a [`PerReplica`]. Reduce a per-replica value first, or write each
            ///   replica's value in `run`.
            /// - [`Error::MixedStrategies`]: called in another strategy's context.
            /// - [`Error::Collective`]: a replica does not make the call. Nothing has been written.
            /// - [`Error::Server`]: a parameter server failed.
            #[doc(alias = $alias)]
            #[track_caller]
            pub fn $name<V: Reducible>(&self, value: V) -> Result<()> {
                let at = Location::caller();
                let value = self.one_value(stringify!($name), value)?;
                self.write(stringify!($name), Write::$how, value, at)
            }
        )*}
    };
}
writes! {
    assign Assign "Sets the value." "tf.Variable.assign";
    assign_add Add "Adds to the value." "tf.Variable.assign_add";
    assign_sub Sub "Subtracts from the value." "tf.Variable.assign_sub";
}

macro_rules! scatters {
    ($($name:ident $how:ident $what:literal $alias:literal;)*) => {
        impl Variable {$(
            #[doc = concat!($what, " An index that occurs twice is written twice. In `run` the rows of all replicas")]
            /// are concatenated in the order of replica ids, and written to all copies. MEAN divides the values by the
            /// number of replicas. With ONLY_FIRST_REPLICA, only the rows of replica 0 are written.
            ///
            /// # Errors
            /// Returns the errors of [`Variable::assign`]. Rows of ON_READ variables cannot be written. Minimum,
            /// maximum and update require aggregation NONE or ONLY_FIRST_REPLICA. Also:
            /// - [`Error::Tensor`]: an index is out of bounds.
            /// - [`Error::NotSupported`]: the variable was joined from shards of irregular sizes; see
            ///   [`Variable::of_shards`].
            #[doc(alias = $alias)]
            #[track_caller]
            pub fn $name(&self, rows: IndexedSlices) -> Result<()> {
                self.scatter(stringify!($name), Write::$how, rows, Location::caller())
            }
        )*}
    };
}
scatters! {
    scatter_add Add "Adds to rows." "tf.Variable.scatter_add";
    scatter_sub Sub "Subtracts from rows." "tf.Variable.scatter_sub";
    scatter_mul Mul "Multiplies rows." "tf.Variable.scatter_mul";
    scatter_div Div "Divides rows." "tf.Variable.scatter_div";
    scatter_min Min "Sets rows to the minimum of the two values." "tf.Variable.scatter_min";
    scatter_max Max "Sets rows to the maximum of the two values." "tf.Variable.scatter_max";
    scatter_update Assign "Replaces rows." "tf.Variable.scatter_update";
}

impl Variable {
    /// Calls `write`, which changes the variable, and refreshes the copies on devices. If the variable is on parameter
    /// servers, first waits until all pending updates have been applied, unless a step is running. The next step begins
    /// with the new value.
    #[doc(hidden)]
    pub fn writing<T>(&self, write: impl FnOnce() -> Result<T>) -> Result<T> {
        self.writing_as("a change", write)
    }

    /// Calls `restore`, which sets the variable to its saved value. If the variable is on parameter servers, or the
    /// workers store it together, and `restore` fails, the variable is incomplete until it is restored, and steps of
    /// workers that store tables together return [`Error::IncompleteState`](distribute_base::Error::IncompleteState).
    pub(super) fn restoring<T>(&self, restore: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.remote() {
            Some(remote) => remote.restoring(restore),
            None => restore(),
        }
    }

    /// Acts like [`writing`](Self::writing). If the workers store the variable together, `what` must be the same on all
    /// of them, because each sends a part of the change.
    pub(super) fn writing_as<T>(&self, what: &str, write: impl FnOnce() -> Result<T>) -> Result<T> {
        let written = if self.remote().is_none() {
            write()
        } else {
            self.strategy().await_updates()?;
            // In `run`, the replicas agree in the call that writes.
            let is_alone = current_kind() == ContextKind::Replica;
            // The other workers may still be reading the value before this change.
            if !is_alone {
                self.agree(what, Ok(()))?;
            }
            let written = write();
            // This includes a partial write.
            self.strategy().session().into_iter().for_each(Session::mark_dirty);
            let written = if is_alone { written } else { self.agree(what, written) };
            // Only now have the other workers written their part.
            self.remote().into_iter().for_each(|remote| remote.invalidate_rows());
            if !is_alone && written.is_ok() {
                self.refresh_shared()?;
            }
            written
        };
        let written = written?;
        if let Some(copies) = self.device_copies() {
            match with_mode(|mode| mode.cloned()) {
                // The other replicas may be computing, and make the call as well.
                Some(Mode::Replica(context)) if context.strategy() == self.strategy() => {
                    copies.refresh(context.local_replica())?;
                }
                Some(Mode::Replica(_)) => {}
                _ => copies.refresh_all()?,
            }
        }
        Ok(written)
    }

    /// Fetches the complete value after a write, if the workers store the variable together and this process computes
    /// with it, so that a forward pass outside `run` has the new value. A running step keeps its values.
    fn refresh_shared(&self) -> Result<()> {
        let strategy = self.strategy();
        let cache = self.remote().and_then(|remote| remote.cache()).filter(|cache| cache.is_complete());
        match (cache.filter(|_| strategy.shares_tables()), strategy.session()) {
            (Some(cache), Some(session)) => session.load("writing a table", cache),
            _ => Ok(()),
        }
    }

    // INV-86
    /// Returns `written`, the result of a change. If the workers store the variable together, each has sent a part of
    /// the change, and all get an error if any of them failed. Other variables need no agreement, because each worker
    /// changes them alone.
    pub(super) fn agree<T>(&self, what: &str, written: Result<T>) -> Result<T> {
        let strategy = self.strategy();
        if self.remote().is_none() || !strategy.shares_tables() {
            return written;
        }
        let detail = format!("{what} of {} (variable {})", self.name(), self.0.id);
        let call = || Fingerprint::new(Operation::WriteVariable, detail, Location::caller());
        strategy
            .exchange_results("writing a table", call, written, |_| Bytes::new())
            .map(|(written, _)| written)
    }

    /// Describes an assignment of a candle tensor, like [`describe_change`](Self::describe_change).
    pub(super) fn describe_set(&self, value: &Tensor) -> Result<String> {
        if self.remote().is_none() || !self.strategy().shares_tables() {
            return Ok(String::new());
        }
        Ok(self.describe_change("set", &[&HostTensor::from_candle(value)?]))
    }

    /// Describes a change that all workers must make together, with a checksum of its values.
    fn describe_change(&self, operation: &'static str, values: &[&HostTensor]) -> String {
        if self.remote().is_none() || !self.strategy().shares_tables() {
            return operation.to_owned();
        }
        let add = |sum, values: &&HostTensor| host_checksum(values.buffer(), 0..values.len(), sum);
        format!("{operation} with values of checksum {:08x}", values.iter().fold(0, add))
    }

    fn write(
        &self,
        operation: &'static str,
        how: Write,
        value: Leaf,
        at: &'static Location<'static>,
    ) -> Result<()> {
        let site = self.access_site(operation, true)?;
        let plan = self.plan(operation, Access::Write(how), site.kind)?;
        self.require_fit(operation, &value)?;
        // Converted before any lock is taken, because the value may be a variable's own tensor.
        let value = value.to_host().map_err(Error::tensor(operation))?;
        let what = self.describe_change(operation, &[&value]);
        let written = self.writing_as(&what, || match plan {
            AccessPlan::Own => self.own_copy(operation, &site)?.write(how, &value),
            AccessPlan::All => self.each_copy(|copy| copy.write(how, &value)),
            AccessPlan::Split => self.split(&value).and_then(|split| self.set_copies(&split)),
            AccessPlan::Collective(combine) => {
                let detail = value.describe();
                self.collective_write(operation, detail, value, site.replica, at, |call, values| {
                    let value = self.combine_values(operation, call, combine, values)?;
                    self.each_copy(|copy| copy.write(how, &value))
                })
            }
            AccessPlan::Combined(_) => Err(Error::invalid(operation, "a write does not combine copies")),
        });
        written.map_err(|error| self.name_in_error(operation, error))
    }

    fn scatter(
        &self,
        operation: &'static str,
        how: Write,
        rows: IndexedSlices,
        at: &'static Location<'static>,
    ) -> Result<()> {
        let site = self.access_site(operation, true)?;
        let plan = self.plan(operation, Access::Scatter(how), site.kind)?;
        let rows = self.rows_that_fit(operation, rows)?;
        let what = self.describe_change(operation, &[&rows.values, &rows.indices]);
        let written = self.writing_as(&what, || match plan {
            AccessPlan::Own => self.own_copy(operation, &site)?.write_rows(how, &rows),
            AccessPlan::Collective(combine) => {
                let detail = rows.values.dtype().to_string();
                self.collective_write(operation, detail, rows, site.replica, at, |call, rows| {
                    let rows = self.join_rows(operation, call, combine, rows)?;
                    self.each_copy(|copy| copy.write_rows(how, &rows))
                })
            }
            _ => self.each_copy(|copy| copy.write_rows(how, &rows)),
        });
        written.map_err(|error| self.name_in_error(operation, error))
    }

    /// Makes a call in which all replicas participate. `write` is called once, with the values of this worker's
    /// replicas, and may communicate with the other workers. If `replica` is `None`, only calls `write` with `value`.
    fn collective_write<T: Send + 'static>(
        &self,
        operation: &'static str,
        detail: String,
        value: T,
        replica: Option<ReplicaContext>,
        at: &'static Location<'static>,
        write: impl FnOnce(&Fingerprint, Vec<T>) -> Result<()>,
    ) -> Result<()> {
        let call = Fingerprint::new(
            Operation::WriteVariable,
            // The number distinguishes variables of one name.
            format!("{operation} of {} (variable {}), {detail}", self.name(), self.0.id),
            at,
        );
        let Some(context) = replica else { return write(&call, vec![value]) };
        let write = |values: PerReplica<T>| self.agree(operation, write(&call, values.into_values()));
        context.merge(call.clone(), operation, value, |_, values| write(values))
    }

    /// Combines the values that the replicas write, and returns the resulting value.
    fn combine_values(
        &self,
        operation: &'static str,
        call: &Fingerprint,
        combine: Combine,
        values: Vec<HostTensor>,
    ) -> Result<HostTensor> {
        let values: Vec<Leaf> = values.into_iter().map(Leaf::Host).collect();
        let strategy = self.strategy();
        let combined = match combine {
            Combine::First => self.first(operation, call, values),
            Combine::Reduce(op) => {
                let local: Vec<&[Leaf]> = values.chunks(1).collect();
                let reduced = strategy.reduce_over_workers(operation, op, |_| call.clone(), &local)?;
                match reduced.map(|mut reduced| reduced.pop()) {
                    Some(reduced) => reduced.ok_or_else(|| no_values_error(operation)),
                    None => Leaf::reduce(op, &values).map_err(Error::tensor(operation)),
                }
            }
        };
        combined?.to_host().map_err(Error::tensor(operation))
    }

    // SC-1, SC-2
    /// Concatenates the rows that all replicas write. They are not reduced, because reduction would merge rows with the
    /// same index. Each row is written separately, in order.
    fn join_rows(
        &self,
        operation: &'static str,
        call: &Fingerprint,
        combine: Combine,
        rows: Vec<IndexedSlices>,
    ) -> Result<IndexedSlices> {
        let rows: Vec<Leaf> = rows.into_iter().map(Leaf::Slices).collect();
        let slices = |leaf: Leaf| if let Leaf::Slices(slices) = leaf { Some(slices) } else { None };
        let Combine::Reduce(op) = combine else {
            return slices(self.first(operation, call, rows)?).ok_or_else(|| no_values_error(operation));
        };
        let local: Vec<&[Leaf]> = rows.chunks(1).collect();
        let all = self.strategy().gather_over_workers(operation, |_| call.clone(), &local)?;
        let all = all.map_or(rows, |all| all.into_iter().flatten().collect());
        let all: Vec<IndexedSlices> = all.into_iter().filter_map(slices).collect();
        let joined = IndexedSlices::concat(&all.iter().collect::<Vec<_>>());
        let joined = match op {
            ReduceOp::Sum => joined,
            ReduceOp::Mean => joined.and_then(|joined| joined.divide(all.len() as f64)),
        };
        joined.map_err(Error::tensor(operation))
    }

    /// Returns the value that replica 0 of worker 0 writes.
    fn first(&self, operation: &'static str, call: &Fingerprint, values: Vec<Leaf>) -> Result<Leaf> {
        let mine = values.get(..1).unwrap_or_default();
        let first = self.strategy().broadcast_from_first(operation, || call.clone(), mine)?;
        first.unwrap_or(values).into_iter().next().ok_or_else(|| no_values_error(operation))
    }

    fn each_copy(&self, write: impl FnMut(&Storage) -> Result<()>) -> Result<()> {
        let all = self.all_copies();
        self.0.copies.iter().try_for_each(write)?;
        drop(all);
        if self.is_mirrored() {
            self.strategy().record_write();
        }
        Ok(())
    }

    /// Sets each copy to the value at the same index in `values`.
    pub(super) fn set_copies(&self, values: &[HostTensor]) -> Result<()> {
        let _all = self.all_copies();
        let mut each = self.0.copies.iter().zip(values);
        each.try_for_each(|(copy, value)| copy.write(Write::Assign, value))
    }

    /// Locks all copies. While the guard exists, no other thread reads or writes all of them. The program's own code is
    /// never called under this lock.
    pub(super) fn all_copies(&self) -> MutexGuard<'_, ()> {
        lock(&self.0.all_copies)
    }

    /// Splits a value into one part for each local copy. For integers, the sum of the parts of all workers is exactly
    /// the value; for other dtypes it may differ by rounding.
    pub(super) fn split(&self, value: &HostTensor) -> Result<Vec<HostTensor>> {
        let (local, all) = self.copy_numbers();
        local.map(|copy| Ok(value.share(copy, all)?)).collect()
    }

    /// Returns the indices of this worker's copies among those of all workers, and the total number of
    /// copies.
    pub(super) fn copy_numbers(&self) -> (Range<usize>, usize) {
        let (copies, world) = (self.copy_count(), self.strategy().world());
        // In an elastic world all workers have as many copies, for the largest share of replicas.
        if copies == world.replicas() && self.strategy().extended().elastic().is_none() {
            return (world.local_replicas(), world.num_replicas_in_sync());
        }
        let first = copies * world.worker();
        (first..first + copies, copies * world.workers())
    }

    /// Converts the errors of tensors and of candle to [`Error::InvalidArgument`] with the name of the variable.
    fn name_in_error(&self, operation: &'static str, error: Error) -> Error {
        match error {
            Error::Tensor { source, .. } => {
                Error::invalid(operation, format!("variable {}: {source}", self.name()))
            }
            Error::Candle(source) => Error::invalid(operation, format!("variable {}: {source}", self.name())),
            other => other,
        }
    }

    /// Returns the single value to write. A value that differs between replicas is an error, because it would make the
    /// copies drift apart.
    fn one_value<V: Reducible>(&self, operation: &'static str, value: V) -> Result<Leaf> {
        let parts = value.into_parts(operation, self.strategy().world().replicas())?;
        let leaf = match parts {
            Tree::Leaf(Components::Mirrored(leaf) | Components::Plain(leaf)) => leaf,
            parts if parts.leaves().iter().any(|part| matches!(part, Components::PerReplica(_))) => {
                let reason = format!(
                    "the value for variable {} is per replica: reduce it first, or pass it to run and write each \
                     replica's value there",
                    self.name()
                );
                return Err(Error::invalid(operation, reason));
            }
            _ => {
                let reason = format!("the value for variable {} is not one tensor", self.name());
                return Err(Error::invalid(operation, reason));
            }
        };
        match leaf {
            Leaf::Slices(_) => {
                Err(Error::invalid(operation, "indexed slices can only be written with the scatter methods"))
            }
            leaf => Ok(leaf),
        }
    }

    fn require_fit(&self, operation: &'static str, value: &Leaf) -> Result<()> {
        if value.dims() == self.dims() && value.dtype().is_ok_and(|dtype| dtype == self.dtype()) {
            return Ok(());
        }
        let reason = format!(
            "variable {} is {}{:?}, but the value is {}; pass one of the same shape and dtype",
            self.name(),
            self.dtype(),
            self.dims(),
            value.describe()
        );
        Err(Error::invalid(operation, reason))
    }

    fn rows_that_fit(&self, operation: &'static str, rows: IndexedSlices) -> Result<IndexedSlices> {
        let rows = IndexedSlices::new(rows.values, rows.indices, Some(self.dims().to_vec()))
            .map_err(Error::tensor(operation))?;
        if rows.values.dtype() == self.dtype() {
            Ok(rows)
        } else {
            let reason =
                format!("variable {} is {}, the rows are {}", self.name(), self.dtype(), rows.values.dtype());
            Err(Error::invalid(operation, reason))
        }
    }
}

fn no_values_error(operation: &'static str) -> Error {
    Error::tensor(operation)(distribute_tensor::Error::Empty { operation: "aggregate" })
}
