//! What a fingerprint says of the values of a call: what has to be equal on all replicas, and no more.

use distribute_tensor::{Leaf, Tree};

/// A nest, with each leaf as `leaf` tells it.
pub(crate) fn describe(structure: &Tree<()>, leaves: &[Leaf], leaf: impl Fn(&Leaf) -> String) -> String {
    if let (Tree::Leaf(()), [only]) = (structure, leaves) {
        return leaf(only);
    }
    let texts = leaves.iter().map(leaf);
    structure.fill(texts).map(|tree| tree.describe(&String::clone)).unwrap_or_default()
}

/// What has to be equal for a sum: of indexed slices the shape of the whole, not the number of rows. A dense
/// tensor of that shape may stand on another replica.
pub(crate) fn describe_for_sum(leaf: &Leaf) -> String {
    match leaf {
        Leaf::Slices(slices) => match &slices.dense_shape {
            Some(shape) => format!("{}{shape:?}", slices.values.dtype()),
            None => format!("IndexedSlices({})", describe_without(leaf, 0)),
        },
        dense => dense.describe(),
    }
}

/// A leaf without its size along `axis`.
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
