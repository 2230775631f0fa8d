//! Support for code that `#[derive(Nest)]` generates: access to the fields of a struct.

use super::mismatch;
use crate::{Error, Leaf, Nest, Result, Tree};
use std::collections::BTreeMap;

/// The fields of a struct, which are taken one after another. Code that `#[derive(Nest)]` generates uses this type.
#[derive(Debug)]
pub struct Fields {
    named: BTreeMap<String, Tree<Leaf>>,
    unnamed: std::iter::Enumerate<std::vec::IntoIter<Tree<Leaf>>>,
}

impl Fields {
    /// Creates the fields from a map that must have exactly the given names.
    ///
    /// # Errors
    /// - [`Error::Structure`]: the tree is not a map, or a name is missing or unexpected.
    pub fn named(tree: Tree<Leaf>, names: &[&str]) -> Result<Self> {
        let named = match tree {
            Tree::Dict(items) => items,
            other => return Err(mismatch(&format!("a map of {names:?}"), &other.kind())),
        };
        if let Some(missing) = names.iter().find(|n| !named.contains_key(**n)) {
            return Err(absent(missing));
        }
        if let Some(extra) = named.keys().find(|k| !names.contains(&k.as_str())) {
            let found = "a field of this name";
            return Err(
                mismatch(&format!("one of the fields {names:?}"), found).within(format_args!(".{extra}"))
            );
        }
        Ok(Self { named, unnamed: Vec::new().into_iter().enumerate() })
    }

    /// Creates the fields from a tuple that must have `count` values.
    ///
    /// # Errors
    /// - [`Error::Structure`]: the tree is not a tuple of that length.
    pub fn unnamed(tree: Tree<Leaf>, count: usize) -> Result<Self> {
        match tree {
            Tree::Tuple(items) if items.len() == count => {
                Ok(Self { named: BTreeMap::new(), unnamed: items.into_iter().enumerate() })
            }
            other => Err(mismatch(&format!("a tuple of {count}"), &other.kind())),
        }
    }

    /// Takes the field named `name`.
    ///
    /// # Errors
    /// Returns the errors of [`Nest::from_tree`], with the path of the field. If there is no such field, returns
    /// [`Error::Structure`].
    pub fn take<T: Nest>(&mut self, name: &str) -> Result<T> {
        let tree = self.named.remove(name).ok_or_else(|| absent(name))?;
        T::from_tree(tree).map_err(|e| e.within(format_args!(".{name}")))
    }

    /// Takes the next field of a tuple.
    ///
    /// # Errors
    /// Returns the errors of [`Nest::from_tree`], with the path of the field. If no field is left, returns
    /// [`Error::Empty`].
    #[allow(clippy::should_implement_trait)]
    pub fn next<T: Nest>(&mut self) -> Result<T> {
        let (i, tree) = self.unnamed.next().ok_or(Error::Empty { operation: "from_tree" })?;
        T::from_tree(tree).map_err(|e| e.within(format_args!("[{i}]")))
    }
}

fn absent(name: &str) -> Error {
    mismatch("a field of this name", "nothing").within(format_args!(".{name}"))
}
