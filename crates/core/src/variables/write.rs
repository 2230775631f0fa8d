//! Writing variables.

use super::access::{Access, AccessPlan, Combine};
use super::storage::Storage;
use super::variable::Variable;
use crate::context::{Mode, ReplicaContext, with_mode};
use crate::values::{Components, PerReplica, Reducible};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_ps_client::internal::Session;
use distribute_tensor::{HostTensor, IndexedSlices, Leaf, ReduceOp, Tree, Write};
use std::ops::Range;
use std::panic::Location;
use std::sync::MutexGuard;

macro_rules! writes {
    ($($name:ident $how:ident $what:literal $alias:literal;)*) => {
        impl Variable {$(
            #[doc = concat!($what, " See [`Variable`] for which copies are written where.")]
            ///
            /// # Errors
            /// - [`Error::VariableAccess`]: the variable cannot be written in this context. The error has
            ///   advice.
            /// - [`Error::InvalidArgument`]: the value has another shape or dtype than the variable, or is a
            ///   [`PerReplica`](crate::PerReplica): reduce it first, or write each replica's value in `run`.
            /// - [`Error::Collective`]: not all replicas make the call. Nothing has been written then.
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
            /// are joined, in the order of replica ids, and written to all copies; MEAN divides their values by the
            /// number of replicas.
            ///
            /// # Errors
            /// The errors of [`Variable::assign`], and [`Error::Tensor`] for an index that is no row. ON_READ
            /// variables have no rows to write; minimum, maximum and update need aggregation NONE or
            /// ONLY_FIRST_REPLICA.
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
    /// Runs `write`, which changes the variable: after all pending updates, unless a step is running. The next
    /// step starts with the new value.
    #[doc(hidden)]
    pub fn writing<T>(&self, write: impl FnOnce() -> Result<T>) -> Result<T> {
        let written = if self.remote().is_none() {
            write()
        } else {
            self.strategy().await_updates()?;
            let written = write();
            // This includes a partial write.
            self.strategy().session().into_iter().for_each(Session::mark_written);
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

    fn write(
        &self,
        operation: &'static str,
        how: Write,
        value: Leaf,
        at: &'static Location<'static>,
    ) -> Result<()> {
        let place = self.place(operation, true)?;
        let plan = self.plan(operation, Access::Write(how), place.kind)?;
        self.require_fit(operation, &value)?;
        // Converted before any lock is taken, because the value may be a variable's own tensor.
        let value = value.to_host().map_err(Error::tensor(operation))?;
        let written = self.writing(|| match plan {
            AccessPlan::Own => self.own(operation, &place)?.write(how, &value),
            AccessPlan::All => self.each_copy(|copy| copy.write(how, &value)),
            AccessPlan::Shares => self.shares(&value).and_then(|shares| self.set_copies(&shares)),
            AccessPlan::Together(combine) => {
                let detail = value.describe();
                self.together(operation, detail, value, place.replica, at, |call, values| {
                    let value = self.combined(operation, call, combine, values)?;
                    self.each_copy(|copy| copy.write(how, &value))
                })
            }
            AccessPlan::Combined(_) => Err(Error::invalid(operation, "a write reads nothing")),
        });
        written.map_err(|error| self.named(operation, error))
    }

    fn scatter(
        &self,
        operation: &'static str,
        how: Write,
        rows: IndexedSlices,
        at: &'static Location<'static>,
    ) -> Result<()> {
        let place = self.place(operation, true)?;
        let plan = self.plan(operation, Access::Scatter(how), place.kind)?;
        let rows = self.rows_that_fit(operation, rows)?;
        let written = self.writing(|| match plan {
            AccessPlan::Own => self.own(operation, &place)?.write_rows(how, &rows),
            AccessPlan::Together(combine) => {
                let detail = rows.values.dtype().to_string();
                self.together(operation, detail, rows, place.replica, at, |call, rows| {
                    let rows = self.joined(operation, call, combine, rows)?;
                    self.each_copy(|copy| copy.write_rows(how, &rows))
                })
            }
            _ => self.each_copy(|copy| copy.write_rows(how, &rows)),
        });
        written.map_err(|error| self.named(operation, error))
    }

    /// Makes a call of all replicas. `write` gets the values of this worker's replicas, once, and continues
    /// with the other workers.
    fn together<T: Send + 'static>(
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
        let write = |values: PerReplica<T>| write(&call, values.into_values());
        context.merge(call.clone(), operation, value, |_, values| write(values))
    }

    /// Returns the values that all replicas write, combined into one.
    fn combined(
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
                    Some(reduced) => reduced.ok_or_else(|| nothing(operation)),
                    None => Leaf::reduce(op, &values).map_err(Error::tensor(operation)),
                }
            }
        };
        combined?.to_host().map_err(Error::tensor(operation))
    }

    // SC-1, SC-2
    /// Returns the rows that all replicas write. They are not reduced, which would merge them: each is written
    /// separately, one after another.
    fn joined(
        &self,
        operation: &'static str,
        call: &Fingerprint,
        combine: Combine,
        rows: Vec<IndexedSlices>,
    ) -> Result<IndexedSlices> {
        let rows: Vec<Leaf> = rows.into_iter().map(Leaf::Slices).collect();
        let slices = |leaf: Leaf| if let Leaf::Slices(slices) = leaf { Some(slices) } else { None };
        let Combine::Reduce(op) = combine else {
            return slices(self.first(operation, call, rows)?).ok_or_else(|| nothing(operation));
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
        let first = self.strategy().of_first_worker(operation, || call.clone(), mine)?;
        first.unwrap_or(values).into_iter().next().ok_or_else(|| nothing(operation))
    }

    fn each_copy(&self, write: impl FnMut(&Storage) -> Result<()>) -> Result<()> {
        let all = self.all_copies();
        self.0.copies.iter().try_for_each(write)?;
        drop(all);
        if self.is_mirrored() {
            self.strategy().count_write();
        }
        Ok(())
    }

    /// Sets each copy to a separate value.
    pub(super) fn set_copies(&self, values: &[HostTensor]) -> Result<()> {
        let _all = self.all_copies();
        let mut each = self.0.copies.iter().zip(values);
        each.try_for_each(|(copy, value)| copy.write(Write::Assign, value))
    }

    /// Locks all copies: no other thread reads or writes all of them while the guard is alive. No code of the
    /// program runs under it.
    pub(super) fn all_copies(&self) -> MutexGuard<'_, ()> {
        lock(&self.0.all_copies)
    }

    /// Returns a part of a value for each copy. Their sum over all workers is the value; for integers, exactly.
    pub(super) fn shares(&self, value: &HostTensor) -> Result<Vec<HostTensor>> {
        let (of_world, all) = self.numbers();
        of_world.map(|copy| Ok(value.share(copy, all)?)).collect()
    }

    /// Returns the numbers of this worker's copies among those of all workers, and their total number.
    pub(super) fn numbers(&self) -> (Range<usize>, usize) {
        let (copies, world) = (self.copy_count(), self.strategy().world());
        let first = copies * world.worker();
        (first..first + copies, copies * world.workers())
    }

    /// Adds the name of the variable to an error.
    fn named(&self, operation: &'static str, error: Error) -> Error {
        match error {
            Error::Tensor { source, .. } => {
                Error::invalid(operation, format!("variable {}: {source}", self.name()))
            }
            Error::Candle(source) => Error::invalid(operation, format!("variable {}: {source}", self.name())),
            other => other,
        }
    }

    /// Returns the one value that is written here. Separate values of replicas are refused, because copies
    /// would drift apart.
    fn one_value<V: Reducible>(&self, operation: &'static str, value: V) -> Result<Leaf> {
        let parts = value.into_parts(operation, self.strategy().world().replicas())?;
        let leaf = match parts {
            Tree::Leaf(Components::Mirrored(leaf) | Components::Plain(leaf)) => leaf,
            parts if parts.leaves().iter().any(|part| matches!(part, Components::PerReplica(_))) => {
                let reason = format!(
                    "the value for variable {} is per replica: reduce it first, or give it to run as an argument and \
                     write each replica's there",
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
                Err(Error::invalid(operation, "indexed slices are written by the scatter methods"))
            }
            leaf => Ok(leaf),
        }
    }

    fn require_fit(&self, operation: &'static str, value: &Leaf) -> Result<()> {
        if value.dims() == self.dims() && value.dtype().is_ok_and(|dtype| dtype == self.dtype()) {
            return Ok(());
        }
        let reason = format!(
            "variable {} is {}{:?}, the value {}; give one of the same shape and dtype",
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

fn nothing(operation: &'static str) -> Error {
    Error::tensor(operation)(distribute_tensor::Error::Empty { operation: "aggregate" })
}
