//! Writing variables.

use super::access::{Access, AccessPlan, Combine};
use super::storage::Storage;
use super::variable::Variable;
use crate::context::{Here, ReplicaContext, here};
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
            /// [`Error::VariableAccess`] where the variable cannot be written here: it says what to do instead.
            /// [`Error::InvalidArgument`] for another shape or dtype than the variable's, and for a
            /// [`PerReplica`](crate::PerReplica) value: reduce it first, or write each replica's in `run`.
            /// [`Error::Collective`] where not all replicas make the call. Nothing has been written then.
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
            /// As [`Variable::assign`], and [`Error::Tensor`] for an index that is no row. ON_READ variables have no
            /// rows to write; minimum, maximum and update need aggregation NONE or ONLY_FIRST_REPLICA.
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
    /// Runs what writes it: behind all updates that are under way, unless a step is being made. The next step begins with what was
    /// written.
    #[doc(hidden)]
    pub fn writing<T>(&self, write: impl FnOnce() -> Result<T>) -> Result<T> {
        let written = if self.remote().is_none() {
            write()
        } else {
            self.strategy().await_updates()?;
            let written = write();
            // Also what was written in part.
            self.strategy().session().into_iter().for_each(Session::mark_written);
            written
        };
        let written = written?;
        if let Some(copies) = self.device_copies() {
            match here() {
                // The others may be computing, and make the call as well.
                Here::Replica(context) if context.strategy() == self.strategy() => {
                    copies.refresh(context.local_replica())?;
                }
                Here::Replica(_) => {}
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
        // Taken out before anything is locked: the value may be a variable's own tensor.
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

    /// A call of all replicas: `write` gets the values of this worker's, once, and goes on with the other workers.
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
            // The number tells variables of one name apart.
            format!("{operation} of {} (variable {}), {detail}", self.name(), self.0.id),
            at,
        );
        let Some(context) = replica else { return write(&call, vec![value]) };
        let write = |values: PerReplica<T>| write(&call, values.into_values());
        context.merge(call.clone(), operation, value, |_, values| write(values))
    }

    /// What all replicas write, as one value.
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
    /// The rows that all replicas write. Not reduced, which would merge them: each is written on its own, one after another.
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

    /// What replica 0 of worker 0 writes.
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

    /// Sets each copy to a value of its own.
    pub(super) fn set_copies(&self, values: &[HostTensor]) -> Result<()> {
        let _all = self.all_copies();
        let mut each = self.0.copies.iter().zip(values);
        each.try_for_each(|(copy, value)| copy.write(Write::Assign, value))
    }

    /// Keeps others from reading or writing all copies together meanwhile. No code of users' runs under it.
    pub(super) fn all_copies(&self) -> MutexGuard<'_, ()> {
        lock(&self.0.all_copies)
    }

    /// A part of a value for each copy, whose sum over all workers is the value: of integers to the bit.
    pub(super) fn shares(&self, value: &HostTensor) -> Result<Vec<HostTensor>> {
        let (of_world, all) = self.numbers();
        of_world.map(|copy| Ok(value.share(copy, all)?)).collect()
    }

    /// The numbers of this worker's copies among those of all workers, and how many there are in all.
    pub(super) fn numbers(&self) -> (Range<usize>, usize) {
        let (copies, world) = (self.copy_count(), self.strategy().world());
        let first = copies * world.worker();
        (first..first + copies, copies * world.workers())
    }

    /// An error that does not know which variable it is about.
    fn named(&self, operation: &'static str, error: Error) -> Error {
        match error {
            Error::Tensor { source, .. } => {
                Error::invalid(operation, format!("variable {}: {source}", self.name()))
            }
            Error::Candle(source) => Error::invalid(operation, format!("variable {}: {source}", self.name())),
            other => other,
        }
    }

    /// The one value that is written here. Replicas' own values cannot be: copies would drift apart.
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
