//! Elements of a user's iterator.

use crate::chunk::Chunk;
use crate::guard::guarded;
use crate::pipeline::{Batching, Operation, Sharding};
use crate::stage::Stage;
use crate::{Cardinality, Cause, Dataset, Error, Result};
use distribute_tensor::{Leaf, Nest, Tree};
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// The elements of an iterator that `make` makes for each pass, which may be endless. Restoring a position requires that
    /// `make` yields the same elements again.
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
        Self::of(Generator(Arc::new(move || Box::new(make().map(tree)))))
    }
}

/// A user's iterator over one pass.
type Elements = Box<dyn Iterator<Item = Result<Tree<Leaf>>> + Send>;
/// Starts one pass.
type GeneratorFn = Arc<dyn Fn() -> Elements + Send + Sync>;

struct Generator(GeneratorFn);

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

    fn sharding(&self) -> Sharding {
        Sharding::Source
    }

    fn costly(&self) -> bool {
        true
    }

    fn start(&self, _epoch: u64) -> Box<dyn Stage> {
        Box::new(GeneratorStage { make: self.0.clone(), iterator: None, index: 0 })
    }
}

struct GeneratorStage {
    make: GeneratorFn,
    iterator: Option<Elements>,
    index: usize,
}

impl GeneratorStage {
    /// Both the function that makes the iterator and the iterator itself are the user's, and may panic.
    fn pull(&mut self) -> Result<Option<Tree<Leaf>>> {
        let index = self.index;
        self.index += 1;
        let iterator = match &mut self.iterator {
            Some(iterator) => iterator,
            none => none.insert(guarded("from_generator", index, || (self.make)())?),
        };
        match guarded("from_generator", index, || iterator.next())? {
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

    #[test]
    fn a_generator_starts_again_with_each_pass_and_may_be_endless() {
        let data = Dataset::from_generator(|| (0i64..).map(Ok::<_, std::convert::Infallible>));
        assert_eq!(values(&data.take(3)), [0, 1, 2]);
        assert_eq!(values(&data.take(2).repeat(2)), [0, 1, 0, 1]);
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
