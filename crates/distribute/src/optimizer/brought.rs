//! What all replicas bring to a step, those of this process and those of other workers.

use super::Trained;
use super::contribution::Contribution;
use super::finite;
use super::gradients::Gradient;
use super::reduction;
use super::tally::{self, Kind, Tally};
use super::threads::Threads;
use crate::context::failure;
use crate::deposit::LocalGradient;
use crate::{Error, ReduceOp, Result};
use candle_core::{Device, Tensor, Var};
use distribute_collective::Failure;
use distribute_collective::group::Calling;
use distribute_tensor::fold::Alone;
use distribute_tensor::{Leaf, Packing};
use std::sync::Arc;

/// What all replicas bring to a step.
pub(super) struct Brought {
    /// Those of this process.
    pub(super) mine: Vec<Arc<Contribution>>,
    /// The tallies of all, in the order of their ids, where there are other workers.
    pub(super) all: Option<Arc<Vec<Tally>>>,
}

/// What is added up: gradients, each with its weight.
pub(super) enum ToReduce<'b> {
    /// Those of this process's replicas.
    Local(Vec<(f64, &'b [Option<LocalGradient>])>),
    /// The sum over all workers.
    Reduced(Vec<Option<LocalGradient>>),
}

impl ToReduce<'_> {
    pub(super) fn weighted(&self) -> Vec<(f64, &[Option<LocalGradient>])> {
        match self {
            ToReduce::Local(all) => all.clone(),
            ToReduce::Reduced(sum) => vec![(1., sum.as_slice())],
        }
    }
}

/// Exchanges the tallies of a step with the other workers.
pub(super) fn tallies(
    mut calling: Calling<'_>,
    mine: &[Arc<Contribution>],
    variables: usize,
) -> Result<Vec<Tally>, Failure> {
    let world = calling.world();
    let records = calling.records(tally::encode(mine.iter().map(|c| &c.tally))?.into())?;
    let mut all = Vec::with_capacity(world.num_replicas_in_sync());
    for (worker, record) in records.iter().enumerate() {
        if worker == world.worker() {
            all.extend(mine.iter().map(|c| c.tally.clone()))
        } else {
            all.extend(tally::decode(record, world.replicas(), variables)?)
        }
    }
    Ok(all)
}

impl Brought {
    /// In the order of ids.
    pub(super) fn tallies(&self) -> Vec<&Tally> {
        match &self.all {
            Some(all) => all.iter().collect(),
            None => self.mine.iter().map(|c| &c.tally).collect(),
        }
    }

    /// What is known of the first replica whose loss or gradients are not finite.
    pub(super) fn not_finite(
        &self,
        calling: Option<Calling<'_>>,
        trained: &Trained,
        step: u64,
        number: u64,
    ) -> Result<Option<finite::Report>> {
        let mine = finite::report(trained, &self.mine, step, number);
        let Some(mut calling) = calling else { return mine };
        let mine = mine.ok().flatten();
        let record = postcard::to_stdvec(&mine).unwrap_or_default();
        let records = calling.records(record.into()).map_err(failure("minimize"))?;
        Ok(records.iter().find_map(|record| postcard::from_bytes(record).ok().flatten()))
    }

    /// What is added up. Where there are other workers, that is done here, with the bits that one process would get with all
    /// of the replicas.
    ///
    /// # Errors
    /// The same on all workers: they make other calls, or one is lost or late. A worker that cannot bring its part tells the
    /// others that it failed.
    pub(super) fn to_reduce(
        &self,
        calling: Option<Calling<'_>>,
        trained: &Trained,
        weights: impl Fn(&Tally) -> f64,
        threads: &Threads<'_>,
    ) -> Result<ToReduce<'_>> {
        let tallies = self.tallies();
        let weighted: Vec<_> =
            self.mine.iter().map(|c| (weights(&c.tally), c.gradients.as_slice())).collect();
        let Some(calling) = calling else { return Ok(ToReduce::Local(weighted)) };
        let none = vec![Kind::Nothing; trained.variables.len()];
        let kinds = tallies.iter().fold(none, |all, tally| {
            all.iter().zip(&tally.kinds).map(|(all, kind)| all.plus(*kind)).collect()
        });
        let of_replica = |weighted| {
            let scaled = reduction::reduced(&[], trained, &[weighted], threads)?;
            let all = scaled.into_iter().zip(&kinds).zip(&trained.variables);
            let some = all.filter(|((_, kind), _)| **kind != Kind::Nothing);
            some.map(|((ready, kind), (_, variable))| leaf(ready, *kind, variable, tallies.len())).collect()
        };
        let leaves: Vec<Vec<Leaf>> = match weighted.into_iter().map(of_replica).collect::<Result<_>>() {
            Ok(leaves) => leaves,
            Err(error) => {
                calling.decline();
                return Err(error);
            }
        };
        let leaves: Vec<&[Leaf]> = leaves.iter().map(Vec::as_slice).collect();
        let combined = calling.all_reduce(ReduceOp::Sum, Packing::Bytes(0), &leaves, &Alone);
        let mut reduced = combined.map_err(failure("minimize"))?.leaves.into_iter();
        let back = |(kind, (_, variable)): (&Kind, &(String, Var))| match kind {
            Kind::Nothing => Ok(None),
            _ => reduced.next().map(|leaf| ready(leaf, variable)).transpose(),
        };
        Ok(ToReduce::Reduced(kinds.iter().zip(&trained.variables).map(back).collect::<Result<_>>()?))
    }
}

/// What a replica brings of a variable that some replica has a gradient of.
fn leaf(ready: Option<LocalGradient>, kind: Kind, variable: &Var, replicas: usize) -> Result<Leaf> {
    let ready = match ready {
        Some(ready) => ready,
        None if kind == Kind::Rows => LocalGradient::no_rows(variable),
        // Of two replicas one alone is the sum, as in one process: only -0 leaves every number as it is.
        None => {
            let nothing = if replicas == 2 { -0. } else { 0. };
            let zeros = Tensor::full(nothing, variable.shape(), &Device::Cpu)?.to_dtype(variable.dtype())?;
            return Ok(Leaf::Candle(zeros));
        }
    };
    let ready = if kind == Kind::Dense { ready.to_dense(variable)? } else { ready };
    Ok(match ready.into_gradient(variable)? {
        Gradient::Dense(tensor) => Leaf::Candle(tensor),
        Gradient::Rows(slices) => Leaf::Slices(slices),
    })
}

fn ready(leaf: Leaf, variable: &Var) -> Result<LocalGradient> {
    let gradient = match leaf {
        Leaf::Candle(tensor) => Gradient::Dense(tensor),
        Leaf::Slices(slices) => Gradient::Rows(slices),
        _ => return Err(Error::invalid("minimize", "a gradient was reduced to another kind of value")),
    };
    LocalGradient::new(gradient, variable)
}
