//! The operation that concatenates datasets that are created from elements.

use crate::{Cause, Dataset, Interleave, Result};
use distribute_tensor::Nest;

/// The parameters for reading one dataset at a time, to its end.
const IN_ORDER: Interleave = Interleave { cycle_length: 1, block_length: usize::MAX, ahead: 0 };

impl<T: Nest> Dataset<T> {
    /// Maps each element to a dataset, and concatenates these datasets.
    ///
    /// Errors are handled and passes are numbered as in [`interleave`](Dataset::interleave).
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let data = Dataset::range(4).flat_map(|n| Dataset::range(n));
    /// assert_eq!(data.iter().collect::<Result<Vec<_>, _>>()?, [0, 0, 1, 0, 1, 2]);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "tf.data.Dataset.flat_map")]
    pub fn flat_map<U, F>(&self, function: F) -> Dataset<U>
    where
        T: 'static,
        U: Nest,
        F: Fn(T) -> Dataset<U> + Send + Sync + 'static,
    {
        self.try_flat_map(move |value| Ok::<_, Cause>(function(value)))
    }

    /// Maps elements like [`flat_map`](Dataset::flat_map), but `function` may fail. An error of `function` ends the
    /// pass with [`Error::Inner`](crate::Error::Inner).
    #[doc(alias = "tf.data.Dataset.flat_map")]
    pub fn try_flat_map<U, E, F>(&self, function: F) -> Dataset<U>
    where
        T: 'static,
        U: Nest,
        E: Into<Cause>,
        F: Fn(T) -> Result<Dataset<U>, E> + Send + Sync + 'static,
    {
        self.in_turn("flat_map", function, IN_ORDER)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{ids, values};
    use crate::{Cardinality, Dataset};

    #[test]
    fn datasets_follow_each_other_and_their_rows_stay_rows() {
        let data = Dataset::range(4).flat_map(|n| Dataset::range(10 * n..11 * n));
        assert_eq!(values(&data), [10, 20, 21, 30, 31, 32]);
        assert_eq!(values(&data.skip(2)), [21, 30, 31, 32]);
        assert_eq!(ids(&data.batch(4)), [vec![10, 20, 21, 30], vec![31, 32]]);
        assert_eq!(data.cardinality(), Cardinality::Unknown);
        assert_eq!(values(&Dataset::range(2).flat_map(|_| Dataset::range(3)).repeat(2)).len(), 12);
    }

    #[test]
    fn an_error_of_the_function_names_the_element() {
        let data =
            Dataset::range(3).try_flat_map(|n| if n == 1 { Err("gone") } else { Ok(Dataset::range(1)) });
        let error = data.iter().last().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "flat_map: the dataset of element 1 failed: gone");
    }
}
