//! [`TensorSpec`]: the dtype and shape of a tensor that does not exist yet.

use distribute_tensor::{DType, Leaf, Nest, Tree};
use std::fmt;

/// The dtype and shape of a tensor. The sizes of some axes may be unknown.
#[doc(alias = "tf.TensorSpec")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The type of the elements.
    pub dtype: DType,
    /// The sizes of the axes; `None` for a size that may differ from element to element.
    pub dims: Vec<Option<usize>>,
}

/// The specs of all tensors of an element, in the element's structure.
#[doc(alias = "tf.data.Dataset.element_spec")]
pub type ElementSpec = Tree<TensorSpec>;

impl TensorSpec {
    /// Creates the spec of a tensor whose shape is known completely.
    pub fn new(dtype: DType, dims: impl IntoIterator<Item = usize>) -> Self {
        Self { dtype, dims: dims.into_iter().map(Some).collect() }
    }

    /// Creates the spec of a scalar.
    pub fn scalar(dtype: DType) -> Self {
        Self::new(dtype, [])
    }

    /// Returns whether the sizes of all axes are known.
    pub fn is_static(&self) -> bool {
        self.dims.iter().all(Option::is_some)
    }

    /// Returns the spec with an additional axis 0 before the others. Its size is `rows`; `None` means unknown.
    pub(crate) fn batched(mut self, rows: Option<usize>) -> Self {
        self.dims.insert(0, rows);
        self
    }

    /// Returns the spec with `rows` as the size of axis 0. Has no effect on a scalar.
    pub(crate) fn with_rows(mut self, rows: Option<usize>) -> Self {
        if let Some(first) = self.dims.first_mut() {
            *first = rows;
        }
        self
    }

    /// Returns the spec without axis 0. Has no effect on a scalar.
    pub(crate) fn row(mut self) -> Self {
        self.dims.drain(..self.dims.len().min(1));
        self
    }

    /// Returns a spec that tensors of either spec satisfy: sizes that differ become unknown. Returns `None` if dtypes
    /// or ranks differ.
    pub(crate) fn or(self, other: Self) -> Option<Self> {
        let fits = self.dtype == other.dtype && self.dims.len() == other.dims.len();
        let dims = self.dims.into_iter().zip(other.dims).map(|(a, b)| if a == b { a } else { None });
        fits.then(|| Self { dtype: self.dtype, dims: dims.collect() })
    }
}

/// Returns the spec of an existing element; `None` if a leaf has a dtype of candle for which there is no [`DType`].
pub(crate) fn of(tree: &Tree<Leaf>) -> Option<ElementSpec> {
    tree.try_map_at(&mut |leaf| Ok(TensorSpec::new(leaf.dtype()?, leaf.dims().iter().copied()))).ok()
}

/// Returns the spec that all values of type `T` have; `None` if the type does not determine it.
pub(crate) fn of_type<T: Nest>() -> Option<ElementSpec> {
    T::scalar_dtypes().map(|dtypes| dtypes.map(&mut TensorSpec::scalar))
}

/// Returns a spec that elements of either spec satisfy; `None` if structures, dtypes or ranks differ.
pub(crate) fn either(first: ElementSpec, second: ElementSpec) -> Option<ElementSpec> {
    let both = Tree::zip(vec![first, second]).ok()?;
    both.try_map(&mut |mut pair| match (pair.pop(), pair.pop()) {
        (Some(a), Some(b)) => b.or(a).ok_or(()),
        _ => Err(()),
    })
    .ok()
}

impl From<TensorSpec> for ElementSpec {
    fn from(spec: TensorSpec) -> Self {
        Tree::Leaf(spec)
    }
}

impl fmt::Display for TensorSpec {
    /// Formats the spec, as in `float32 [?, 784]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<_> =
            self.dims.iter().map(|size| size.map_or("?".into(), |size| size.to_string())).collect();
        write!(f, "{} [{}]", self.dtype, dims.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_are_batched_and_joined() {
        let row = TensorSpec::new(DType::F32, [784]);
        assert_eq!(row.to_string(), "float32 [784]");
        let batch = row.clone().batched(None);
        assert_eq!(batch.to_string(), "float32 [?, 784]");
        assert!(row.is_static() && !batch.is_static());
        assert_eq!(batch.clone().row(), row);
        assert_eq!(batch.with_rows(Some(4)), row.clone().batched(Some(4)));
        let short = row.clone().batched(Some(3)).or(row.clone().batched(Some(4)));
        assert_eq!(short, Some(row.clone().batched(None)));
        assert_eq!(row.clone().or(TensorSpec::scalar(DType::F32)), None);
        let pair =
            |a: &TensorSpec, b: &TensorSpec| Tree::Tuple(vec![Tree::Leaf(a.clone()), Tree::Leaf(b.clone())]);
        let scalar = TensorSpec::scalar(DType::I64);
        assert_eq!(either(pair(&row, &scalar), pair(&row, &scalar)), Some(pair(&row, &scalar)));
        assert_eq!(either(pair(&row, &scalar), Tree::Leaf(row.clone())), None);
    }
}
