//! What is added up for each variable, opened for reading.

use crate::Trained;
use crate::conversion::row_len;
use crate::reduce::range::{GradientRange, Summands};
use crate::reduce::rows::RowRange;
use crate::transform::Settled;
use crate::update::sharded::cuts::Shards;
use candle_core::{DType, Layout, Storage, StorageRef, Var};
use distribute_base::internal::{Any, Deposited, LocalGradient, Number, Rows, operand};
use distribute_base::{Error, Result};
use std::borrow::Cow;
use std::ops::Range;

/// The gradients that replicas bring, one for each variable, with the weight of each replica.
pub(crate) type Weighted<'r> = [(f64, &'r [Option<LocalGradient>])];

/// What is added up for a variable: weights and gradients, none of a replica without one.
pub(crate) type Parts<'r> = Vec<(f64, Option<Cow<'r, LocalGradient>>)>;

/// All of a variable's gradients.
pub(crate) type Whole<'a> = Any<GradientRange<'a, f32>, GradientRange<'a, f64>>;

/// For each variable, what is added up: on some replicas dense and on others by row counts as dense.
pub(crate) struct Operands<'r> {
    trained: &'r Trained,
    /// Of dense ones only the elements that this worker owns, if they are shared out.
    shards: Option<&'r Shards>,
    of_variables: Vec<Vec<(f64, Cow<'r, LocalGradient>)>>,
}

impl<'r> Operands<'r> {
    /// What replicas have brought, of `replicas` there are in all.
    pub(crate) fn new(trained: &'r Trained, all: &Weighted<'r>, replicas: usize) -> Result<Self> {
        let of = |index: usize| -> Parts<'r> {
            let part = |(weight, of_replica): &(f64, &'r [Option<LocalGradient>])| {
                (*weight, of_replica[index].as_ref().map(Cow::Borrowed))
            };
            all.iter().map(part).collect()
        };
        Self::of_parts(trained, (0..trained.variables.len()).map(of), replicas)
    }

    /// For each variable its parts, with the weight of each; `None` for a replica that has no gradient of it.
    pub(crate) fn of_parts(
        trained: &'r Trained,
        parts: impl Iterator<Item = Parts<'r>>,
        replicas: usize,
    ) -> Result<Self> {
        let of = |(parts, (_, variable)): (Parts<'r>, &(String, Var))| {
            let any = parts.iter().any(|(_, ready)| ready.is_some());
            let part = |(weight, ready): (f64, Option<Cow<'r, LocalGradient>>)| match ready {
                Some(ready) => Some((weight, ready)),
                // Of two, one alone is the sum. Of more, each keeps its place in the tree of sums (INV-7).
                None => (any && replicas > 2).then(|| (weight, Cow::Owned(LocalGradient::no_rows(variable)))),
            };
            let mut parts: Vec<_> = parts.into_iter().filter_map(part).collect();
            let rows = parts.iter().filter(|(_, ready)| matches!(**ready, LocalGradient::Rows(_))).count();
            if (1..parts.len()).contains(&rows) {
                for (_, ready) in &mut parts {
                    *ready = Cow::Owned(ready.to_dense(variable)?);
                }
            }
            Ok(parts)
        };
        let of_variables = parts.zip(&trained.variables).map(of).collect::<Result<_>>()?;
        Ok(Self { trained, shards: None, of_variables })
    }

    /// The same, where dense gradients have only the elements that this worker owns.
    pub(crate) fn of_shards(self, shards: Option<&'r Shards>) -> Self {
        Self { shards, ..self }
    }

    /// Those with a gradient on some replica, opened for reading.
    pub(crate) fn variables(&self) -> Vec<Variable<'_>> {
        let all = self.trained.variables.iter().zip(&self.of_variables).enumerate();
        let active = all.filter(|(_, (_, parts))| !parts.is_empty());
        active
            .map(|(index, ((name, variable), parts))| {
                let parts = parts.iter().map(|(weight, ready)| (*weight, ReadGuard::new(ready))).collect();
                let owned = self.shards.map(|shards| shards.mine(index));
                Variable { index, name, variable, owned, parts }
            })
            .collect()
    }
}

/// A variable with a gradient on some replica, and what is added up for it.
pub(crate) struct Variable<'r> {
    pub(crate) index: usize,
    pub(crate) name: &'r str,
    pub(crate) variable: &'r Var,
    /// The elements that there are of a dense gradient, if not all.
    owned: Option<Range<usize>>,
    parts: Vec<(f64, ReadGuard<'r>)>,
}

/// A gradient to be read, for as long as it is borrowed.
enum ReadGuard<'r> {
    Dense(StorageRef<'r>, &'r Layout),
    Deposited(&'r Deposited),
    Rows(&'r Rows),
}

impl<'r> ReadGuard<'r> {
    fn new(ready: &'r LocalGradient) -> Self {
        match ready {
            LocalGradient::Dense(tensor) => {
                let (storage, layout) = tensor.storage_and_layout();
                ReadGuard::Dense(storage, layout)
            }
            LocalGradient::Deposited(dense) => ReadGuard::Deposited(dense),
            LocalGradient::Rows(rows) => ReadGuard::Rows(rows),
        }
    }
}

impl Variable<'_> {
    /// Whether its gradient is by row.
    pub(crate) fn by_row(&self) -> bool {
        matches!(self.parts.first(), Some((_, ReadGuard::Rows(_))))
    }

    /// The rows that any replica has, ascending, if the gradient is by row.
    pub(crate) fn rows(&self) -> Option<Vec<usize>> {
        if !self.by_row() {
            return None;
        }
        let rows = self.parts.iter().filter_map(|(_, opened)| match opened {
            ReadGuard::Rows(rows) => Some(rows.rows.as_slice()),
            ReadGuard::Dense(..) | ReadGuard::Deposited(_) => None,
        });
        let mut all: Vec<_> = rows.flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        Some(all)
    }

    /// All of it that there is. `values` are those of the variable, where they are read beside the gradient.
    pub(crate) fn range<'a>(
        &'a self,
        every_row: bool,
        values: Option<&'a (StorageRef<'_>, &Layout)>,
    ) -> Result<Whole<'a>> {
        match self.variable.dtype() {
            DType::F32 => self.range_of(every_row, values).map(Any::F32),
            _ => self.range_of(every_row, values).map(Any::F64),
        }
    }

    fn range_of<'a, F: Number>(
        &'a self,
        every_row: bool,
        values: Option<&'a (StorageRef<'_>, &Layout)>,
    ) -> Result<GradientRange<'a, F>> {
        let weights = self.parts.iter().map(|(weight, _)| F::of(*weight)).collect();
        let other =
            || Error::invalid("optimizer step", "a gradient is of another dtype or device than its variable");
        let summands = match self.parts.first() {
            Some((_, ReadGuard::Rows(_))) => {
                let (row_len, height) =
                    (row_len(self.variable), self.variable.dims().first().copied().unwrap_or(0));
                let rows = self.parts.iter().filter_map(|(_, opened)| match opened {
                    ReadGuard::Rows(rows) => Some((rows.rows.as_slice(), F::in_vector(&rows.values)?)),
                    ReadGuard::Dense(..) | ReadGuard::Deposited(_) => None,
                });
                let rows: Vec<_> = rows.collect();
                // Those of ids are numbered by them, and their variable is no table of so many.
                let last = rows.iter().filter_map(|(rows, _): &(&[usize], _)| rows.last()).max();
                let height = last.map_or(height, |last| height.max(last + 1));
                if rows.len() != self.parts.len() {
                    return Err(other());
                }
                Summands::Rows(RowRange::new(row_len, height, every_row, rows))
            }
            _ => {
                let dense = self.parts.iter().map(|(_, opened)| match opened {
                    ReadGuard::Dense(storage, layout) => elements::<F>(storage, layout),
                    ReadGuard::Deposited(dense) => dense.elements::<F>().ok_or_else(other),
                    ReadGuard::Rows(_) => Err(other()),
                });
                Summands::Dense(dense.collect::<Result<_>>()?)
            }
        };
        let mut values = values.map_or(Ok(&[][..]), |(storage, layout)| elements::<F>(storage, layout))?;
        if let (Summands::Dense(_), Some(owned)) = (&summands, &self.owned) {
            values = values.get(owned.clone()).unwrap_or_default();
        }
        Ok(GradientRange { variable: self.index, weights, summands, values })
    }
}

fn elements<'a, F: Number>(storage: &'a Storage, layout: &Layout) -> Result<&'a [F]> {
    match storage {
        Storage::Cpu(storage) => Ok(operand(storage, layout)?),
        _ => Err(Error::invalid("optimizer step", "a gradient is on another device than its variable")),
    }
}

/// The values of variables, open for reading, if they are read beside the gradients.
pub(crate) struct Values<'r>(Option<Vec<(StorageRef<'r>, &'r Layout)>>);

impl<'r> Values<'r> {
    pub(crate) fn open(variables: &[Variable<'r>], settled: &Settled) -> Self {
        let all = || variables.iter().map(|variable| variable.variable.storage_and_layout()).collect();
        Self(settled.reads_values().then(all))
    }

    /// All ranges of all variables.
    pub(crate) fn ranges<'a>(&'a self, variables: &'a [Variable<'_>]) -> Result<Vec<Whole<'a>>> {
        let of = |(i, variable): (usize, &'a Variable<'_>)| {
            variable.range(false, self.0.as_ref().map(|values| &values[i]))
        };
        variables.iter().enumerate().map(of).collect()
    }
}
