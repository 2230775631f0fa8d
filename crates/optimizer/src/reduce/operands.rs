//! The gradients of each variable that a step adds up, opened for reading.

use crate::gradients::row_len;
use crate::parameters::Parameters;
use crate::reduce::Weighted;
use crate::reduce::range::{GradientRange, Rounding, Summands};
use crate::reduce::rows::RowRange;
use crate::transform::ResolvedTransforms;
use candle_core::{DType, Layout, Storage, StorageRef, Var};
use distribute_base::internal::{Dense, EitherFloat, Number, ReplicaGradient, Rows, operand};
use distribute_base::{Error, Result};
use distribute_decisions::internal::Partition;
use std::borrow::Cow;
use std::ops::Range;

/// The gradients that are added up for a variable, with their weights. A replica without a gradient is `None`.
pub(crate) type Summed<'r> = Vec<(f64, Option<Cow<'r, ReplicaGradient>>)>;

/// A variable's gradients on all replicas, over the range of all elements.
pub(crate) type FullRange<'a> = EitherFloat<GradientRange<'a, f32>, GradientRange<'a, f64>>;

/// The gradients that are added up for each variable. If they are dense on some replicas and by row on others, all
/// are converted to dense ones.
pub(crate) struct Operands<'r> {
    parameters: &'r Parameters,
    /// The partition, if dense gradients contain only the elements that this worker updates.
    partition: Option<&'r Partition>,
    rounding: Rounding,
    by_variable: Vec<Vec<(f64, Cow<'r, ReplicaGradient>)>>,
}

impl<'r> Operands<'r> {
    /// Collects the gradients of the given replicas that are on the host. `replicas` is the total number of replicas.
    pub(crate) fn new(parameters: &'r Parameters, all: &[Weighted<'r>], replicas: usize) -> Result<Self> {
        let of = |index: usize| -> Summed<'r> {
            let one = |(weight, of_replica): &Weighted<'r>| {
                let gradient = of_replica[index].as_ref().filter(|gradient| !gradient.is_on_device());
                (*weight, gradient.map(Cow::Borrowed))
            };
            all.iter().map(one).collect()
        };
        Self::from_summands(parameters, (0..parameters.variables.len()).map(of), replicas)
    }

    /// Collects the given gradients. `all` yields those of each variable, and `replicas` is the total number of
    /// replicas.
    pub(crate) fn from_summands(
        parameters: &'r Parameters,
        all: impl Iterator<Item = Summed<'r>>,
        replicas: usize,
    ) -> Result<Self> {
        let of = |(all, (_, variable)): (Summed<'r>, &(String, Var))| {
            let any = all.iter().any(|(_, gradient)| gradient.is_some());
            let one = |(weight, gradient): (f64, Option<Cow<'r, ReplicaGradient>>)| match gradient {
                Some(gradient) => Some((weight, gradient)),
                // With two replicas, a single gradient is the sum. With more, each keeps its position in the tree of
                // sums (INV-7).
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
        let by_variable = all.zip(&parameters.variables).map(of).collect::<Result<_>>()?;
        Ok(Self { parameters, partition: None, rounding: Rounding::default(), by_variable })
    }

    /// Declares that dense gradients contain only the elements that this worker updates. `None` means all elements.
    pub(crate) fn restrict_to(self, partition: Option<&'r Partition>) -> Self {
        Self { partition, ..self }
    }

    pub(crate) fn rounded(self, rounding: Rounding) -> Self {
        Self { rounding, ..self }
    }

    /// Replaces the gradients of some variables by their given sums over all replicas.
    pub(crate) fn with_sums(mut self, sums: Vec<(usize, ReplicaGradient)>) -> Self {
        for (index, sum) in sums {
            self.by_variable[index] = vec![(1., Cow::Owned(sum))];
        }
        self
    }

    /// Keeps only the gradients of those variables for whose index `keep` returns `true`.
    pub(crate) fn only(mut self, keep: impl Fn(usize) -> bool) -> Self {
        let others = self.by_variable.iter_mut().enumerate().filter(|(index, _)| !keep(*index));
        others.for_each(|(_, gradients)| gradients.clear());
        self
    }

    /// Returns the variables that have a gradient on at least one replica, with their gradients opened for reading.
    pub(crate) fn variables(&self) -> Vec<VariableOperands<'_>> {
        let all = self.parameters.variables.iter().zip(&self.by_variable).enumerate();
        let active = all.filter(|(_, (_, gradients))| !gradients.is_empty());
        active
            .map(|(index, ((name, variable), gradients))| {
                let opened =
                    gradients.iter().map(|(weight, gradient)| (*weight, OpenGradient::new(gradient)));
                let own_range = self.partition.map(|partition| partition.own_range(index));
                VariableOperands {
                    index,
                    name,
                    variable,
                    own_range,
                    rounding: self.rounding,
                    opened: opened.collect(),
                }
            })
            .collect()
    }
}

/// A variable with a gradient on at least one replica, and the gradients that are added up for it.
pub(crate) struct VariableOperands<'r> {
    pub(crate) index: usize,
    pub(crate) name: &'r str,
    pub(crate) variable: &'r Var,
    /// The elements that a dense gradient contains; `None` for all.
    own_range: Option<Range<usize>>,
    rounding: Rounding,
    opened: Vec<(f64, OpenGradient<'r>)>,
}

/// A gradient that is open for reading while it is borrowed.
enum OpenGradient<'r> {
    Tensor(StorageRef<'r>, &'r Layout),
    Stored(&'r Dense),
    Rows(&'r Rows),
}

impl<'r> OpenGradient<'r> {
    fn new(gradient: &'r ReplicaGradient) -> Self {
        match gradient {
            ReplicaGradient::Dense(Dense::Host(tensor) | Dense::Device(tensor)) => {
                let (storage, layout) = tensor.storage_and_layout();
                OpenGradient::Tensor(storage, layout)
            }
            ReplicaGradient::Dense(dense) => OpenGradient::Stored(dense),
            ReplicaGradient::Rows(rows) => OpenGradient::Rows(rows),
        }
    }
}

impl VariableOperands<'_> {
    /// Returns `true` if the variable's gradient is by row.
    pub(crate) fn by_row(&self) -> bool {
        matches!(self.opened.first(), Some((_, OpenGradient::Rows(_))))
    }

    /// Returns, in ascending order, the rows that at least one replica has; `None` if the gradient is dense.
    pub(crate) fn rows(&self) -> Option<Vec<usize>> {
        if !self.by_row() {
            return None;
        }
        let rows = self.opened.iter().filter_map(|(_, opened)| match opened {
            OpenGradient::Rows(rows) => Some(rows.rows.as_slice()),
            OpenGradient::Tensor(..) | OpenGradient::Stored(_) => None,
        });
        let mut all: Vec<_> = rows.flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        Some(all)
    }

    /// Returns the range of all elements of the gradient. `values` are the variable's values, if transforms need them.
    /// `every_row` is `true` if the rule also visits rows without a gradient.
    pub(crate) fn range<'a>(
        &'a self,
        every_row: bool,
        values: Option<&'a (StorageRef<'_>, &Layout)>,
    ) -> Result<FullRange<'a>> {
        match self.variable.dtype() {
            DType::F32 => self.range_of(every_row, values).map(EitherFloat::F32),
            _ => self.range_of(every_row, values).map(EitherFloat::F64),
        }
    }

    fn range_of<'a, F: Number>(
        &'a self,
        every_row: bool,
        values: Option<&'a (StorageRef<'_>, &Layout)>,
    ) -> Result<GradientRange<'a, F>> {
        let weights = self.opened.iter().map(|(weight, _)| F::of(*weight)).collect();
        let other =
            || Error::invalid("optimizer step", "a gradient has another dtype or device than its variable");
        let summands = match self.opened.first() {
            Some((_, OpenGradient::Rows(_))) => {
                let (row_len, height) =
                    (row_len(self.variable), self.variable.dims().first().copied().unwrap_or(0));
                let rows = self.opened.iter().filter_map(|(_, opened)| match opened {
                    OpenGradient::Rows(rows) => Some((rows.rows.as_slice(), rows.elements()?)),
                    OpenGradient::Tensor(..) | OpenGradient::Stored(_) => None,
                });
                let rows: Vec<_> = rows.collect();
                // Rows of ids are numbered by the ids, and the variable has fewer rows than that.
                let last = rows.iter().filter_map(|(rows, _): &(&[usize], _)| rows.last()).max();
                let height = last.map_or(height, |last| height.max(last + 1));
                if rows.len() != self.opened.len() {
                    return Err(other());
                }
                Summands::Rows(RowRange::new(row_len, height, every_row, rows))
            }
            _ => {
                let dense = self.opened.iter().map(|(_, opened)| match opened {
                    OpenGradient::Tensor(storage, layout) => elements::<F>(storage, layout),
                    OpenGradient::Stored(dense) => dense.stored_elements::<F>().ok_or_else(other),
                    OpenGradient::Rows(_) => Err(other()),
                });
                Summands::Dense(dense.collect::<Result<_>>()?)
            }
        };
        let mut values = values.map_or(Ok(&[][..]), |(storage, layout)| elements::<F>(storage, layout))?;
        if let (Summands::Dense(_), Some(own_range)) = (&summands, &self.own_range) {
            values = values.get(own_range.clone()).unwrap_or_default();
        }
        Ok(GradientRange { variable: self.index, weights, summands, rounding: self.rounding, values })
    }
}

fn elements<'a, F: Number>(storage: &'a Storage, layout: &Layout) -> Result<&'a [F]> {
    match storage {
        Storage::Cpu(storage) => Ok(operand(storage, layout)?),
        _ => Err(Error::invalid("optimizer step", "a gradient is on another device than its variable")),
    }
}

/// The values of variables, open for reading; `None` if no transform needs them.
pub(crate) struct Values<'r>(Option<Vec<(StorageRef<'r>, &'r Layout)>>);

impl<'r> Values<'r> {
    pub(crate) fn open(variables: &[VariableOperands<'r>], resolved: &ResolvedTransforms) -> Self {
        let all = || variables.iter().map(|variable| variable.variable.storage_and_layout()).collect();
        Self(resolved.reads_values().then(all))
    }

    /// Returns the range of all elements of each variable's gradient.
    pub(crate) fn ranges<'a>(&'a self, variables: &'a [VariableOperands<'_>]) -> Result<Vec<FullRange<'a>>> {
        let of = |(i, variable): (usize, &'a VariableOperands<'_>)| {
            variable.range(false, self.0.as_ref().map(|values| &values[i]))
        };
        variables.iter().enumerate().map(of).collect()
    }
}
