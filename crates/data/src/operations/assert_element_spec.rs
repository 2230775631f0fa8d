//! The operation that declares the spec of a dataset, and checks its elements in the pass.

use crate::chunk::Chunk;
use crate::pipeline::{Look, Operation, Pipeline, Sharding, one_input};
use crate::stage::{Counted, Stage};
use crate::{Cardinality, Dataset, ElementSpec, Error, Result, TensorSpec};
use distribute_tensor::{Leaf, Nest, Tree};
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Declares the dtypes and shapes of all elements. Use this for functions and generators whose elements
    /// differ in size, or have sizes that the first element does not show. A size of `None` means any size.
    ///
    /// Every element of a pass is checked, unless it is skipped. An element with a different structure, dtype or shape
    /// results in [`Error::Spec`].
    ///
    /// ```
    /// use distribute_data::{Dataset, TensorSpec};
    /// use distribute_tensor::{DType, HostTensor};
    ///
    /// let words = Dataset::range(5).map(|n| HostTensor::vector(vec![7i64; 1 + n as usize]));
    /// let words = words.assert_element_spec(TensorSpec { dtype: DType::I64, dims: vec![None] });
    /// assert_eq!(words.element_spec().unwrap().describe(&ToString::to_string), "int64 [?]");
    /// assert_eq!(words.iter().count(), 5);
    /// ```
    #[doc(alias = "output_signature")]
    pub fn assert_element_spec(&self, spec: impl Into<ElementSpec>) -> Self {
        Self::of(AssertElementSpec {
            input: self.pipeline().clone(),
            declared: Arc::new(Declared::new(spec.into())),
        })
    }
}

#[derive(Clone)]
struct AssertElementSpec {
    input: Pipeline,
    declared: Arc<Declared>,
}

/// A declared spec. Its leaves and structure are computed once for all elements.
struct Declared {
    spec: ElementSpec,
    leaves: Vec<TensorSpec>,
    structure: Tree<()>,
}

impl Declared {
    fn new(spec: ElementSpec) -> Self {
        let (leaves, structure) = spec.clone().flatten();
        Self { spec, leaves, structure }
    }

    /// Compares an element with the spec. Returns descriptions of the spec and the element if they differ,
    /// otherwise `None`.
    fn difference(&self, value: &Tree<Leaf>) -> Option<(String, String)> {
        let fits = |(spec, leaf): (&TensorSpec, &Leaf)| {
            let dims = leaf.dims();
            leaf.dtype().is_ok_and(|dtype| dtype == spec.dtype)
                && dims.len() == spec.dims.len()
                && spec.dims.iter().zip(dims).all(|(spec, size)| spec.is_none_or(|spec| spec == *size))
        };
        let (leaves, structure) = value.clone().flatten();
        let is_right = structure == self.structure && self.leaves.iter().zip(&leaves).all(fits);
        (!is_right).then(|| (self.spec.describe(&ToString::to_string), value.describe(&Leaf::describe)))
    }
}

impl Operation for AssertElementSpec {
    one_input!();

    fn describe(&self) -> String {
        format!("assert element spec {}", self.declared.spec.describe(&ToString::to_string))
    }

    /// Returns an empty string, because the operation changes no element.
    fn identity(&self) -> String {
        String::new()
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    fn spec(&self, _look: Look) -> Option<ElementSpec> {
        Some(self.declared.spec.clone())
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        Box::new(AssertStage {
            input: Counted::new(self.input.start(epoch)),
            declared: self.declared.clone(),
        })
    }
}

struct AssertStage {
    input: Counted,
    declared: Arc<Declared>,
}

impl AssertStage {
    /// Returns the elements before the first one that does not match the spec, and keeps the error of that one for the
    /// next call. Returns the error immediately if there are no elements before it.
    fn check(&mut self, chunk: Chunk) -> Result<Chunk> {
        let chunk = chunk.assembled()?;
        let right = match &chunk {
            // The rows of a source all have one spec.
            Chunk::Rows(source, picks) => {
                let first = picks.first().map(|row| source.row(row)).transpose()?;
                if first.is_none_or(|row| self.is_right(0, &row)) { chunk.len() } else { 0 }
            }
            Chunk::Values(values) => {
                values.iter().enumerate().take_while(|(i, value)| self.is_right(*i, value)).count()
            }
            Chunk::Batch(_) => chunk.len(),
        };
        self.input.index += right;
        match self.input.failed.take() {
            Some(error) if right == 0 => Err(error),
            failed => {
                self.input.failed = failed;
                Ok(if right == chunk.len() { chunk } else { chunk.slice(0..right) })
            }
        }
    }

    /// Returns whether an element matches the declared spec. If not, keeps an error in `input`. `offset` is the
    /// number of elements between the last returned one and this one.
    fn is_right(&mut self, offset: usize, value: &Tree<Leaf>) -> bool {
        let index = self.input.index + offset;
        let difference = self.declared.difference(value);
        self.input.failed = difference.map(|(expected, found)| Error::Spec { index, expected, found });
        self.input.failed.is_none()
    }
}

impl Stage for AssertStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        Some(self.input.next(max)?.and_then(|chunk| self.check(chunk)))
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
    use crate::{Dataset, ElementSpec, Error, TensorSpec};
    use distribute_tensor::{DType, HostTensor, Tree};

    fn vector(dtype: DType, len: Option<usize>) -> ElementSpec {
        TensorSpec { dtype, dims: vec![len] }.into()
    }

    // INV-13
    #[test]
    fn elements_are_as_declared_or_an_error_that_names_the_first_that_is_not() {
        let lists = Dataset::range(5).map(|n| HostTensor::vector(vec![0f32; n as usize]));
        let declared = lists.assert_element_spec(vector(DType::F32, None));
        assert_eq!(
            declared.batch(1).element_spec().unwrap().describe(&ToString::to_string),
            "float32 [?, ?]"
        );
        assert_eq!(declared.iter().filter(Result::is_ok).count(), 5);
        let pair = Tree::Tuple(vec![vector(DType::F32, None), vector(DType::F32, None)]);
        for (spec, right) in [(vector(DType::F32, Some(0)), 1), (vector(DType::F64, None), 0), (pair, 0)] {
            let all: Vec<_> = lists.assert_element_spec(spec).iter().collect();
            assert_eq!(all.len(), right + 1);
            let error = all.into_iter().last().unwrap().unwrap_err();
            assert!(matches!(&error, Error::Spec { index, .. } if *index == right), "{error}");
        }
        let error = lists.skip(3).assert_element_spec(vector(DType::F32, Some(3))).iter().nth(1).unwrap();
        assert_eq!(
            error.unwrap_err().to_string(),
            "assert_element_spec: element 1 must be float32 [3], but is float32[4]"
        );
    }

    #[test]
    fn rows_of_a_source_and_batches_are_checked_too() {
        let rows = Dataset::range(6).assert_element_spec(TensorSpec::scalar(DType::I64));
        assert_eq!(values(&rows), [0, 1, 2, 3, 4, 5]);
        assert_eq!(values(&rows.skip(4)), [4, 5]);
        let wrong = Dataset::range(6).assert_element_spec(TensorSpec::scalar(DType::I32));
        assert!(matches!(wrong.iter().next(), Some(Err(Error::Spec { index: 0, .. }))));
        let batches = Dataset::range(6).batch(4).assert_element_spec(vector(DType::I64, Some(4)));
        let seen: Vec<_> = batches.iter().collect();
        assert!(matches!(&seen[..], [Ok(_), Err(Error::Spec { index: 1, .. })]), "{seen:?}");
    }
}
