//! Where elements come from.

use super::Dataset;
use crate::pipeline::Pipeline;
use crate::rows::Rows;
use crate::{Cause, Error, Result};
use distribute_tensor::{Leaf, Nest, Tree};
use std::ops::Range;
use std::sync::Arc;

/// The numbers of [`Dataset::range`]: `10` for 0 to 9, or `3..10`.
#[derive(Clone, Debug)]
pub struct Numbers(Range<i64>);

impl From<i64> for Numbers {
    fn from(end: i64) -> Self {
        Numbers(0..end)
    }
}
impl From<Range<i64>> for Numbers {
    fn from(range: Range<i64>) -> Self {
        Numbers(range)
    }
}

impl Dataset<i64> {
    /// The numbers from 0 to `n - 1`, or those of a range, as scalars of `int64`. Batches are tensors of shape `[n]`.
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
        Self::new(Pipeline::Rows(Arc::new(Rows::Range { start, len })))
    }
}

impl<T: Nest> Dataset<T> {
    /// The slices along axis 0 of all tensors of a nest: leaves of shape `[n, …]` give `n` elements with leaves of
    /// shape `[…]`. The tensors are shared, not copied, and batches are cut out of them in one piece.
    ///
    /// Elements are typed like the nest; where slices are scalars, [`typed`](Dataset::typed) reads them as numbers.
    ///
    /// # Errors
    ///
    /// [`Error::Scalar`] if a leaf has no axis 0, [`Error::UnequalRows`] if leaves have different numbers of rows,
    /// [`Error::NoTensor`] if there is no leaf.
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
        Ok(Self::new(Pipeline::Rows(Arc::new(Rows::Memory { tree, len }))))
    }

    /// Elements that are in memory one by one.
    #[doc(alias = "tf.data.Dataset.from_tensors")]
    pub fn from_items(items: impl IntoIterator<Item = T>) -> Self {
        let items = items.into_iter().map(Nest::into_tree).collect();
        Self::new(Pipeline::Items(Arc::new(items)))
    }

    /// The elements of an iterator that `make` makes for each pass. It may be endless.
    ///
    /// An `Err` gives [`Error::Generator`] with the element's index, a panic of `make` or of the iterator gives
    /// [`Error::Panicked`]; both end the pass.
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let data = Dataset::from_generator(|| "3 1 x".split(' ').map(str::parse::<i64>));
    /// let error = data.iter().last().unwrap().unwrap_err();
    /// assert!(error.to_string().starts_with("the generator failed at element 2: invalid digit"));
    /// ```
    #[doc(alias = "tf.data.Dataset.from_generator")]
    pub fn from_generator<F, I, E>(make: F) -> Self
    where
        F: Fn() -> I + Send + Sync + 'static,
        I: Iterator<Item = Result<T, E>> + Send + 'static,
        E: Into<Cause>,
    {
        // The stage knows the index and fills it in.
        let tree = |item: Result<T, E>| match item {
            Ok(value) => Ok(value.into_tree()),
            Err(cause) => Err(Error::Generator { index: 0, cause: cause.into() }),
        };
        let start = move || Box::new(make().map(tree)) as Box<dyn Iterator<Item = Result<Tree<Leaf>>> + Send>;
        Self::new(Pipeline::Generator(Arc::new(start)))
    }
}
