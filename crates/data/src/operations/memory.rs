//! The sources that read elements from memory: rows of tensors, numbers of a range, single items.

use crate::chunk::{Chunk, Picks};
use crate::dataset::Numbers;
use crate::pipeline::{Batching, Look, Operation, Sharding};
use crate::rows::Rows;
use crate::stage::Stage;
use crate::{Cardinality, Dataset, ElementSpec, Result, TensorSpec, spec};
use distribute_tensor::{DType, Leaf, Nest, Tree};
use std::ops::Range;
use std::sync::Arc;

impl Dataset<i64> {
    /// Creates a dataset of numbers, as scalars of `int64`. `numbers` is a range, or the number of elements, which are
    /// then counted from 0. Sizes of type `usize` are also accepted. A batch of `n` numbers is a tensor of shape `[n]`.
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let squares: Vec<i64> = Dataset::range(4).map(|x| x * x).iter().collect::<Result<_, _>>()?;
    /// assert_eq!(squares, [0, 1, 4, 9]);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "tf.data.Dataset.range")]
    pub fn range(numbers: impl Into<Numbers>) -> Self {
        let Numbers(Range { start, end }) = numbers.into();
        let len = if start < end { start.abs_diff(end) as usize } else { 0 };
        Self::of(InMemory(Arc::new(Rows::Range { start, len })))
    }
}

impl<T: Nest> Dataset<T> {
    /// Creates a dataset of the slices along axis 0 of all tensors of a nest. Leaves of shape `[n, …]` give `n`
    /// elements with leaves of shape `[…]`. The tensors are shared, not copied. Batches are views of them, or a single
    /// copy.
    ///
    /// Elements have the same type as the nest. If slices are scalars, [`typed`](Dataset::typed) converts them to
    /// numbers.
    ///
    /// # Errors
    ///
    /// - [`Error::Scalar`](crate::Error::Scalar): a leaf has no axis 0.
    /// - [`Error::UnequalRows`](crate::Error::UnequalRows): leaves have different numbers of rows.
    /// - [`Error::NoTensor`](crate::Error::NoTensor): the nest has no leaves.
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// # use distribute_tensor::HostTensor;
    /// let images = HostTensor::new(vec![0f32; 6], [3, 2])?;
    /// let labels = HostTensor::vector(vec![4i64, 5, 6]);
    /// let data = Dataset::from_slices((images, labels))?;
    /// assert_eq!(data.cardinality().finite(), Some(3));
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "tf.data.Dataset.from_tensor_slices")]
    pub fn from_slices(nest: T) -> Result<Self> {
        let tree = nest.into_tree();
        let len = crate::split::rows(&tree, "from_slices")?;
        Ok(Self::of(InMemory(Arc::new(Rows::Memory { tree, len }))))
    }

    /// Creates a dataset of the given elements. They may have different structures and shapes, unless they are
    /// batched. `from_items([nest])` has `nest` as its only element.
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let data = Dataset::from_items([(0i64, 0.5f32), (1, 1.5)]);
    /// assert_eq!(data.iter().last().unwrap()?, (1, 1.5));
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "tf.data.Dataset.from_tensors")]
    #[doc(alias = "tf.data.experimental.from_list")]
    pub fn from_items(items: impl IntoIterator<Item = T>) -> Self {
        let items = items.into_iter().map(Nest::into_tree).collect();
        Self::of(Items(Arc::new(items)))
    }
}

/// The source of the slices of a nest, or of the numbers of a range.
struct InMemory(Arc<Rows>);

impl Operation for InMemory {
    fn describe(&self) -> String {
        match self.0.as_ref() {
            Rows::Memory { tree, .. } | Rows::Section { tree, .. } => {
                format!("slices of {}", tree.describe(&describe_leaf))
            }
            Rows::Range { start, len } => format!("range {start}..{}", i128::from(*start) + *len as i128),
            Rows::Pairs { .. } => "pairs".into(),
        }
    }

    fn cardinality(&self) -> Cardinality {
        Cardinality::Finite(self.0.len())
    }

    fn batching(&self) -> Batching {
        Batching::Elements
    }

    fn spec(&self, _look: Look) -> Option<ElementSpec> {
        match self.0.as_ref() {
            Rows::Memory { tree, .. } | Rows::Section { tree, .. } => {
                Some(spec::of(tree)?.map(&mut TensorSpec::row))
            }
            Rows::Range { .. } => Some(Tree::Leaf(TensorSpec::scalar(DType::I64))),
            Rows::Pairs { .. } => None,
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Source
    }

    fn start(&self, _epoch: u64) -> Box<dyn Stage> {
        Box::new(RowsStage { rows: self.0.clone(), next: 0 })
    }
}

fn describe_leaf(leaf: &Leaf) -> String {
    match leaf {
        Leaf::Host(tensor) => format!("{} {:?}", tensor.dtype(), tensor.dims()),
        other => other.kind().into(),
    }
}

/// The stage that yields the rows of a nest, or the numbers of a range, in order.
struct RowsStage {
    rows: Arc<Rows>,
    next: usize,
}

impl RowsStage {
    /// Moves past up to `count` rows, and returns their indices.
    fn advance(&mut self, count: usize) -> Range<usize> {
        let start = self.next;
        self.next = self.rows.len().min(start.saturating_add(count));
        start..self.next
    }
}

impl Stage for RowsStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        let rows = self.advance(max);
        (!rows.is_empty()).then(|| Ok(Chunk::Rows(self.rows.clone(), Picks::Range(rows))))
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        Ok(self.advance(count).len())
    }
}

/// The source of single items.
struct Items(Arc<Vec<Tree<Leaf>>>);

impl Operation for Items {
    fn describe(&self) -> String {
        "items in memory".into()
    }

    /// Returns the number of items. As with slices, the values are not part of the identity.
    fn identity(&self) -> String {
        format!("{} items in memory", self.0.len())
    }

    fn cardinality(&self) -> Cardinality {
        Cardinality::Finite(self.0.len())
    }

    fn batching(&self) -> Batching {
        Batching::Unknown
    }

    fn spec(&self, _look: Look) -> Option<ElementSpec> {
        let mut specs = self.0.iter().map(spec::of);
        let first = specs.next()??;
        specs.try_fold(first, |all, next| spec::either(all, next?))
    }

    fn sharding(&self) -> Sharding {
        Sharding::Source
    }

    fn start(&self, _epoch: u64) -> Box<dyn Stage> {
        Box::new(ItemsStage { items: self.0.clone(), next: 0 })
    }
}

struct ItemsStage {
    items: Arc<Vec<Tree<Leaf>>>,
    next: usize,
}

impl Stage for ItemsStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        let start = self.next;
        self.next = self.items.len().min(start.saturating_add(max));
        let items = self.items.get(start..self.next)?;
        (!items.is_empty()).then(|| Ok(Chunk::Values(items.to_vec())))
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        let start = self.next;
        self.next = self.items.len().min(start.saturating_add(count));
        Ok(self.next - start)
    }
}

#[cfg(test)]
mod tests {
    use crate::Dataset;
    use crate::testing::{ids, values};
    use distribute_tensor::HostTensor;

    #[test]
    fn slices_of_a_nest_are_its_rows() {
        let x = HostTensor::new(vec![1f32, 2., 3., 4., 5., 6.], [3, 2]).unwrap();
        let y = HostTensor::vector(vec![7i64, 8, 9]);
        let data = Dataset::from_slices((x, y)).unwrap().typed::<(HostTensor, i64)>();
        let rows: Vec<_> = data.iter().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[1].0.dims(), [2]);
        assert_eq!(rows[1].0.as_slice::<f32>().unwrap(), [3., 4.]);
        assert_eq!(rows[1].1, 8);
    }

    #[test]
    fn slices_need_rows_and_equally_many() {
        let x = HostTensor::vector(vec![1f32, 2.]);
        let error = Dataset::from_slices((x.clone(), vec![x.clone(), HostTensor::scalar(1i64)])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "from_slices needs rows, but value[1][1] is a scalar: it has no axis 0 to split"
        );
        let error = Dataset::from_slices((x, HostTensor::vector(vec![1i64; 3]))).unwrap_err();
        let expected = "from_slices needs equal sizes of axis 0: value[0] has 2 rows, value[1] has 3";
        assert_eq!(error.to_string(), expected);
        let error = Dataset::from_slices(()).unwrap_err();
        assert!(error.to_string().contains("has none"), "{error}");
    }

    #[test]
    fn ranges_and_items() {
        assert_eq!(values(&Dataset::range(4)), [0, 1, 2, 3]);
        assert_eq!(values(&Dataset::range(-2..1)), [-2, -1, 0]);
        let files = ["a", "b", "c"];
        assert_eq!(values(&Dataset::range(files.len())), [0, 1, 2]);
        assert_eq!(values(&Dataset::range(1..files.len())), [1, 2]);
        assert_eq!(Dataset::range(usize::MAX).cardinality(), Dataset::range(i64::MAX).cardinality());
        #[allow(clippy::reversed_empty_ranges)]
        let backwards = Dataset::range(3..1);
        assert_eq!(values(&backwards), [0i64; 0]);
        assert_eq!(values(&Dataset::range(i64::MAX - 1..i64::MAX)), [i64::MAX - 1]);
        assert_eq!(values(&Dataset::from_items(vec![5i64, 4])), [5, 4]);
        assert_eq!(ids(&Dataset::from_items(vec![5i64, 4, 3]).batch(2)), [vec![5, 4], vec![3]]);
    }
}
