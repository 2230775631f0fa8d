//! Variables as arguments of `reduce` and `gather`.

use super::variable::Variable;
use crate::context::current_kind;
use crate::values::{Components, Parts, PerReplica, Reducible, plain};
use distribute_base::{ContextKind, Result};
use distribute_tensor::{Leaf, Tree};

/// The value that a read returns, in replica and update context. Elsewhere it is the copies of an ON_READ
/// variable, whatever its aggregation, and the value of any other variable, whose copies are equal.
impl Reducible for &Variable {
    type Nest = Leaf;
    fn into_parts(self, operation: &'static str, replicas: usize) -> Result<Parts> {
        match current_kind() {
            ContextKind::Replica | ContextKind::Update => Ok(plain(self.read_leaf()?)),
            _ if self.has_own_copies() => {
                PerReplica::from_values(self.copies::<Leaf>()?).into_parts(operation, replicas)
            }
            _ => Ok(Tree::Leaf(Components::Mirrored(self.read_leaf()?))),
        }
    }
}

/// Equivalent to a reference to it.
impl Reducible for Variable {
    type Nest = Leaf;
    fn into_parts(self, operation: &'static str, replicas: usize) -> Result<Parts> {
        (&self).into_parts(operation, replicas)
    }
}
