//! Variables as arguments of `reduce` and `gather`.

use super::variable::Variable;
use crate::context::current_kind;
use distribute_base::{ContextKind, Result};
use distribute_tensor::{Leaf, Tree};
use distribute_values::internal::plain;
use distribute_values::{Components, Parts, PerReplica, Reducible};

/// The contribution of a variable depends on the context. In replica and update context it is the value that a read
/// returns. Elsewhere it is the separate copies of an ON_READ variable, regardless of its aggregation, and the common
/// value of any other variable.
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

/// Acts like a reference to the variable.
impl Reducible for Variable {
    type Nest = Leaf;
    fn into_parts(self, operation: &'static str, replicas: usize) -> Result<Parts> {
        (&self).into_parts(operation, replicas)
    }
}
