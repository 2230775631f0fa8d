//! [`Tree`]: a nest whose structure is a runtime value.

use crate::{Error, Result};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A nested structure with leaves of type `L`, to which every [`Nest`](crate::Nest) can be converted.
///
/// Maps are sorted by key, so all replicas visit leaves in the same order.
#[doc(alias = "tf.nest")]
#[derive(Clone, Debug, PartialEq)]
pub enum Tree<L> {
    /// A single leaf.
    Leaf(L),
    /// An `Option` that is `None`.
    None,
    /// A sequence of elements of the same type, such as a `Vec` or an array.
    List(Vec<Tree<L>>),
    /// A sequence of elements that may have different types, such as a tuple.
    Tuple(Vec<Tree<L>>),
    /// Named values, such as a map or a struct.
    Dict(BTreeMap<String, Tree<L>>),
}

impl<L> Tree<L> {
    /// Converts each leaf with `f`. The structure remains the same.
    pub fn map<M>(self, f: &mut impl FnMut(L) -> M) -> Tree<M> {
        match self {
            Tree::Leaf(leaf) => Tree::Leaf(f(leaf)),
            Tree::None => Tree::None,
            Tree::List(items) => Tree::List(items.into_iter().map(|t| t.map(f)).collect()),
            Tree::Tuple(items) => Tree::Tuple(items.into_iter().map(|t| t.map(f)).collect()),
            Tree::Dict(items) => Tree::Dict(items.into_iter().map(|(k, t)| (k, t.map(f))).collect()),
        }
    }

    /// Converts each leaf with `f`, or returns the first error. The structure remains the same.
    pub fn try_map<M, E>(self, f: &mut impl FnMut(L) -> Result<M, E>) -> Result<Tree<M>, E> {
        Ok(match self {
            Tree::Leaf(leaf) => Tree::Leaf(f(leaf)?),
            Tree::None => Tree::None,
            Tree::List(items) => {
                Tree::List(items.into_iter().map(|t| t.try_map(f)).collect::<Result<_, E>>()?)
            }
            Tree::Tuple(items) => {
                Tree::Tuple(items.into_iter().map(|t| t.try_map(f)).collect::<Result<_, E>>()?)
            }
            Tree::Dict(items) => {
                Tree::Dict(items.into_iter().map(|(k, t)| Ok((k, t.try_map(f)?))).collect::<Result<_, E>>()?)
            }
        })
    }

    /// Converts each leaf with `f`, or returns the first error, with the path of the leaf. The structure remains the
    /// same.
    pub fn try_map_at<M>(&self, f: &mut impl FnMut(&L) -> Result<M>) -> Result<Tree<M>> {
        Ok(match self {
            Tree::Leaf(leaf) => Tree::Leaf(f(leaf).map_err(|e| e.within(""))?),
            Tree::None => Tree::None,
            Tree::List(items) => Tree::List(Self::try_map_items(items, f)?),
            Tree::Tuple(items) => Tree::Tuple(Self::try_map_items(items, f)?),
            Tree::Dict(items) => {
                let item = |(k, t): (&String, &Tree<L>)| match t.try_map_at(f) {
                    Ok(t) => Ok((k.clone(), t)),
                    Err(e) => Err(e.within(format_args!(".{k}"))),
                };
                Tree::Dict(items.iter().map(item).collect::<Result<_>>()?)
            }
        })
    }

    fn try_map_items<M>(items: &[Tree<L>], f: &mut impl FnMut(&L) -> Result<M>) -> Result<Vec<Tree<M>>> {
        let item = |(i, t): (usize, &Tree<L>)| t.try_map_at(f).map_err(|e| e.within(format_args!("[{i}]")));
        items.iter().enumerate().map(item).collect()
    }

    /// Calls `f` with each leaf in order, and with a function that returns the path of the leaf, such as `value.a[1]`.
    /// Returns the first error of `f`.
    pub fn visit<E>(&self, f: &mut impl FnMut(&dyn Fn() -> String, &L) -> Result<(), E>) -> Result<(), E> {
        fn walk<L, E>(
            tree: &Tree<L>,
            path: &dyn Fn() -> String,
            f: &mut impl FnMut(&dyn Fn() -> String, &L) -> Result<(), E>,
        ) -> Result<(), E> {
            match tree {
                Tree::Leaf(leaf) => f(path, leaf),
                Tree::None => Ok(()),
                Tree::List(items) | Tree::Tuple(items) => {
                    items.iter().enumerate().try_for_each(|(i, t)| walk(t, &|| format!("{}[{i}]", path()), f))
                }
                Tree::Dict(items) => {
                    items.iter().try_for_each(|(k, t)| walk(t, &|| format!("{}.{k}", path()), f))
                }
            }
        }
        walk(self, &|| String::from("value"), f)
    }

    /// Returns references to the leaves, in order.
    pub fn leaves(&self) -> Vec<&L> {
        fn walk<'a, L>(tree: &'a Tree<L>, out: &mut Vec<&'a L>) {
            match tree {
                Tree::Leaf(leaf) => out.push(leaf),
                Tree::None => {}
                Tree::List(items) | Tree::Tuple(items) => items.iter().for_each(|t| walk(t, out)),
                Tree::Dict(items) => items.values().for_each(|t| walk(t, out)),
            }
        }
        let mut out = Vec::new();
        walk(self, &mut out);
        out
    }

    /// Returns the leaves, in order, and the structure without them.
    pub fn flatten(self) -> (Vec<L>, Tree<()>) {
        let mut leaves = Vec::new();
        let structure = self.map(&mut |leaf| leaves.push(leaf));
        (leaves, structure)
    }

    /// Fills this structure with leaves, in order. Leaves after the last one of the structure are ignored.
    ///
    /// # Errors
    /// - [`Error::Empty`]: there are fewer leaves than the structure has.
    pub fn fill<M>(&self, leaves: impl IntoIterator<Item = M>) -> Result<Tree<M>> {
        fn walk<L, M>(tree: &Tree<L>, leaves: &mut impl Iterator<Item = M>) -> Result<Tree<M>> {
            Ok(match tree {
                Tree::Leaf(_) => {
                    Tree::Leaf(leaves.next().ok_or(Error::Empty { operation: "fill a structure" })?)
                }
                Tree::None => Tree::None,
                Tree::List(items) => {
                    Tree::List(items.iter().map(|t| walk(t, leaves)).collect::<Result<_>>()?)
                }
                Tree::Tuple(items) => {
                    Tree::Tuple(items.iter().map(|t| walk(t, leaves)).collect::<Result<_>>()?)
                }
                Tree::Dict(items) => Tree::Dict(
                    items.iter().map(|(k, t)| Ok((k.clone(), walk(t, leaves)?))).collect::<Result<_>>()?,
                ),
            })
        }
        walk(self, &mut leaves.into_iter())
    }

    /// Combines trees that have the same structure. Each leaf of the result contains the corresponding leaves of all
    /// trees.
    ///
    /// # Errors
    /// - [`Error::Empty`]: `trees` is empty.
    /// - [`Error::Structure`]: a tree has a different structure than the first one. The error contains the path.
    pub fn zip(trees: Vec<Tree<L>>) -> Result<Tree<Vec<L>>> {
        let mut trees = trees.into_iter();
        let first = trees.next().ok_or(Error::Empty { operation: "zip" })?;
        let mut merged = first.map(&mut |leaf| vec![leaf]);
        for tree in trees {
            merged.push_all(tree, &mut String::from("value"))?;
        }
        Ok(merged)
    }

    /// Returns the kind of this node as text, such as `a leaf` or `a list of 2`.
    pub fn kind(&self) -> String {
        match self {
            Tree::Leaf(_) => "a leaf".into(),
            Tree::None => "nothing".into(),
            Tree::List(items) => format!("a list of {}", items.len()),
            Tree::Tuple(items) => format!("a tuple of {}", items.len()),
            Tree::Dict(items) => format!("a map of {:?}", items.keys().collect::<Vec<_>>()),
        }
    }

    /// Returns the structure as text, such as `(*, [*, *])`. `leaf` formats each leaf.
    pub fn describe(&self, leaf: &impl Fn(&L) -> String) -> String {
        fn all<'a, L: 'a>(items: impl Iterator<Item = &'a Tree<L>>, leaf: &impl Fn(&L) -> String) -> String {
            items.map(|t| t.describe(leaf)).collect::<Vec<_>>().join(", ")
        }
        match self {
            Tree::Leaf(l) => leaf(l),
            Tree::None => "None".into(),
            Tree::List(items) => format!("[{}]", all(items.iter(), leaf)),
            Tree::Tuple(items) if items.len() == 1 => format!("({},)", all(items.iter(), leaf)),
            Tree::Tuple(items) => format!("({})", all(items.iter(), leaf)),
            Tree::Dict(items) => {
                let items: Vec<_> =
                    items.iter().map(|(k, t)| format!("{k:?}: {}", t.describe(leaf))).collect();
                format!("{{{}}}", items.join(", "))
            }
        }
    }
}

impl<L> Tree<Vec<L>> {
    fn push_all(&mut self, other: Tree<L>, path: &mut String) -> Result<()> {
        match (self, other) {
            (Tree::Leaf(leaves), Tree::Leaf(leaf)) => leaves.push(leaf),
            (Tree::None, Tree::None) => {}
            (Tree::List(mine), Tree::List(theirs)) | (Tree::Tuple(mine), Tree::Tuple(theirs))
                if mine.len() == theirs.len() =>
            {
                for (i, (mine, theirs)) in mine.iter_mut().zip(theirs).enumerate() {
                    let len = path.len();
                    let _ = write!(path, "[{i}]");
                    mine.push_all(theirs, path)?;
                    path.truncate(len);
                }
            }
            (Tree::Dict(mine), Tree::Dict(theirs)) if mine.keys().eq(theirs.keys()) => {
                for ((key, mine), theirs) in mine.iter_mut().zip(theirs.into_values()) {
                    let len = path.len();
                    let _ = write!(path, ".{key}");
                    mine.push_all(theirs, path)?;
                    path.truncate(len);
                }
            }
            (mine, theirs) => {
                return Err(Error::Structure {
                    path: path.clone(),
                    expected: mine.kind(),
                    found: theirs.kind(),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Leaf, Nest};
    use proptest::prelude::*;

    /// Generates trees of numbers, up to three levels deep.
    fn trees() -> impl Strategy<Value = Tree<u8>> {
        let end = prop_oneof![any::<u8>().prop_map(Tree::Leaf), Just(Tree::None)];
        end.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Tree::List),
                prop::collection::vec(inner.clone(), 0..4).prop_map(Tree::Tuple),
                prop::collection::vec(("[a-z]{1,3}", inner), 0..4)
                    .prop_map(|items| Tree::Dict(items.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn flatten_and_fill_are_inverse(tree in trees()) {
            let (leaves, structure) = tree.clone().flatten();
            prop_assert_eq!(tree.leaves().into_iter().copied().collect::<Vec<_>>(), leaves.clone());
            prop_assert_eq!(structure.fill(leaves)?, tree);
        }

        #[test]
        fn zip_keeps_structure_and_order(tree in trees(), n in 1usize..4) {
            let zipped = Tree::zip((0..n).map(|i| tree.clone().map(&mut |x| (i, x))).collect())?;
            prop_assert_eq!(zipped.clone().map(&mut |leaves| leaves[0].1), tree);
            for leaves in zipped.leaves() {
                prop_assert!(leaves.iter().map(|l| l.0).eq(0..n));
            }
        }

        // Every leaf that is replaced by another structure is found, and its path is named.
        #[test]
        fn zip_names_the_path_of_a_mismatch(tree in trees(), pick: prop::sample::Index) {
            let mut paths = Vec::new();
            tree.visit(&mut |path, _| { paths.push(path()); Ok::<(), Error>(()) })?;
            prop_assume!(!paths.is_empty());
            let at = pick.index(paths.len());
            let mut count = 0;
            let other = tree.clone().map(&mut |x| { count += 1; if count == at + 1 { None } else { Some(x) } });
            fn cut(tree: Tree<Option<u8>>) -> Tree<u8> {
                match tree {
                    Tree::Leaf(None) => Tree::List(vec![]),
                    Tree::Leaf(Some(x)) => Tree::Leaf(x),
                    Tree::None => Tree::None,
                    Tree::List(items) => Tree::List(items.into_iter().map(cut).collect()),
                    Tree::Tuple(items) => Tree::Tuple(items.into_iter().map(cut).collect()),
                    Tree::Dict(items) => Tree::Dict(items.into_iter().map(|(k, t)| (k, cut(t))).collect()),
                }
            }
            match Tree::zip(vec![tree, cut(other)]) {
                Err(Error::Structure { path, expected, found }) => {
                    prop_assert_eq!(path, paths[at].clone());
                    prop_assert_eq!((expected, found), ("a leaf".to_string(), "a list of 0".to_string()));
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }

    #[test]
    fn an_error_in_a_leaf_names_its_path() {
        let tree = BTreeMap::from([("a".to_string(), (1, vec![2, 3]))]).into_tree();
        let mut count = 0;
        let result = tree.try_map_at(&mut |_: &Leaf| {
            count += 1;
            if count == 3 { Err(Error::Empty { operation: "test" }) } else { Ok(()) }
        });
        assert_eq!(result.unwrap_err().to_string(), "at value.a[1][1]: test needs at least one value");
    }
}
