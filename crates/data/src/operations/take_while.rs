//! The operation that takes the elements before the first one that fails a test.

use super::filter::{ElementFn, on_trees};
use crate::chunk::{Chunk, Picks};
use crate::pipeline::{Operation, Pipeline, Sharding, one_input};
use crate::stage::Stage;
use crate::{Cardinality, Cause, Dataset, Error, Result};
use distribute_tensor::{Leaf, Nest, Tree};
use std::convert::Infallible;

impl<T: Nest> Dataset<T> {
    /// Returns a dataset of the elements before the first one for which `predicate` returns `false`.
    ///
    /// A panic results in [`Error::Panicked`] with the element's index, and ends the pass.
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let data = Dataset::range(9).take_while(|x| x * x < 10);
    /// assert_eq!(data.iter().collect::<Result<Vec<_>, _>>()?, [0, 1, 2, 3]);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "tf.data.Dataset.take_while")]
    pub fn take_while<F>(&self, predicate: F) -> Self
    where
        T: 'static,
        F: Fn(&T) -> bool + Send + Sync + 'static,
    {
        self.try_take_while(move |value| Ok::<bool, Infallible>(predicate(value)))
    }

    /// Takes elements like [`take_while`](Dataset::take_while), but `predicate` may fail. An error of `predicate` ends
    /// the pass with [`Error::Function`], which contains the element's index.
    #[doc(alias = "tf.data.Dataset.take_while")]
    pub fn try_take_while<E, F>(&self, predicate: F) -> Self
    where
        T: 'static,
        E: Into<Cause>,
        F: Fn(&T) -> Result<bool, E> + Send + Sync + 'static,
    {
        Self::of(TakeWhile { input: self.pipeline().clone(), predicate: on_trees("take_while", predicate) })
    }
}

#[derive(Clone)]
struct TakeWhile {
    input: Pipeline,
    predicate: ElementFn<bool>,
}

impl Operation for TakeWhile {
    one_input!();

    fn describe(&self) -> String {
        "take_while".into()
    }

    fn cardinality(&self) -> Cardinality {
        match self.input.cardinality() {
            Cardinality::Finite(0) => Cardinality::Finite(0),
            _ => Cardinality::Unknown,
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Whole
    }

    fn costly(&self) -> bool {
        true
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        // Expensive elements are made one by one, so that none is made beyond the end.
        let at_once = if self.input.costly() { 1 } else { usize::MAX };
        let (input, predicate) = (self.input.start(epoch), self.predicate.clone());
        Box::new(TakeWhileStage { input, predicate, at_once, index: 0, ended: false, failed: None })
    }
}

struct TakeWhileStage {
    input: Box<dyn Stage>,
    predicate: ElementFn<bool>,
    at_once: usize,
    index: usize,
    ended: bool,
    /// The error to return after the elements that were returned last.
    failed: Option<Error>,
}

impl TakeWhileStage {
    fn take(&mut self, tree: Result<Tree<Leaf>>) -> bool {
        match tree.and_then(|tree| (self.predicate)(tree, self.index)) {
            Ok(true) => self.index += 1,
            Ok(false) => self.ended = true,
            Err(error) => self.failed = Some(error),
        }
        !self.ended && self.failed.is_none()
    }

    /// Returns the elements of a chunk up to the end of the pass or an error. Rows remain rows of their source.
    fn apply(&mut self, chunk: Chunk) -> Result<Chunk> {
        let taken = match &chunk {
            Chunk::Rows(source, Picks::Range(rows)) => {
                rows.clone().take_while(|row| self.take(source.row(*row))).count()
            }
            Chunk::Rows(source, Picks::List(rows)) => {
                rows.iter().take_while(|row| self.take(source.row(**row))).count()
            }
            Chunk::Values(values) => {
                values.iter().take_while(|value| self.take(Ok((*value).clone()))).count()
            }
            Chunk::Batch(_) => return self.apply(chunk.assembled()?),
        };
        Ok(chunk.slice(0..taken))
    }
}

impl Stage for TakeWhileStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        if self.failed.is_none() && !self.ended {
            match self.input.next(max.min(self.at_once))?.and_then(|chunk| self.apply(chunk)) {
                Ok(chunk) if chunk.len() == 0 => {}
                result => return Some(result),
            }
        }
        self.failed.take().map(Err)
    }

    fn passes(&self) -> usize {
        self.input.passes()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{ids, values};
    use crate::{Cardinality, Dataset, Error};

    #[test]
    fn it_ends_with_the_first_that_fails() {
        let data = Dataset::range(9).take_while(|x| x % 5 != 4);
        assert_eq!(values(&data), [0, 1, 2, 3]);
        assert_eq!(ids(&data.batch(3)), [vec![0, 1, 2], vec![3]]);
        assert_eq!(values(&data.skip(2).repeat(2)), [2, 3, 2, 3]);
        assert_eq!(values(&Dataset::range(9).shuffle(1, 1).map(|x| x).take_while(|x| *x < 2)), [0, 1]);
        assert_eq!(values(&Dataset::range(9).take_while(|_| false)), [0i64; 0]);
        assert_eq!(
            Dataset::range(9).repeat_forever().take_while(|_| false).cardinality(),
            Cardinality::Unknown
        );
    }

    // INV-13
    #[test]
    fn nothing_behind_the_end_is_made_and_a_panic_names_the_element() {
        let data = Dataset::range(9).map(|x| if x < 3 { x } else { panic!("asked for {x}") });
        assert_eq!(ids(&data.take_while(|x| *x < 2).batch(9)), [[0, 1]]);
        let panics = Dataset::range(9).take_while(|x| 4 / (2 - x) > 0);
        let mut pass = panics.iter().skip(2);
        let error = pass.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Panicked { operation: "take_while", index: 2, .. }), "{error:?}");
        let fails = Dataset::range(9).try_take_while(|x| if *x == 2 { Err("two") } else { Ok(true) });
        let error = fails.iter().nth(2).unwrap().unwrap_err();
        assert_eq!(error.to_string(), "take_while failed at element 2: two");
    }
}
