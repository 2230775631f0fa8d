//! Reading variables.

use super::access::{Access, Combine, Way};
use super::variable::Variable;
use crate::context::ContextKind;
use crate::{Error, Result};
use candle_core::Tensor;
use distribute_tensor::{Leaf, Nest, Tree};

impl Variable {
    /// The value, as a copy that later writes leave as it is. See [`Variable`] for what is read where.
    ///
    /// # Errors
    /// [`Error::VariableAccess`] where the copies of an ON_READ variable are to be one value, but it has no
    /// aggregation; [`Error::Tensor`] where the value is not of type `N`; [`Error::MixedStrategies`] in another
    /// strategy's context.
    #[doc(alias = "tf.distribute.StrategyExtended.read_var")]
    pub fn read<N: Nest>(&self) -> Result<N> {
        typed(self.read_leaf()?)
    }

    pub(crate) fn read_leaf(&self) -> Result<Leaf> {
        let place = self.place("read", false)?;
        match self.way("read", Access::Read, place.kind)? {
            Way::Own => self.nearest(&place)?.read(),
            Way::Combined(Combine::Reduce(op)) => {
                let copies: Vec<Leaf> = {
                    let _all = self.all_copies();
                    self.copies()?
                };
                Leaf::reduce(op, &copies).map_err(Error::tensor("read"))
            }
            _ => self.copy(0)?.read(),
        }
    }

    /// The candle tensor of this replica's copy (in [`update`](crate::Strategy::update) of the copy being updated,
    /// elsewhere of the first), for a forward pass: gradients flow to it, and later writes change it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a variable that was created from numbers or a host tensor, which is in no graph
    /// of candle's.
    pub fn as_tensor(&self) -> Result<Tensor> {
        let place = self.place("as_tensor", false)?;
        let near = match place.kind {
            ContextKind::Replica | ContextKind::Update => self.nearest(&place)?,
            _ => self.copy(0)?,
        };
        Ok(self.candle(near)?.as_tensor().clone())
    }
}

/// A leaf as a value of type `N`.
pub(super) fn typed<N: Nest>(leaf: Leaf) -> Result<N> {
    N::from_tree(Tree::Leaf(leaf)).map_err(Error::tensor("reading a variable"))
}
