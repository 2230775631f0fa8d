//! Several elements as one, with a new axis 0.

use super::Stage;
use crate::Result;
use crate::run::{Assembly, Run};

pub(crate) struct BatchStage {
    input: Box<dyn Stage>,
    size: usize,
    drop_remainder: bool,
    number: usize,
    ended: bool,
}

impl BatchStage {
    pub(crate) fn new(input: Box<dyn Stage>, size: usize, drop_remainder: bool) -> Self {
        Self { input, size, drop_remainder, number: 0, ended: false }
    }

    fn batch(&mut self) -> Result<Option<Run>> {
        let mut assembly = Assembly::default();
        while assembly.len() < self.size && !self.ended {
            match self.input.next(self.size - assembly.len()) {
                Some(run) => assembly.push(run?),
                None => self.ended = true,
            }
        }
        if assembly.len() == 0 || (self.drop_remainder && assembly.len() < self.size) {
            return Ok(None);
        }
        let batch = assembly.finish(self.number)?;
        self.number += 1;
        Ok(Some(Run::one(batch)))
    }
}

impl Stage for BatchStage {
    fn next(&mut self, _max: usize) -> Option<Result<Run>> {
        self.batch().transpose()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::ids;
    use crate::{Dataset, Error};
    use distribute_tensor::HostTensor;

    #[test]
    fn the_last_batch_may_be_shorter_or_dropped() {
        assert_eq!(ids(&Dataset::range(7).batch(3)), [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
        assert_eq!(ids(&Dataset::range(7).batch_exact(3)), [vec![0, 1, 2], vec![3, 4, 5]]);
        assert_eq!(Dataset::range(2).batch_exact(3).iter().count(), 0);
        assert_eq!(ids(&Dataset::range(2).batch(usize::MAX)), [[0, 1]]);
        assert_eq!(ids(&Dataset::range(3).repeat(2).batch(4)), [vec![0, 1, 2, 0], vec![1, 2]]);
    }

    #[test]
    fn batches_of_batches_get_another_axis() {
        let shapes: Vec<_> =
            Dataset::range(8).batch(2).batch(3).iter().map(|b| b.unwrap().dims().to_vec()).collect();
        assert_eq!(shapes, [[3, 2], [1, 2]]);
    }

    #[test]
    fn a_whole_source_in_one_batch_is_the_source() {
        let x = HostTensor::vector(vec![1i64, 2, 3]);
        let batch = Dataset::from_slices(x.clone()).unwrap().batch(3).iter().next().unwrap().unwrap();
        assert!(std::ptr::eq(batch.as_slice::<i64>().unwrap(), x.as_slice::<i64>().unwrap()), "copied");
    }

    #[test]
    fn rows_and_values_mix_in_one_batch() {
        let rows = Dataset::from_slices(HostTensor::new(vec![1f32, 2., 3., 4.], [2, 2]).unwrap()).unwrap();
        let both = rows.map(|x| x).repeat(2).batch(3);
        let batch = both.iter().next().unwrap().unwrap();
        assert_eq!(batch.dims(), [3, 2]);
        assert_eq!(batch.as_slice::<f32>().unwrap(), [1., 2., 3., 4., 1., 2.]);
    }

    #[test]
    fn elements_that_differ_are_an_error_naming_the_batch() {
        let data = Dataset::range(4).map(|n| HostTensor::vector(vec![0f32; 1 + n as usize / 3])).batch(2);
        let mut iter = data.iter();
        assert!(iter.next().unwrap().is_ok());
        let error = iter.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Stack { batch: 1, elements: 2, .. }), "{error:?}");
        assert!(iter.next().is_none());
    }
}
