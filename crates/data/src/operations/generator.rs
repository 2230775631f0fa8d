//! The source that reads elements from a user's iterator.

use super::first_elements::{Begun, FirstElements, FirstElementsSource, GeneratorFn};
use crate::chunk::Chunk;
use crate::guard::catch_panics;
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding};
use crate::stage::Stage;
use crate::{Cardinality, Cause, Dataset, ElementSpec, Error, Result, spec};
use distribute_tensor::{Leaf, Nest, Tree};
use std::collections::VecDeque;
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Creates a dataset of the elements of an iterator. `make` returns a new iterator for each pass. The iterator may
    /// be infinite. Resuming at a position requires that each iterator yields the same elements.
    ///
    /// The spec of the elements is determined by their type or by the first element, which
    /// [`element_spec`](Dataset::element_spec) reads and keeps for the next pass. If elements differ in size,
    /// declare the spec with [`assert_element_spec`](Dataset::assert_element_spec).
    ///
    /// An `Err` results in [`Error::Generator`] with the element's index. A panic of `make` or of the iterator results
    /// in [`Error::Panicked`]. Both end the pass. A pass that begins while another thread reads the first element waits
    /// for that thread; after 60 s, the pass ends with [`Error::GeneratorBusy`].
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
        // The stage fills in the index.
        let tree = |item: Result<T, E>| match item {
            Ok(value) => Ok(value.into_tree()),
            Err(cause) => Err(Error::Generator { index: 0, cause: cause.into() }),
        };
        let make: GeneratorFn = Arc::new(move || Box::new(make().map(tree).fuse()));
        Self::of(Generator { make, first_elements: Arc::default(), known: spec::of_type::<T>() })
    }
}

struct Generator {
    make: GeneratorFn,
    first_elements: Arc<FirstElements>,
    /// The spec of the elements, if their type determines it.
    known: Option<ElementSpec>,
}

impl Generator {
    /// Returns a source that reads only the first elements.
    fn first(&self) -> Pipeline {
        let (make, first_elements) = (self.make.clone(), self.first_elements.clone());
        Arc::new(FirstElementsSource { make, first_elements })
    }
}

impl Operation for Generator {
    fn describe(&self) -> String {
        "generator".into()
    }

    fn cardinality(&self) -> Cardinality {
        Cardinality::Unknown
    }

    fn batching(&self) -> Batching {
        Batching::Unknown
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        self.known.clone().or_else(|| look.at(&self.first()))
    }

    fn lean(&self) -> Option<Pipeline> {
        Some(self.first())
    }

    fn sharding(&self) -> Sharding {
        Sharding::Source
    }

    fn costly(&self) -> bool {
        true
    }

    fn start(&self, _epoch: u64) -> Box<dyn Stage> {
        let (make, first_elements) = (self.make.clone(), self.first_elements.clone());
        Box::new(GeneratorStage { make, first_elements, iterator: None, index: 0 })
    }
}

struct GeneratorStage {
    make: GeneratorFn,
    first_elements: Arc<FirstElements>,
    iterator: Option<Begun>,
    index: usize,
}

impl GeneratorStage {
    /// Returns the next element; `None` at the end. The function that creates the iterator and the iterator
    /// itself are user code, and may panic.
    fn pull(&mut self) -> Result<Option<Tree<Leaf>>> {
        let index = self.index;
        self.index += 1;
        if self.iterator.is_none() {
            self.iterator = self.first_elements.take()?;
        }
        let (iterator, seen) = match &mut self.iterator {
            Some(iterator) => iterator,
            none => none.insert((catch_panics("from_generator", index, || (self.make)())?, VecDeque::new())),
        };
        let next = match seen.pop_front() {
            Some(item) => Some(item),
            None => catch_panics("from_generator", index, || iterator.next())?,
        };
        match next {
            None => Ok(None),
            Some(Ok(tree)) => Ok(Some(tree)),
            Some(Err(Error::Generator { cause, .. })) => Err(Error::Generator { index, cause }),
            Some(Err(other)) => Err(other),
        }
    }
}

impl Stage for GeneratorStage {
    fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
        // One at a time: an iterator may be slow, and its first element should not wait for the others.
        self.pull().transpose().map(|tree| tree.map(Chunk::one))
    }
}

#[cfg(test)]
mod tests {
    use crate::Dataset;
    use crate::testing::values;
    use distribute_tensor::HostTensor;
    use distribute_testing::watched;
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex, OnceLock};

    #[test]
    fn a_generator_starts_again_with_each_pass_and_may_be_endless() {
        let data = Dataset::from_generator(|| (0i64..).map(Ok::<_, std::convert::Infallible>));
        assert_eq!(values(&data.take(3)), [0, 1, 2]);
        assert_eq!(values(&data.take(2).repeat(2)), [0, 1, 0, 1]);
    }

    /// Checks that an element that was read in advance is put back, because a generator may read a source that can be
    /// read only once, such as a channel or a socket.
    #[test]
    fn a_peeked_element_is_put_back() {
        let (sender, receiver) = std::sync::mpsc::channel();
        (0..5).for_each(|i| sender.send(HostTensor::vector(vec![i as f32; 2])).unwrap());
        drop(sender);
        let receiver = Arc::new(Mutex::new(receiver));
        let once = Dataset::from_generator(move || {
            let receiver = receiver.clone();
            std::iter::from_fn(move || receiver.lock().unwrap().try_recv().ok()).map(Ok::<_, Infallible>)
        });
        let rows = once.map(|x| x.row(0).unwrap()).batch(2);
        assert_eq!(text(&once), "float32 [2]");
        assert_eq!(text(&rows), "float32 [?]");
        assert_eq!(text(&rows.map(|x| (x.clone(), x))), "(float32 [?], float32 [?])");
        let seen: Vec<f32> = rows.iter().flat_map(|x| x.unwrap().to_vec::<f32>().unwrap()).collect();
        assert_eq!(seen, [0., 1., 2., 3., 4.]);

        let fails = Dataset::from_generator(|| [Err::<HostTensor, _>("no paper")].into_iter());
        assert_eq!(fails.element_spec(), None);
        assert!(fails.iter().next().unwrap().is_err());
        let panics = Dataset::from_generator(|| {
            std::iter::from_fn(|| -> Option<Result<HostTensor, String>> { panic!("out of ids") })
        });
        assert_eq!(panics.element_spec(), None);
        let error = panics.iter().next().unwrap().unwrap_err();
        assert!(error.to_string().ends_with("panicked at element 0: out of ids"), "{error}");
        let ends = Dataset::<HostTensor>::from_generator(std::iter::empty::<Result<HostTensor, String>>);
        assert_eq!((ends.element_spec(), ends.iter().count()), (None, 0));
    }

    /// Creates a dataset of five elements that can be read only once.
    fn once() -> Dataset<HostTensor> {
        let (sender, receiver) = std::sync::mpsc::channel();
        (0..5).for_each(|i| sender.send(HostTensor::vector(vec![i as f32; 2])).unwrap());
        let receiver = Arc::new(Mutex::new(receiver));
        Dataset::from_generator(move || {
            let receiver = receiver.clone();
            let next = move || {
                std::thread::yield_now();
                receiver.lock().unwrap().try_recv().ok()
            };
            std::iter::from_fn(next).map(Ok::<_, Infallible>)
        })
    }

    fn firsts(data: &Dataset<HostTensor>) -> Vec<f32> {
        data.iter().map(|x| x.unwrap().to_vec::<f32>().unwrap()[0]).collect()
    }

    #[test]
    fn specs_of_several_datasets_of_one_generator_lose_no_element() {
        watched(|| {
            let twice = once();
            assert_eq!(text(&twice.zip(&twice)), "(float32 [2], float32 [2])");
            assert_eq!(firsts(&twice), [0., 1., 2., 3., 4.]);
            for _ in 0..200 {
                let data = once();
                std::thread::scope(|scope| {
                    for i in 0..3 {
                        let data = data.skip(i).map(|x| x);
                        scope.spawn(move || assert_eq!(text(&data), "float32 [2]"));
                    }
                });
                assert_eq!(firsts(&data), [0., 1., 2., 3., 4.]);
            }
        });
    }

    #[test]
    fn an_iterator_that_needs_its_own_spec_does_not_hang() {
        watched(|| {
            let all: Arc<OnceLock<Dataset<HostTensor>>> = Arc::default();
            let own = all.clone();
            let data = Dataset::from_generator(move || {
                let own = own.clone();
                let spec =
                    move |i| own.get().and_then(|data| data.map(|x| x).element_spec()).map_or(i, |_| -1.);
                [0f32, 1.].into_iter().map(move |i| Ok::<_, Infallible>(HostTensor::vector(vec![spec(i)])))
            });
            all.set(data.clone()).unwrap();
            assert_eq!(text(&data), "float32 [1]");
            assert_eq!(firsts(&data).len(), 2);
        });
    }

    fn text<T>(data: &Dataset<T>) -> String {
        data.element_spec().unwrap().describe(&ToString::to_string)
    }

    // INV-13
    #[test]
    fn errors_and_panics_of_a_generator_name_the_element_and_end_the_pass() {
        let data = Dataset::from_generator(|| [Ok(1i64), Err("no more paper"), Ok(2)].into_iter());
        let mut iter = data.iter();
        assert_eq!(iter.next().unwrap().unwrap(), 1);
        let error = iter.next().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the generator failed at element 1: no more paper");
        assert!(iter.next().is_none());

        let data = Dataset::from_generator(|| {
            (0i64..3).map(|i| if i == 2 { panic!("out of ids") } else { Ok::<_, String>(i) })
        });
        let error = data.iter().last().unwrap().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the function given to from_generator panicked at element 2: out of ids"
        );
    }
}
