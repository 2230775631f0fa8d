//! What can be done to the elements of a dataset. Each transformation gives a new dataset and leaves the old one.

use super::Dataset;
use crate::guard::guarded;
use crate::pipeline::Pipeline;
use crate::{Cause, Error, Result};
use distribute_tensor::{Leaf, Nest, Tree};
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Applies `function` to every element.
    ///
    /// A panic gives [`Error::Panicked`] with the element's index and ends the pass.
    #[doc(alias = "tf.data.Dataset.map")]
    pub fn map<U, F>(&self, function: F) -> Dataset<U>
    where
        T: 'static,
        U: Nest,
        F: Fn(T) -> U + Send + Sync + 'static,
    {
        self.try_map(move |value| Ok::<U, Cause>(function(value)))
    }

    /// Applies a function that can fail to every element.
    ///
    /// An `Err` gives [`Error::Map`], a panic [`Error::Panicked`], both with the element's index; they end the pass.
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let data = Dataset::range(3).try_map(|x| if x < 2 { Ok(x) } else { Err("too large") });
    /// let error = data.iter().last().unwrap().unwrap_err();
    /// assert_eq!(error.to_string(), "map failed at element 2: too large");
    /// ```
    #[doc(alias = "tf.data.Dataset.map")]
    pub fn try_map<U, E, F>(&self, function: F) -> Dataset<U>
    where
        T: 'static,
        U: Nest,
        E: Into<Cause>,
        F: Fn(T) -> Result<U, E> + Send + Sync + 'static,
    {
        let function = move |tree: Tree<Leaf>, index: usize| {
            let value =
                T::from_tree(tree).map_err(|source| Error::Type { operation: "map", index, source })?;
            match guarded("map", index, || function(value))? {
                Ok(mapped) => Ok(mapped.into_tree()),
                Err(cause) => Err(Error::Map { index, cause: cause.into() }),
            }
        };
        Dataset::new(Pipeline::Map { input: self.pipeline.clone(), function: Arc::new(function) })
    }

    /// Keeps the elements for which `predicate` is true.
    ///
    /// A panic gives [`Error::Panicked`] with the element's index and ends the pass.
    #[doc(alias = "tf.data.Dataset.filter")]
    pub fn filter<F>(&self, predicate: F) -> Self
    where
        T: 'static,
        F: Fn(&T) -> bool + Send + Sync + 'static,
    {
        let predicate = move |tree: Tree<Leaf>, index: usize| {
            let value =
                T::from_tree(tree).map_err(|source| Error::Type { operation: "filter", index, source })?;
            guarded("filter", index, || predicate(&value))
        };
        Self::new(Pipeline::Filter { input: self.pipeline.clone(), predicate: Arc::new(predicate) })
    }

    /// Random order: draws from a buffer of `buffer` elements that is filled up after each draw.
    ///
    /// With a buffer of at least the number of elements every order is equally likely. The order depends on `seed`
    /// and the epoch only: every pass, and every repetition of a [`repeat`](Dataset::repeat) after this, has its
    /// own. Tensors in memory and ranges are shuffled as numbers of rows, 8 bytes each.
    ///
    /// `buffer` 0 gives [`Error::Parameter`] in the pass.
    #[doc(alias = "tf.data.Dataset.shuffle")]
    pub fn shuffle(&self, buffer: usize, seed: u64) -> Self {
        Self::new(Pipeline::Shuffle { input: self.pipeline.clone(), buffer, seed })
    }

    /// The dataset `times` times over, each time in the shuffles' next order.
    #[doc(alias = "tf.data.Dataset.repeat")]
    pub fn repeat(&self, times: usize) -> Self {
        Self::new(Pipeline::Repeat { input: self.pipeline.clone(), times: Some(times) })
    }

    /// The dataset again and again without end. A dataset without elements stays without.
    #[doc(alias = "tf.data.Dataset.repeat")]
    pub fn repeat_forever(&self) -> Self {
        Self::new(Pipeline::Repeat { input: self.pipeline.clone(), times: None })
    }

    /// The first `count` elements.
    #[doc(alias = "tf.data.Dataset.take")]
    pub fn take(&self, count: usize) -> Self {
        Self::new(Pipeline::Take { input: self.pipeline.clone(), count })
    }

    /// All but the first `count` elements.
    #[doc(alias = "tf.data.Dataset.skip")]
    pub fn skip(&self, count: usize) -> Self {
        Self::new(Pipeline::Skip { input: self.pipeline.clone(), count })
    }

    /// Makes up to `buffer` elements ahead of time, on a thread that starts with the first element asked for and
    /// ends with the pass: at the end, at an error, or when the iterator is dropped (a user's function that is
    /// running then is finished first). 0 changes nothing.
    ///
    /// A thread that cannot be started gives [`Error::Thread`].
    #[doc(alias = "tf.data.Dataset.prefetch")]
    pub fn prefetch(&self, buffer: usize) -> Self {
        Self::new(Pipeline::Prefetch { input: self.pipeline.clone(), buffer })
    }
}

impl<T: Nest> Dataset<T> {
    /// Puts `size` elements after each other together along a new axis 0: leaves of shape `[…]` become leaves of
    /// shape `[size, …]`. The last batch has the elements that are left, at least one.
    ///
    /// Elements that differ in structure, dtype or shape give [`Error::Stack`] in the pass, `size` 0 gives
    /// [`Error::Parameter`].
    #[doc(alias = "tf.data.Dataset.batch")]
    pub fn batch(&self, size: usize) -> Dataset<T::Batch> {
        Dataset::new(Pipeline::Batch { input: self.pipeline.clone(), size, drop_remainder: false })
    }

    /// [`batch`](Dataset::batch), without a last batch that would be shorter.
    #[doc(alias = "drop_remainder")]
    pub fn batch_exact(&self, size: usize) -> Dataset<T::Batch> {
        Dataset::new(Pipeline::Batch { input: self.pipeline.clone(), size, drop_remainder: true })
    }
}
