//! The operation that keeps some of the elements.

use super::repeat::EmptyPassCounter;
use crate::chunk::{Chunk, Picks};
use crate::guard::catch_panics;
use crate::pipeline::{Operation, Pipeline, Sharding, one_input};
use crate::stage::{Counted, Stage};
use crate::{Cardinality, Cause, Dataset, Error, Result};
use distribute_tensor::{Leaf, Nest, Tree};
use std::convert::Infallible;
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Keeps only the elements for which `predicate` returns `true`.
    ///
    /// If the input is a [repeated](Dataset::repeat) dataset, and the filter keeps no element of 100 consecutive
    /// repetitions, the pass ends with [`Error::EmptyPasses`]. If batches extend over the ends of repetitions, as
    /// batches of 1,000 from 999 elements do, the pass ends after 10,000 repetitions.
    ///
    /// A panic results in [`Error::Panicked`] with the element's index, and ends the pass.
    #[doc(alias = "tf.data.Dataset.filter")]
    pub fn filter<F>(&self, predicate: F) -> Self
    where
        T: 'static,
        F: Fn(&T) -> bool + Send + Sync + 'static,
    {
        self.try_filter(move |value| Ok::<bool, Infallible>(predicate(value)))
    }

    /// Filters like [`filter`](Dataset::filter), but `predicate` may fail. An error of `predicate` ends the pass with
    /// [`Error::Function`], which contains the element's index.
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let words = Dataset::from_items(["1", "2", "three"].map(String::from));
    /// let odd = words.try_filter(|word| Ok::<_, std::num::ParseIntError>(word.parse::<i64>()? % 2 == 1));
    /// let error = odd.iter().last().unwrap().unwrap_err();
    /// assert_eq!(error.to_string(), "filter failed at element 2: invalid digit found in string");
    /// ```
    #[doc(alias = "tf.data.Dataset.filter")]
    pub fn try_filter<E, F>(&self, predicate: F) -> Self
    where
        T: 'static,
        E: Into<Cause>,
        F: Fn(&T) -> Result<bool, E> + Send + Sync + 'static,
    {
        Self::of(Filter { input: self.pipeline().clone(), predicate: on_trees("filter", predicate) })
    }
}

/// A user function that computes a value from an element. Its second argument is the element's index.
pub(crate) type ElementFn<R> = Arc<dyn Fn(Tree<Leaf>, usize) -> Result<R> + Send + Sync>;

/// Wraps a user function of an element as a function of trees. Errors and panics contain the element's index.
pub(crate) fn on_trees<T: Nest + 'static, R: 'static, E: Into<Cause>>(
    operation: &'static str,
    function: impl Fn(&T) -> Result<R, E> + Send + Sync + 'static,
) -> ElementFn<R> {
    Arc::new(move |tree, index| {
        let value = T::from_tree(tree).map_err(|source| Error::Type { operation, index, source })?;
        let result = catch_panics(operation, index, || function(&value))?;
        result.map_err(|cause| Error::Function { operation, index, cause: cause.into() })
    })
}

#[derive(Clone)]
struct Filter {
    input: Pipeline,
    predicate: ElementFn<bool>,
}

impl Operation for Filter {
    one_input!();

    fn describe(&self) -> String {
        "filter".into()
    }

    fn cardinality(&self) -> Cardinality {
        match self.input.cardinality() {
            Cardinality::Finite(0) => Cardinality::Finite(0),
            Cardinality::Infinite => Cardinality::Infinite,
            _ => Cardinality::Unknown,
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn costly(&self) -> bool {
        true
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        Box::new(FilterStage {
            input: Counted::new(self.input.start(epoch)),
            predicate: self.predicate.clone(),
            empty_passes: EmptyPassCounter::default(),
            read: 0,
            kept: 0,
        })
    }
}

struct FilterStage {
    input: Counted,
    predicate: ElementFn<bool>,
    empty_passes: EmptyPassCounter,
    /// The number of rows of sources that have been read in this pass.
    read: usize,
    /// The number of these rows that have been kept.
    kept: usize,
}

impl FilterStage {
    /// Counts an element, and returns whether it is kept. If `predicate` fails, the error is recorded, and no later
    /// element is kept.
    fn keep(&mut self, tree: Result<Tree<Leaf>>) -> bool {
        let index = self.input.index;
        self.input.index += 1;
        let keep = match self.input.failed {
            None => tree.and_then(|tree| (self.predicate)(tree, index)),
            Some(_) => return false,
        };
        keep.unwrap_or_else(|error| {
            self.input.failed = Some(error);
            false
        })
    }

    /// Filters a chunk. Rows that are kept remain rows of their source, so a batch of them is still a single
    /// gather. If only a few are kept, they are copied, because stages that keep them for later would keep their
    /// complete section.
    fn apply(&mut self, chunk: Chunk) -> Result<Chunk> {
        let read = chunk.len();
        Ok(match chunk {
            Chunk::Rows(source, picks) => {
                let mut rows = picks.into_list()?;
                rows.retain(|row| self.keep(source.row(*row)));
                // A consumer that requests one row at a time may get many from one section, or one from each
                // of many sections. So the rows of the whole pass are counted.
                (self.read, self.kept) =
                    (self.read.saturating_add(read), self.kept.saturating_add(rows.len()));
                let few = self.kept.saturating_mul(2) < self.read;
                let kept = Chunk::Rows(source, Picks::List(rows));
                if few && kept.len() > 0 { kept.compact()? } else { kept }
            }
            Chunk::Values(mut values) => {
                values.retain(|value| self.keep(Ok(value.clone())));
                Chunk::Values(values)
            }
            batch @ Chunk::Batch(_) => self.apply(batch.assembled()?)?,
        })
    }
}

/// The maximum number of elements that are filtered at a time.
const MAX_AT_ONCE: usize = 4096;

impl Stage for FilterStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        loop {
            match self.input.next(max.min(MAX_AT_ONCE))?.and_then(|chunk| self.apply(chunk)) {
                Ok(chunk) if chunk.len() == 0 => {
                    if let Err(error) = self.empty_passes.nothing("filter", self.input.input.passes()) {
                        return Some(Err(error));
                    }
                }
                result => {
                    self.empty_passes.found();
                    return Some(result);
                }
            }
        }
    }

    fn passes(&self) -> usize {
        self.input.input.passes()
    }
}

#[cfg(test)]
mod tests {
    use crate::chunk::Chunk;
    use crate::testing::{ids, values};
    use crate::{Dataset, Error};

    #[test]
    fn filter_keeps_selected_elements_and_ends_if_there_are_none() {
        let odd = Dataset::range(10).filter(|x| x % 2 == 1);
        assert_eq!(values(&odd), [1, 3, 5, 7, 9]);
        assert_eq!(ids(&odd.batch(3)), [vec![1, 3, 5], vec![7, 9]]);
        assert_eq!(values(&Dataset::range(10).map(|x| x + 1).filter(|x| *x > 8)), [9, 10]);
        assert_eq!(values(&Dataset::range(10).filter(|_| false)), [0i64; 0]);
    }

    // INV-13
    #[test]
    fn an_error_comes_after_the_elements_before_it() {
        let fails = |x: &i64| if *x == 3 { Err("three") } else { Ok(x % 2 == 0) };
        for data in [Dataset::range(6), Dataset::range(6).map(|x| x)] {
            let mut pass = data.try_filter(fails).iter();
            assert_eq!(pass.by_ref().take(2).map(Result::unwrap).collect::<Vec<_>>(), [0, 2]);
            let error = pass.next().unwrap().unwrap_err();
            assert!(matches!(error, Error::Function { operation: "filter", index: 3, .. }), "{error:?}");
            assert!(pass.next().is_none());
        }
    }

    /// Checks that few remaining rows are copied. Otherwise stages that keep elements for later, such as a prefetch or
    /// a cache, would keep all rows that were read.
    #[test]
    fn few_rows_that_are_kept_leave_their_section() {
        let rare = Dataset::range(1000).batch(100).unbatch::<i64>().filter(|x| x % 50 == 0);
        let mut stage = rare.pipeline().start(0);
        let mut rows = 0;
        while let Some(chunk) = stage.next(usize::MAX) {
            let Chunk::Rows(source, picks) = chunk.unwrap() else { panic!("rows stay rows") };
            assert!(source.len() <= 2 * picks.len(), "{} of {} rows", picks.len(), source.len());
            rows += picks.len();
        }
        assert_eq!(rows, 20);
        // Also if elements are requested one by one, as by a prefetch.
        let mut stage = rare.pipeline().start(0);
        let mut sources = 0;
        while let Some(chunk) = stage.next(1) {
            let Chunk::Rows(source, _) = chunk.unwrap() else { panic!("rows stay rows") };
            sources += source.len();
        }
        assert!(sources < 150, "{sources} rows are kept for 20");
        // Rows that the user keeps in memory anyway are not copied, nor are many rows.
        for many in [
            Dataset::range(10).filter(|x| *x < 1),
            Dataset::range(100).batch(100).unbatch().filter(|x| *x > 2),
        ] {
            let mut stage = many.pipeline().start(0);
            let Chunk::Rows(source, picks) = stage.next(usize::MAX).unwrap().unwrap() else { panic!("rows") };
            assert!(source.len() > picks.len());
        }
    }

    #[test]
    fn a_panic_names_the_element() {
        let error = Dataset::range(5).filter(|x| 8 / (2 - x) > 0).iter().find_map(Result::err).unwrap();
        assert!(matches!(error, Error::Panicked { operation: "filter", index: 2, .. }), "{error:?}");
    }
}
