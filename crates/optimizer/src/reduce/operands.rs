//! The gradients that are added up for each variable, opened for reading.

use crate::gradients::row_len;
use crate::parameters::Parameters;
use crate::partition::Partition;
use crate::reduce::Weighted;
use crate::reduce::range::{GradientRange, Summands};
use crate::reduce::rows::RowRange;
use crate::transform::ResolvedTransforms;
use candle_core::{DType, Layout, Storage, StorageRef, Var};
use distribute_base::internal::{Any, Dense, Number, ReplicaGradient, Rows, operand};
use distribute_base::{Error, Result};
use std::borrow::Cow;
use std::ops::Range;

/// The gradients that are added up for a variable, with their weights; `None` for a replica without one.
pub(crate) type Summed<'r> = Vec<(f64, Option<Cow<'r, ReplicaGradient>>)>;

/// All of a variable's gradients.
pub(crate) type Whole<'a> = Any<GradientRange<'a, f32>, GradientRange<'a, f64>>;

/// The gradients that are added up, for each variable. If they are dense on some replicas and by row on others, all
/// become dense.
pub(crate) struct Operands<'r> {
    parameters: &'r Parameters,
    /// The elements that dense ones have, if they are not all: those that this worker updates.
    partition: Option<&'r Partition>,
    of_variables: Vec<Vec<(f64, Cow<'r, ReplicaGradient>)>>,
}

impl<'r> Operands<'r> {
    /// Collects the gradients of these replicas that are on the host. There are `replicas` in all.
    pub(crate) fn new(parameters: &'r Parameters, all: &[Weighted<'r>], replicas: usize) -> Result<Self> {
        let of = |index: usize| -> Summed<'r> {
            let one = |(weight, of_replica): &Weighted<'r>| {
                let gradient = of_replica[index].as_ref().filter(|gradient| !gradient.is_on_device());
                (*weight, gradient.map(Cow::Borrowed))
            };
            all.iter().map(one).collect()
        };
        Self::of_variables(parameters, (0..parameters.variables.len()).map(of), replicas)
    }

    /// Collects the gradients of each variable.
    pub(crate) fn of_variables(
        parameters: &'r Parameters,
        all: impl Iterator<Item = Summed<'r>>,
        replicas: usize,
    ) -> Result<Self> {
        let of = |(all, (_, variable)): (Summed<'r>, &(String, Var))| {
            let any = all.iter().any(|(_, gradient)| gradient.is_some());
            let one = |(weight, gradient): (f64, Option<Cow<'r, ReplicaGradient>>)| match gradient {
                Some(gradient) => Some((weight, gradient)),
                // Of two, one alone is the sum. Of more, each keeps its place in the tree of sums (INV-7).
                None => (any && replicas > 2).then(|| (weight, Cow::Owned(ReplicaGradient::none(variable)))),
            };
            let mut all: Vec<_> = all.into_iter().filter_map(one).collect();
            let rows =
                all.iter().filter(|(_, gradient)| matches!(**gradient, ReplicaGradient::Rows(_))).count();
            if (1..all.len()).contains(&rows) {
                for (_, gradient) in &mut all {
                    *gradient = Cow::Owned(gradient.to_dense(variable)?);
                }
            }
            Ok(all)
        };
        let of_variables = all.zip(&parameters.variables).map(of).collect::<Result<_>>()?;
        Ok(Self { parameters, partition: None, of_variables })
    }

    /// The same, where dense gradients have only the elements that this worker updates.
    pub(crate) fn of_partition(self, partition: Option<&'r Partition>) -> Self {
        Self { partition, ..self }
    }

    /// Returns the variables with a gradient on some replica, opened for reading.
    pub(crate) fn variables(&self) -> Vec<Variable<'_>> {
        let all = self.parameters.variables.iter().zip(&self.of_variables).enumerate();
        let active = all.filter(|(_, (_, gradients))| !gradients.is_empty());
        active
            .map(|(index, ((name, variable), gradients))| {
                let opened = gradients.iter().map(|(weight, gradient)| (*weight, Opened::new(gradient)));
                let owned = self.partition.map(|partition| partition.mine(index));
                Variable { index, name, variable, owned, opened: opened.collect() }
            })
            .collect()
    }
}

/// A variable with a gradient on some replica, and the gradients that are added up for it.
pub(crate) struct Variable<'r> {
    pub(crate) index: usize,
    pub(crate) name: &'r str,
    pub(crate) variable: &'r Var,
    /// The elements that there are of a dense gradient, if not all.
    owned: Option<Range<usize>>,
    opened: Vec<(f64, Opened<'r>)>,
}

/// A gradient that is open for reading, for as long as it is borrowed.
enum Opened<'r> {
    Tensor(StorageRef<'r>, &'r Layout),
    Placed(&'r Dense),
    Rows(&'r Rows),
}

impl<'r> Opened<'r> {
    fn new(gradient: &'r ReplicaGradient) -> Self {
        match gradient {
            ReplicaGradient::Dense(Dense::Host(tensor) | Dense::Device(tensor)) => {
                let (storage, layout) = tensor.storage_and_layout();
                Opened::Tensor(storage, layout)
            }
            ReplicaGradient::Dense(dense) => Opened::Placed(dense),
            ReplicaGradient::Rows(rows) => Opened::Rows(rows),
        }
    }
}

impl Variable<'_> {
    /// Whether its gradient is by row.
    pub(crate) fn by_row(&self) -> bool {
        matches!(self.opened.first(), Some((_, Opened::Rows(_))))
    }

    /// The rows that any replica has, ascending, if the gradient is by row.
    pub(crate) fn rows(&self) -> Option<Vec<usize>> {
        if !self.by_row() {
            return None;
        }
        let rows = self.opened.iter().filter_map(|(_, opened)| match opened {
            Opened::Rows(rows) => Some(rows.rows.as_slice()),
            Opened::Tensor(..) | Opened::Placed(_) => None,
        });
        let mut all: Vec<_> = rows.flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        Some(all)
    }

    /// Returns the whole range. `values` are those of the variable, if they are read with the gradient.
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
        let weights = self.opened.iter().map(|(weight, _)| F::of(*weight)).collect();
        let other =
            || Error::invalid("optimizer step", "a gradient is of another dtype or device than its variable");
        let summands = match self.opened.first() {
            Some((_, Opened::Rows(_))) => {
                let (row_len, height) =
                    (row_len(self.variable), self.variable.dims().first().copied().unwrap_or(0));
                let rows = self.opened.iter().filter_map(|(_, opened)| match opened {
                    Opened::Rows(rows) => Some((rows.rows.as_slice(), rows.elements()?)),
                    Opened::Tensor(..) | Opened::Placed(_) => None,
                });
                let rows: Vec<_> = rows.collect();
                // Those of ids are numbered by them, and their variable is no table of so many.
                let last = rows.iter().filter_map(|(rows, _): &(&[usize], _)| rows.last()).max();
                let height = last.map_or(height, |last| height.max(last + 1));
                if rows.len() != self.opened.len() {
                    return Err(other());
                }
                Summands::Rows(RowRange::new(row_len, height, every_row, rows))
            }
            _ => {
                let dense = self.opened.iter().map(|(_, opened)| match opened {
                    Opened::Tensor(storage, layout) => elements::<F>(storage, layout),
                    Opened::Placed(dense) => dense.placed::<F>().ok_or_else(other),
                    Opened::Rows(_) => Err(other()),
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

/// The values of variables, open for reading, if they are read with the gradients.
pub(crate) struct Values<'r>(Option<Vec<(StorageRef<'r>, &'r Layout)>>);

impl<'r> Values<'r> {
    pub(crate) fn open(variables: &[Variable<'r>], resolved: &ResolvedTransforms) -> Self {
        let all = || variables.iter().map(|variable| variable.variable.storage_and_layout()).collect();
        Self(resolved.reads_values().then(all))
    }

    /// All ranges of all variables.
    pub(crate) fn ranges<'a>(&'a self, variables: &'a [Variable<'_>]) -> Result<Vec<Whole<'a>>> {
        let of = |(i, variable): (usize, &'a Variable<'_>)| {
            variable.range(false, self.0.as_ref().map(|values| &values[i]))
        };
        variables.iter().enumerate().map(of).collect()
    }
}
