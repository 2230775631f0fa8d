//! The operation that applies a function to every element.

use crate::chunk::Chunk;
use crate::guard::catch_panics;
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding, one_input};
use crate::stage::{Counted, Stage};
use crate::{Cardinality, Cause, Dataset, ElementSpec, Error, Result, TensorSpec, pipeline, spec};
use distribute_tensor::{Leaf, Nest, Tree};
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Applies `function` to every element. If it can fail, use [`try_map`](Dataset::try_map).
    ///
    /// A panic results in [`Error::Panicked`] with the element's index, and ends the pass. The function is not called
    /// for elements that [`skip`](Dataset::skip) skips.
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
    /// An `Err` results in [`Error::Function`], and a panic results in [`Error::Panicked`]. Both contain the element's
    /// index, and end the pass.
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
        Dataset::of(Map::new::<U>(self.pipeline().clone(), on_trees("map", function)))
    }
}

/// A user function that maps an element to another. Its second argument is the element's index.
pub(crate) type MapFn = Arc<dyn Fn(Tree<Leaf>, usize) -> Result<Tree<Leaf>> + Send + Sync>;

/// Wraps a user function as a function from tree to tree. Its errors and panics contain the element's index.
pub(crate) fn on_trees<T, U, E, F>(operation: &'static str, function: F) -> MapFn
where
    T: Nest + 'static,
    U: Nest,
    E: Into<Cause>,
    F: Fn(T) -> Result<U, E> + Send + Sync + 'static,
{
    Arc::new(move |tree, index| {
        let value = T::from_tree(tree).map_err(|source| Error::Type { operation, index, source })?;
        match catch_panics(operation, index, || function(value))? {
            Ok(mapped) => Ok(mapped.into_tree()),
            Err(cause) => Err(Error::Function { operation, index, cause: cause.into() }),
        }
    })
}

#[derive(Clone)]
pub(super) struct Map {
    pub(super) input: Pipeline,
    pub(super) function: MapFn,
    /// The spec of the results, if their type determines it.
    pub(super) known: Option<ElementSpec>,
}

impl Map {
    pub(super) fn new<U: Nest>(input: Pipeline, function: MapFn) -> Self {
        Self { input, function, known: spec::of_type::<U>() }
    }

    /// Returns the spec that the type determines. Otherwise, if computing an element is allowed, returns the spec of
    /// the first result, in which the number of rows is unknown if it varies from batch to batch.
    pub(super) fn look(&self, look: Look) -> Option<ElementSpec> {
        if self.known.is_some() || look == Look::Never {
            return self.known.clone();
        }
        let first = pipeline::first(&self.input)?;
        // The rows of a batch differ from batch to batch unless the input has a fixed number.
        let varies = |spec: &ElementSpec| spec.leaves().iter().all(|leaf| leaf.dims.first() == Some(&None));
        let rows = first.rows().ok();
        let mapped = spec::of(&(self.function)(first, 0).ok()?)?;
        let as_many = |leaf: &&TensorSpec| rows.is_some() && leaf.dims.first() == Some(&rows);
        let rows = rows.filter(|_| {
            mapped.leaves().iter().any(as_many) && self.input.spec(look).is_some_and(|spec| varies(&spec))
        });
        Some(mapped.map(&mut |leaf| match (leaf.dims.first(), rows) {
            (Some(size), Some(_)) if *size == rows => leaf.with_rows(None),
            _ => leaf,
        }))
    }
}

impl Operation for Map {
    one_input!();

    fn describe(&self) -> String {
        "map".into()
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    fn batching(&self) -> Batching {
        Batching::Unknown
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        self.look(look)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn costly(&self) -> bool {
        true
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        let input = Counted::new(self.input.start(epoch));
        Box::new(MapStage { input, function: self.function.clone() })
    }
}

struct MapStage {
    input: Counted,
    function: MapFn,
}

/// The maximum number of elements that are mapped at a time.
const MAX_AT_ONCE: usize = 4096;

/// Maps the next elements. If one fails, returns the results before it, and keeps the error for the next call. Returns
/// the error immediately if there are no results before it.
pub(super) fn map_next(
    input: &mut Counted,
    max: usize,
    mut function: impl FnMut(Tree<Leaf>, usize) -> Result<Tree<Leaf>>,
) -> Result<Option<Chunk>> {
    let Some(chunk) = input.next(max.min(MAX_AT_ONCE)).transpose()? else { return Ok(None) };
    let mut mapped = Vec::with_capacity(chunk.len());
    for tree in chunk.into_values()? {
        match function(tree, input.index) {
            Ok(value) => mapped.push(value),
            Err(error) if mapped.is_empty() => return Err(error),
            Err(error) => {
                input.failed = Some(error);
                break;
            }
        }
        input.index += 1;
    }
    Ok(Some(Chunk::Values(mapped)))
}

impl Stage for MapStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        map_next(&mut self.input, max, |tree, index| (self.function)(tree, index)).transpose()
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        self.input.skip(count)
    }

    fn passes(&self) -> usize {
        self.input.input.passes()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::values;
    use crate::{Dataset, Error};
    use distribute_tensor::HostTensor;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn map_applies_the_function_in_order() {
        assert_eq!(values(&Dataset::range(4).map(|x| x * x)), [0, 1, 4, 9]);
        let pairs = Dataset::range(2).map(|x| (x, x as f32 / 2.));
        assert_eq!(pairs.iter().map(Result::unwrap).collect::<Vec<_>>(), [(0, 0.), (1, 0.5)]);
        let batch = pairs.batch(2).iter().next().unwrap().unwrap();
        assert_eq!(batch.1.as_slice::<f32>().unwrap(), [0., 0.5]);
    }

    // INV-13
    #[test]
    fn an_error_or_panic_names_the_element_and_ends_the_pass() {
        let data = Dataset::range(10).skip(1).try_map(|x| if x == 3 { Err("three") } else { Ok(x) });
        let mut iter = data.iter().skip(2);
        let error = iter.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Function { operation: "map", index: 2, .. }), "{error:?}");
        assert_eq!(error.to_string(), "map failed at element 2: three");
        assert!(iter.next().is_none());

        let data = Dataset::range(10).map(|x| 10 / (3 - x)).batch(2);
        let error = data.iter().find_map(Result::err).unwrap();
        assert!(matches!(error, Error::Panicked { operation: "map", index: 3, .. }), "{error:?}");
        assert_eq!(data.iter().filter(Result::is_ok).count(), 1);

        // The elements before it come first, also if all were requested at once.
        let mut stage = Dataset::range(9).map(|x| 10 / (3 - x)).pipeline().start(0);
        assert_eq!(stage.next(9).unwrap().unwrap().len(), 3);
        assert!(stage.next(9).unwrap().is_err());
    }

    fn text<T>(data: &Dataset<T>) -> String {
        data.element_spec().unwrap().describe(&ToString::to_string)
    }

    #[test]
    fn the_spec_of_mapped_elements_is_from_the_type_or_the_first_element() {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = calls.clone();
        let scalars = Dataset::range(9).map(move |x| {
            count.fetch_add(1, Ordering::Relaxed);
            (x, x as f32)
        });
        assert_eq!(text(&scalars), "(int64 [], float32 [])");
        assert_eq!(text(&scalars.batch_exact(4)), "(int64 [4], float32 [4])");
        assert_eq!(calls.load(Ordering::Relaxed), 0, "the type tells");

        let images = scalars.map(|(x, _)| HostTensor::new(vec![x as u8; 6], [2, 3]).unwrap());
        assert_eq!(text(&images), "uint8 [2, 3]");
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert_eq!(text(&images.clone()), "uint8 [2, 3]");
        assert_eq!(calls.load(Ordering::Relaxed), 1, "it is looked at once");
        let parallel =
            images.map_parallel(3, |x| (x.clone(), x)).shuffle(1000, 1).cache().prefetch(2).repeat_forever();
        assert_eq!(text(&parallel), "(uint8 [2, 3], uint8 [2, 3])");
        assert!(calls.load(Ordering::Relaxed) <= 3, "the first element alone is made");
        // The number of rows of a batch is that of the input.
        let means = |x: HostTensor| HostTensor::vector(vec![0f32; x.dims()[0]]);
        assert_eq!(text(&images.batch(4).map(means)), "float32 [?]");
        assert_eq!(text(&images.batch_exact(4).map(means)), "float32 [4]");
        assert_eq!(text(&images.batch(4).map(|x| x.row(0).unwrap())), "uint8 [2, 3]");
        let inner =
            Dataset::range(3).flat_map(|n| Dataset::range(n + 1).map(|x| HostTensor::vector(vec![x])));
        assert_eq!(text(&inner), "int64 [1]");
        // No pass was counted, and elements that cannot be made have no spec.
        assert_eq!(parallel.iter().next().unwrap().unwrap().0.dims(), [2, 3]);
        assert_eq!(Dataset::range(3).try_map(|_| Err::<HostTensor, _>("no")).element_spec(), None);
        assert_eq!(Dataset::range(0).map(|x| HostTensor::vector(vec![x])).element_spec(), None);
        assert_eq!(images.batch(0).element_spec(), None);
    }

    #[test]
    fn another_type_than_the_dataset_says_is_an_error() {
        let error = Dataset::range(2).typed::<f32>().map(|x| x).iter().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Type { operation: "map", index: 0, .. }), "{error:?}");
        let error = Dataset::range(2).typed::<(HostTensor, i64)>().iter().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Type { operation: "iterate", index: 0, .. }), "{error:?}");
    }
}
