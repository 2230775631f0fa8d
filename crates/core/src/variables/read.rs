//! Reading variables.

use super::variable::Variable;
use candle_core::Tensor;
use distribute_base::{ContextKind, Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_decisions::internal::{Access, AccessPlan, Combine};
use distribute_tensor::{Leaf, Nest, Tree};
use std::panic::Location;

const READ: &str = "read";

impl Variable {
    /// Returns a copy of the value, which later writes do not change. See [`Variable`] for the rules in each
    /// context.
    ///
    /// If the copies of an ON_READ variable are combined, all workers must make this call. Each worker gets the
    /// combination of the copies of all replicas.
    ///
    /// # Errors
    /// - [`Error::VariableAccess`]: the copies of an ON_READ variable would be combined, but it has no aggregation.
    /// - [`Error::Tensor`]: the value is not of type `N`.
    /// - [`Error::MixedStrategies`]: called in another strategy's context.
    /// - [`Error::Collective`]: a worker does not make the call.
    /// - [`Error::Server`]: a parameter server failed.
    /// - [`Error::NotSupported`]: the variable [is dynamic](Variable::is_dynamic).
    #[doc(alias = "tf.distribute.StrategyExtended.read_var")]
    #[track_caller]
    pub fn read<N: Nest>(&self) -> Result<N> {
        typed(self.read_leaf()?)
    }

    #[track_caller]
    pub(crate) fn read_leaf(&self) -> Result<Leaf> {
        let at = Location::caller();
        let site = self.access_site(READ, false)?;
        self.strategy().await_updates()?;
        match self.plan(READ, Access::Read, site.kind)? {
            AccessPlan::Own => self.nearest(&site)?.read(),
            AccessPlan::Combined(Combine::Reduce(op)) => {
                let copies = self.local_copies()?;
                let local: Vec<&[Leaf]> = copies.chunks(1).collect();
                match self.strategy().reduce_over_workers(READ, op, |_| self.read_call(at), &local)? {
                    Some(mut reduced) => {
                        reduced.pop().ok_or_else(|| Error::invalid(READ, "the sum of no values"))
                    }
                    None => Leaf::reduce(op, &copies).map_err(Error::tensor(READ)),
                }
            }
            AccessPlan::Combined(Combine::First) => {
                let mine = self.copy(0)?.read()?;
                let first = self.strategy().broadcast_from_first(
                    READ,
                    || self.read_call(at),
                    std::slice::from_ref(&mine),
                )?;
                Ok(first.and_then(|mut first| first.pop()).unwrap_or(mine))
            }
            _ => self.copy(0)?.read(),
        }
    }

    /// Returns the copies of the replicas of all workers, in the order of replica ids.
    pub(super) fn gather_copies(&self, at: &'static Location<'static>) -> Result<Vec<Leaf>> {
        let copies = self.local_copies()?;
        let local: Vec<&[Leaf]> = copies.chunks(1).collect();
        let all = self.strategy().gather_over_workers(READ, |_| self.read_call(at), &local)?;
        Ok(all.map_or(copies, |all| all.into_iter().flatten().collect()))
    }

    /// Returns the copies of this worker's replicas. While they are read, no other thread can write all copies.
    fn local_copies(&self) -> Result<Vec<Leaf>> {
        let _all = self.all_copies();
        self.copies()
    }

    /// Returns the fingerprint of a read in which all workers participate.
    fn read_call(&self, at: &'static Location<'static>) -> Fingerprint {
        let (dtype, dims) = (self.dtype(), self.dims());
        let detail = format!("{} (variable {}), {dtype}{dims:?}", self.name(), self.0.id);
        Fingerprint::new(Operation::ReadVariable, detail, at)
    }

    /// Returns the candle tensor of this replica's copy, for a forward pass. Gradients flow to the tensor, and later
    /// writes change its value. In [`update`](crate::Strategy::update), this is the copy that is being updated;
    /// elsewhere, it is the first copy. If the variable is on parameter servers, this and all later steps fetch the
    /// complete value.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the variable was created from numbers or a host tensor, which cannot be part of a
    ///   candle graph.
    /// - [`Error::MixedStrategies`]: called in another strategy's context.
    /// - [`Error::Server`]: a parameter server failed.
    pub fn as_tensor(&self) -> Result<Tensor> {
        const OPERATION: &str = "as_tensor";
        let site = self.access_site(OPERATION, false)?;
        let near = match site.kind {
            // Gradients belong to the copy that optimizers train.
            ContextKind::Replica if self.has_followers() => self.copy(0)?,
            _ => self.nearest_or_first(&site)?,
        };
        self.load(OPERATION)?;
        // The caller can read the tensor at any time without going through the variable.
        near.device_copies().map_or(Ok(()), |copies| copies.disable_read_tracking())?;
        Ok(self.candle(near)?.as_tensor().clone())
    }
}

/// Converts a leaf to a value of type `N`.
pub(super) fn typed<N: Nest>(leaf: Leaf) -> Result<N> {
    N::from_tree(Tree::Leaf(leaf)).map_err(Error::tensor("reading a variable"))
}
