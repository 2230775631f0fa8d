//! Elements out of memory, and out of a user's iterator.

use super::Stage;
use crate::Result;
use crate::guard::guarded;
use crate::pipeline::GeneratorFn;
use crate::rows::Rows;
use crate::run::{Picks, Run};
use distribute_tensor::{Leaf, Tree};
use std::sync::Arc;

/// The rows of a nest, or the numbers of a range, in order.
pub(crate) struct RowsStage {
    rows: Arc<Rows>,
    next: usize,
}

impl RowsStage {
    pub(crate) fn new(rows: Arc<Rows>) -> Self {
        Self { rows, next: 0 }
    }
}

impl Stage for RowsStage {
    fn next(&mut self, max: usize) -> Option<Result<Run>> {
        let start = self.next;
        self.next = self.rows.len().min(start.saturating_add(max));
        (self.next > start).then(|| Ok(Run::Rows(self.rows.clone(), Picks::Range(start..self.next))))
    }
}

/// Items given one by one.
pub(crate) struct ItemsStage {
    items: Arc<Vec<Tree<Leaf>>>,
    next: usize,
}

impl ItemsStage {
    pub(crate) fn new(items: Arc<Vec<Tree<Leaf>>>) -> Self {
        Self { items, next: 0 }
    }
}

impl Stage for ItemsStage {
    fn next(&mut self, max: usize) -> Option<Result<Run>> {
        let start = self.next;
        self.next = self.items.len().min(start.saturating_add(max));
        let items = self.items.get(start..self.next)?;
        (!items.is_empty()).then(|| Ok(Run::Values(items.to_vec())))
    }
}

/// What a user's iterator gives.
pub(crate) struct GeneratorStage {
    make: GeneratorFn,
    iterator: Option<Box<dyn Iterator<Item = Result<Tree<Leaf>>> + Send>>,
    index: usize,
}

impl GeneratorStage {
    pub(crate) fn new(make: GeneratorFn) -> Self {
        Self { make, iterator: None, index: 0 }
    }

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
            Some(Err(crate::Error::Generator { cause, .. })) => Err(crate::Error::Generator { index, cause }),
            Some(Err(other)) => Err(other),
        }
    }
}

impl Stage for GeneratorStage {
    fn next(&mut self, _max: usize) -> Option<Result<Run>> {
        // One at a time: an iterator may be slow, and its first element should not wait for the others.
        self.pull().transpose().map(|tree| tree.map(Run::one))
    }
}

#[cfg(test)]
mod tests {
    use crate::Dataset;
    use crate::testing::{ids, values};
    use distribute_tensor::HostTensor;

    #[test]
    fn slices_of_a_nest_are_its_rows() {
        let x = HostTensor::new(vec![1f32, 2., 3., 4., 5., 6.], [3, 2]).unwrap();
        let y = HostTensor::vector(vec![7i64, 8, 9]);
        let data = Dataset::from_slices((x, y)).unwrap().typed::<(HostTensor, i64)>();
        let rows: Vec<_> = data.iter().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[1].0.dims(), [2]);
        assert_eq!(rows[1].0.as_slice::<f32>().unwrap(), [3., 4.]);
        assert_eq!(rows[1].1, 8);
    }

    #[test]
    fn slices_need_rows_and_equally_many() {
        let x = HostTensor::vector(vec![1f32, 2.]);
        let error = Dataset::from_slices((x.clone(), vec![x.clone(), HostTensor::scalar(1i64)])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "from_slices needs rows, but value[1][1] is a scalar: it has no axis 0 to cut"
        );
        let error = Dataset::from_slices((x, HostTensor::vector(vec![1i64; 3]))).unwrap_err();
        let expected = "from_slices needs equal sizes of axis 0: value[0] has 2 rows, value[1] has 3";
        assert_eq!(error.to_string(), expected);
        let error = Dataset::from_slices(()).unwrap_err();
        assert!(error.to_string().contains("holds none"), "{error}");
    }

    #[test]
    fn ranges_and_items() {
        assert_eq!(values(&Dataset::range(4)), [0, 1, 2, 3]);
        assert_eq!(values(&Dataset::range(-2..1)), [-2, -1, 0]);
        #[allow(clippy::reversed_empty_ranges)]
        let backwards = Dataset::range(3..1);
        assert_eq!(values(&backwards), [0i64; 0]);
        assert_eq!(values(&Dataset::range(i64::MAX - 1..i64::MAX)), [i64::MAX - 1]);
        assert_eq!(values(&Dataset::from_items(vec![5i64, 4])), [5, 4]);
        assert_eq!(ids(&Dataset::from_items(vec![5i64, 4, 3]).batch(2)), [vec![5, 4], vec![3]]);
    }

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
