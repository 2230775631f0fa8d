//! Containers of values. Each item is split, reduced and gathered in the same way as outside the container.

use super::distributed::OPERATION;
use super::{Distributed, Parts, Reducible};
use candle_core::Var;
use distribute_base::{Error, Result};
use distribute_tensor::{Nest, Tree};
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;

/// A container whose items all have the same type, and which can be rebuilt with items of a different type.
pub trait Container: Sized {
    type Item;

    /// The same container with items of type `U`.
    type With<U>;

    /// Converts the container to its structure, whose leaves are the items.
    fn into_nodes(self) -> Tree<Self::Item>;

    fn items(&self) -> impl Iterator<Item = &Self::Item>;

    /// Rebuilds the container from its structure. Returns `None` if the structure does not match this type of
    /// container.
    fn from_nodes<U>(nodes: Tree<U>) -> Option<Self::With<U>>;

    /// Returns the number of [local results](Distributed::local_results) on `replicas` local replicas, by default one
    /// per replica. A container that may be a single item, such as an `Option`, returns the result of `of` for that
    /// item, and 1 if it is empty.
    fn results(&self, replicas: usize, of: impl Fn(&Self::Item) -> usize) -> usize {
        let _ = of;
        replicas
    }
}

impl<D> Container for Vec<D> {
    type Item = D;
    type With<U> = Vec<U>;

    fn into_nodes(self) -> Tree<D> {
        Tree::List(self.into_iter().map(Tree::Leaf).collect())
    }
    fn items(&self) -> impl Iterator<Item = &D> {
        self.iter()
    }
    fn from_nodes<U>(nodes: Tree<U>) -> Option<Vec<U>> {
        match nodes {
            Tree::List(items) => items.into_iter().map(item).collect(),
            _ => None,
        }
    }
}

impl<D, const N: usize> Container for [D; N] {
    type Item = D;
    type With<U> = [U; N];

    fn into_nodes(self) -> Tree<D> {
        Vec::from(self).into_nodes()
    }
    fn items(&self) -> impl Iterator<Item = &D> {
        self.iter()
    }
    fn from_nodes<U>(nodes: Tree<U>) -> Option<[U; N]> {
        Vec::<D>::from_nodes(nodes)?.try_into().ok()
    }
}

impl<D> Container for Option<D> {
    type Item = D;
    type With<U> = Option<U>;

    fn into_nodes(self) -> Tree<D> {
        self.map_or(Tree::None, Tree::Leaf)
    }
    fn items(&self) -> impl Iterator<Item = &D> {
        self.iter()
    }
    fn from_nodes<U>(nodes: Tree<U>) -> Option<Option<U>> {
        match nodes {
            Tree::None => Some(None),
            some => item(some).map(Some),
        }
    }
    fn results(&self, _: usize, of: impl Fn(&D) -> usize) -> usize {
        self.as_ref().map_or(1, of)
    }
}

impl<D> Container for BTreeMap<String, D> {
    type Item = D;
    type With<U> = BTreeMap<String, U>;

    fn into_nodes(self) -> Tree<D> {
        Tree::Dict(self.into_iter().map(|(name, item)| (name, Tree::Leaf(item))).collect())
    }
    fn items(&self) -> impl Iterator<Item = &D> {
        self.values()
    }
    fn from_nodes<U>(nodes: Tree<U>) -> Option<BTreeMap<String, U>> {
        match nodes {
            Tree::Dict(items) => items.into_iter().map(|(name, node)| Some((name, item(node)?))).collect(),
            _ => None,
        }
    }
}

impl<D> Container for HashMap<String, D> {
    type Item = D;
    type With<U> = HashMap<String, U>;

    fn into_nodes(self) -> Tree<D> {
        Tree::Dict(self.into_iter().map(|(name, item)| (name, Tree::Leaf(item))).collect())
    }
    fn items(&self) -> impl Iterator<Item = &D> {
        self.values()
    }
    fn from_nodes<U>(nodes: Tree<U>) -> Option<HashMap<String, U>> {
        Some(BTreeMap::<String, D>::from_nodes(nodes)?.into_iter().collect())
    }
}

impl<D> Container for Tree<D> {
    type Item = D;
    type With<U> = Tree<U>;

    fn into_nodes(self) -> Tree<D> {
        self
    }
    fn items(&self) -> impl Iterator<Item = &D> {
        self.leaves().into_iter()
    }
    fn from_nodes<U>(nodes: Tree<U>) -> Option<Tree<U>> {
        Some(nodes)
    }
    fn results(&self, replicas: usize, of: impl Fn(&D) -> usize) -> usize {
        match self {
            Tree::Leaf(leaf) => of(leaf),
            Tree::None => 1,
            _ => replicas,
        }
    }
}

fn item<U>(node: Tree<U>) -> Option<U> {
    if let Tree::Leaf(item) = node { Some(item) } else { None }
}

impl<C: Container> Distributed for C
where
    C::Item: Distributed,
    C::With<<C::Item as Distributed>::Local>: Send,
{
    type Local = C::With<<C::Item as Distributed>::Local>;

    fn split(self, replicas: usize) -> Result<Vec<Self::Local>> {
        let (items, structure) = self.into_nodes().flatten();
        let mut parts: Vec<_> = (0..replicas).map(|_| Vec::with_capacity(items.len())).collect();
        for (number, item) in items.into_iter().enumerate() {
            let of_item = item.split(replicas).map_err(|error| error.within(path(&structure, number)))?;
            parts.iter_mut().zip(of_item).for_each(|(parts, part)| parts.push(part));
        }
        let whole = |parts| {
            let nodes = structure.fill(parts).map_err(Error::tensor(OPERATION))?;
            C::from_nodes(nodes).ok_or_else(|| Error::invalid(OPERATION, "a container of another structure"))
        };
        parts.into_iter().map(whole).collect()
    }

    fn rows(&self, replica: usize) -> Option<usize> {
        self.items().filter_map(|item| item.rows(replica)).min()
    }

    fn is_per_replica(&self) -> bool {
        self.items().any(Distributed::is_per_replica)
    }

    fn own_variables(&self, replica: usize) -> Vec<Var> {
        self.items().flat_map(|item| item.own_variables(replica)).collect()
    }

    fn local_results(&self, replicas: usize) -> usize {
        self.results(replicas, |item| item.local_results(replicas))
    }
}

/// Returns the path of item `number`, such as `[1]` or `.name`.
fn path(structure: &Tree<()>, number: usize) -> String {
    let mut paths = Vec::new();
    let Ok(()) = structure.visit(&mut |path, ()| {
        paths.push(path());
        Ok::<(), Infallible>(())
    });
    // Paths begin with the word for the whole value.
    paths.get(number).map(|path| path.trim_start_matches("value").to_string()).unwrap_or_default()
}

impl<C: Container> Reducible for C
where
    C::Item: Reducible,
    C::With<<C::Item as Reducible>::Nest>: Nest,
{
    type Nest = C::With<<C::Item as Reducible>::Nest>;

    fn into_parts(self, operation: &'static str, replicas: usize) -> Result<Parts> {
        Ok(joined(self.into_nodes().try_map(&mut |item| item.into_parts(operation, replicas))?))
    }
}

/// Joins a tree of trees into a single tree, whose leaves are the leaves of the inner trees.
fn joined<L>(tree: Tree<Tree<L>>) -> Tree<L> {
    match tree {
        Tree::Leaf(inner) => inner,
        Tree::None => Tree::None,
        Tree::List(items) => Tree::List(items.into_iter().map(joined).collect()),
        Tree::Tuple(items) => Tree::Tuple(items.into_iter().map(joined).collect()),
        Tree::Dict(items) => Tree::Dict(items.into_iter().map(|(name, tree)| (name, joined(tree))).collect()),
    }
}
