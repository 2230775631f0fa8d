//! The description of a call's values in fingerprints: only the properties that have to be equal on all
//! replicas.

use distribute_tensor::{Leaf, Tree};

/// Describes a nest, with `leaf` for each leaf.
pub(crate) fn describe(structure: &Tree<()>, leaves: &[Leaf], leaf: impl Fn(&Leaf) -> String) -> String {
    if let (Tree::Leaf(()), [only]) = (structure, leaves) {
        return leaf(only);
    }
    let texts = leaves.iter().map(leaf);
    structure.fill(texts).map(|tree| tree.describe(&String::clone)).unwrap_or_default()
}

/// Describes the properties that have to be equal for a sum. For indexed slices that is the dense shape, not
/// the number of rows; another replica may contribute a dense tensor of that shape.
pub(crate) fn describe_for_sum(leaf: &Leaf) -> String {
    match leaf {
        Leaf::Slices(slices) => match &slices.dense_shape {
            Some(shape) => format!("{}{shape:?}", slices.values.dtype()),
            None => format!("IndexedSlices({})", describe_without(leaf, 0)),
        },
        dense => dense.describe(),
    }
}

/// Describes a leaf without its size along `axis`.
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
