//! Reading variables.

use super::access::{Access, AccessPlan, Combine};
use super::variable::Variable;
use candle_core::Tensor;
use distribute_base::{ContextKind, Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_tensor::{Leaf, Nest, Tree};
use std::panic::Location;

const READ: &str = "read";

impl Variable {
    /// Returns the value, as a copy that later writes do not change. [`Variable`] has the rules for each
    /// context.
    ///
    /// If the copies of an ON_READ variable are combined, all workers make this call, and all get the value
    /// over all replicas.
    ///
    /// # Errors
    /// - [`Error::VariableAccess`]: the copies of an ON_READ variable would be combined, but it has no
    ///   aggregation.
    /// - [`Error::Tensor`]: the value is not of type `N`.
    /// - [`Error::MixedStrategies`]: called in another strategy's context.
    /// - [`Error::Collective`]: not all workers read.
    #[doc(alias = "tf.distribute.StrategyExtended.read_var")]
    #[track_caller]
    pub fn read<N: Nest>(&self) -> Result<N> {
        typed(self.read_leaf()?)
    }

    #[track_caller]
    pub(crate) fn read_leaf(&self) -> Result<Leaf> {
        let at = Location::caller();
        let place = self.place(READ, false)?;
        self.strategy().await_updates()?;
        match self.plan(READ, Access::Read, place.kind)? {
            AccessPlan::Own => self.nearest(&place)?.read(),
            AccessPlan::Combined(Combine::Reduce(op)) => {
                let copies = self.copies_at_once()?;
                let local: Vec<&[Leaf]> = copies.chunks(1).collect();
                match self.strategy().reduce_over_workers(READ, op, |_| self.reading(at), &local)? {
                    Some(mut reduced) => {
                        reduced.pop().ok_or_else(|| Error::invalid(READ, "a sum of nothing"))
                    }
                    None => Leaf::reduce(op, &copies).map_err(Error::tensor(READ)),
                }
            }
            AccessPlan::Combined(Combine::First) => {
                let mine = self.copy(0)?.read()?;
                let first = self.strategy().of_first_worker(
                    READ,
                    || self.reading(at),
                    std::slice::from_ref(&mine),
                )?;
                Ok(first.and_then(|mut first| first.pop()).unwrap_or(mine))
            }
            _ => self.copy(0)?.read(),
        }
    }

    /// Returns the copies of the replicas of all workers, in the order of their ids.
    pub(super) fn copies_of_all(&self, at: &'static Location<'static>) -> Result<Vec<Leaf>> {
        let copies = self.copies_at_once()?;
        let local: Vec<&[Leaf]> = copies.chunks(1).collect();
        let all = self.strategy().gather_over_workers(READ, |_| self.reading(at), &local)?;
        Ok(all.map_or(copies, |all| all.into_iter().flatten().collect()))
    }

    /// Returns the copies of this worker's replicas, while no thread writes all of them.
    fn copies_at_once(&self) -> Result<Vec<Leaf>> {
        let _all = self.all_copies();
        self.copies()
    }

    /// Returns the fingerprint of a read of all workers.
    fn reading(&self, at: &'static Location<'static>) -> Fingerprint {
        let (dtype, dims) = (self.dtype(), self.dims());
        let detail = format!("{} (variable {}), {dtype}{dims:?}", self.name(), self.0.id);
        Fingerprint::new(Operation::ReadVariable, detail, at)
    }

    /// Returns the candle tensor of this replica's copy for a forward pass: gradients flow to it, and later
    /// writes change it. In [`update`](crate::Strategy::update) it is the copy being updated, elsewhere the
    /// first.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the variable was created from numbers or a host tensor, which is in no
    ///   candle graph.
    pub fn as_tensor(&self) -> Result<Tensor> {
        const OPERATION: &str = "as_tensor";
        let place = self.place(OPERATION, false)?;
        let near = match place.kind {
            // Gradients belong to the copy that optimizers train.
            ContextKind::Replica if self.has_followers() => self.copy(0)?,
            _ => self.nearest_or_first(&place)?,
        };
        self.load(OPERATION)?;
        // The caller can read the tensor at any time without going through the variable.
        near.device_copies().map_or(Ok(()), |copies| copies.read_directly())?;
        Ok(self.candle(near)?.as_tensor().clone())
    }
}

/// Converts a leaf to a value of type `N`.
pub(super) fn typed<N: Nest>(leaf: Leaf) -> Result<N> {
    N::from_tree(Tree::Leaf(leaf)).map_err(Error::tensor("reading a variable"))
}
