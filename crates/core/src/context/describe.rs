//! Descriptions of a call's values, for its fingerprint. They contain only the properties that must be equal on all
//! replicas.

use distribute_tensor::{Leaf, Tree};

/// Describes a nest. `leaf` returns the description of one leaf.
pub(crate) fn describe(structure: &Tree<()>, leaves: &[Leaf], leaf: impl Fn(&Leaf) -> String) -> String {
    if let (Tree::Leaf(()), [only]) = (structure, leaves) {
        return leaf(only);
    }
    let texts = leaves.iter().map(leaf);
    structure.fill(texts).map(|tree| tree.describe(&String::clone)).unwrap_or_default()
}

/// Describes the properties that must be equal in a sum. For indexed slices these are the dtype and the dense shape,
/// but not the number of rows. Another replica may contribute a dense tensor of the same shape. If the dense shape is
/// unknown, the shape of a row takes its place.
pub(crate) fn describe_for_sum(leaf: &Leaf) -> String {
    match leaf {
        Leaf::Slices(slices) => match &slices.dense_shape {
            Some(shape) => format!("{}{shape:?}", slices.values.dtype()),
            None => format!("IndexedSlices({})", describe_without(leaf, 0)),
        },
        dense => dense.describe(),
    }
}

/// Describes the dtype and shape of a leaf, except for its size along `axis`.
pub(crate) fn describe_without(leaf: &Leaf, axis: usize) -> String {
    let dims: Vec<_> = leaf
        .dims()
        .iter()
        .enumerate()
        .map(|(i, d)| if i == axis { "*".to_string() } else { d.to_string() })
        .collect();
    let dtype = leaf.dtype().map_or("?", |d| d.name());
    format!("{dtype}[{}]", dims.join(", "))
}
