//! The operation that applies a function with a state to each element.

use super::map::{Map, map_next};
use crate::chunk::Chunk;
use crate::guard::catch_panics;
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding, one_input};
use crate::stage::{Counted, Stage};
use crate::{Cardinality, Cause, Dataset, ElementSpec, Error, Result, spec};
use distribute_tensor::{Leaf, Nest, Tree};
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Maps elements with a function that also takes and returns a state. Each pass begins with `initial`.
    ///
    /// A pass that resumes at a position calls the function for all elements before the position, because the state
    /// depends on them.
    ///
    /// A panic gives [`Error::Panicked`] with the element's index, and ends the pass.
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let sums = Dataset::range(1..5).scan(0, |sum, x| (sum + x, sum + x));
    /// assert_eq!(sums.iter().collect::<Result<Vec<_>, _>>()?, [1, 3, 6, 10]);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "tf.data.Dataset.scan")]
    pub fn scan<S, U, F>(&self, initial: S, function: F) -> Dataset<U>
    where
        T: 'static,
        S: Clone + Send + Sync + 'static,
        U: Nest,
        F: Fn(S, T) -> (S, U) + Send + Sync + 'static,
    {
        self.try_scan(initial, move |state, value| Ok::<_, Cause>(function(state, value)))
    }

    /// Maps elements like [`scan`](Dataset::scan), but `function` may fail. An error of `function` ends the pass with
    /// [`Error::Function`], which contains the element's index.
    #[doc(alias = "tf.data.Dataset.scan")]
    pub fn try_scan<S, U, E, F>(&self, initial: S, function: F) -> Dataset<U>
    where
        T: 'static,
        S: Clone + Send + Sync + 'static,
        U: Nest,
        E: Into<Cause>,
        F: Fn(S, T) -> Result<(S, U), E> + Send + Sync + 'static,
    {
        let begin = on_trees(initial, function);
        Dataset::of(Scan { input: self.pipeline().clone(), begin, known: spec::of_type::<U>() })
    }
}

/// A user function with its state. Its second argument is the element's index.
type ScanFn = Box<dyn FnMut(Tree<Leaf>, usize) -> Result<Tree<Leaf>> + Send>;
/// A function that returns the user function with its initial state, for one pass.
type BeginFn = Arc<dyn Fn() -> ScanFn + Send + Sync>;

/// Wraps a user function and its initial state as a function of trees. Errors and panics of the function, and panics
/// while the state is cloned, contain the element's index.
fn on_trees<S, T, U, E, F>(initial: S, function: F) -> BeginFn
where
    S: Clone + Send + Sync + 'static,
    T: Nest + 'static,
    U: Nest,
    E: Into<Cause>,
    F: Fn(S, T) -> Result<(S, U), E> + Send + Sync + 'static,
{
    const OPERATION: &str = "scan";
    let shared = Arc::new((initial, function));
    Arc::new(move || {
        let (shared, mut state) = (shared.clone(), None);
        Box::new(move |tree, index| {
            let typed = |source| Error::Type { operation: OPERATION, index, source };
            let value = T::from_tree(tree).map_err(typed)?;
            let (initial, function) = shared.as_ref();
            let before = state.take();
            let call = || function(before.unwrap_or_else(|| initial.clone()), value);
            match catch_panics(OPERATION, index, call)? {
                Ok((after, mapped)) => {
                    state = Some(after);
                    Ok(mapped.into_tree())
                }
                Err(cause) => Err(Error::Function { operation: OPERATION, index, cause: cause.into() }),
            }
        })
    })
}

#[derive(Clone)]
struct Scan {
    input: Pipeline,
    begin: BeginFn,
    /// The spec of the results, if their type determines it.
    known: Option<ElementSpec>,
}

impl Operation for Scan {
    one_input!();

    fn describe(&self) -> String {
        "scan".into()
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    fn batching(&self) -> Batching {
        Batching::Unknown
    }

    /// Returns the spec that a `map` with the function and its initial state has.
    fn spec(&self, look: Look) -> Option<ElementSpec> {
        let begin = self.begin.clone();
        let function = Arc::new(move |tree, index| begin()(tree, index));
        Map { input: self.input.clone(), function, known: self.known.clone() }.look(look)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Whole
    }

    fn costly(&self) -> bool {
        true
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        Box::new(ScanStage { input: Counted::new(self.input.start(epoch)), function: (self.begin)() })
    }
}

/// A stage with the state of a pass. Skipping calls the function, because the state depends on all elements.
struct ScanStage {
    input: Counted,
    function: ScanFn,
}

impl Stage for ScanStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        map_next(&mut self.input, max, &mut self.function).transpose()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{ids, values};
    use crate::{Cardinality, Dataset, Error};
    use distribute_tensor::HostTensor;

    /// Checks that each pass and each repetition begins with the initial state, and that each element gives one result.
    /// TensorFlow 2.21 computed the expected values.
    #[test]
    fn the_state_begins_again_with_each_repetition() {
        let data = Dataset::range(5).scan(0, |state, x| (state + x, (x, state)));
        let expected = [(0, 0), (1, 0), (2, 1), (3, 3), (4, 6)];
        let all = |data: &Dataset<(i64, i64)>| data.iter().map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(all(&data), expected);
        assert_eq!(all(&data), expected);
        assert_eq!(all(&data.repeat(2)), [expected, expected].concat());
        assert_eq!(values(&Dataset::range(5).scan(0, |s, x| (s + x, 10 * s + x))), [0, 1, 12, 33, 64]);
        // The state may have another shape after each element.
        let rows = Dataset::range(5).scan(vec![0], |state: Vec<i64>, x| {
            let len = state.len() as i64;
            ([state, vec![x]].concat(), len)
        });
        assert_eq!(values(&rows), [1, 2, 3, 4, 5]);
        assert_eq!(data.cardinality(), Cardinality::Finite(5));
        assert_eq!(
            Dataset::range(5).repeat_forever().scan(0, |s, x| (s, x)).cardinality(),
            Cardinality::Infinite
        );
    }

    #[test]
    fn batches_are_scanned_and_results_are_batched() {
        let sums = |batch: HostTensor| batch.as_slice::<i64>().unwrap().iter().sum::<i64>();
        let data = Dataset::range(7)
            .batch(3)
            .scan(0, move |state, batch| (state + sums(batch.clone()), (state, batch)));
        let spec = data.element_spec().unwrap().describe(&|spec| spec.to_string());
        assert_eq!(spec, "(int64 [], int64 [?])");
        let states: Vec<_> = data.iter().map(|pair| pair.unwrap().0).collect();
        assert_eq!(states, [0, 3, 15]);
        assert_eq!(
            ids(&Dataset::range(5).scan(0, |s, x| (s + x, s + x)).batch(3)),
            [vec![0, 1, 3], vec![6, 10]]
        );
        let known =
            Dataset::range(5).scan(0, |s: i64, x| if x < 9 { panic!("called") } else { (s, x as f32) });
        assert_eq!(known.element_spec().unwrap().describe(&|spec| spec.to_string()), "float32 []");
    }

    // INV-13
    #[test]
    fn errors_and_panics_name_the_element() {
        let data = Dataset::range(9).try_scan(0, |s, x| if x == 3 { Err("three") } else { Ok((s + x, s)) });
        let mut pass = data.iter().skip(3);
        assert_eq!(pass.next().unwrap().unwrap_err().to_string(), "scan failed at element 3: three");
        assert!(pass.next().is_none());
        let panics = Dataset::range(9).scan(0, |s, x| (s + x, 10 / (2 - x)));
        let error = panics.batch(9).iter().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Panicked { operation: "scan", index: 2, .. }), "{error:?}");
        // A function that is needed for the state is called for elements that are skipped.
        assert!(data.skip(5).iter().next().unwrap().is_err());
    }
}
