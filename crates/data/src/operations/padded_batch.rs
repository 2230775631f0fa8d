//! The operation that stacks elements of different sizes into a batch.

use super::batch::{BatchStage, batch_rows, batches, remainder};
use super::pad::{self, pad};
use crate::chunk::{Assembly, Chunk};
use crate::error::at_least_one;
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding, one_input};
use crate::room::fits;
use crate::stage::Stage;
use crate::{Cardinality, Dataset, ElementSpec, Padding, Result};
use distribute_tensor::Nest;

impl<T: Nest> Dataset<T> {
    /// Stacks elements like [`batch`](Dataset::batch), but their tensors may differ in size. Each tensor is
    /// padded at the end of its axes, as `padding` describes.
    ///
    /// A tensor that is larger than the given size, has a different rank or dtype, or is not a dense tensor in host
    /// memory results in [`Error::Pad`](crate::Error::Pad) in the pass. The error contains the element and the tensor.
    /// Elements that differ in structure result in [`Error::Stack`](crate::Error::Stack), and a `size` of 0 in
    /// [`Error::Parameter`](crate::Error::Parameter).
    #[doc(alias = "tf.data.Dataset.padded_batch")]
    pub fn padded_batch(&self, size: usize, padding: Padding) -> Dataset<T::Batch> {
        Dataset::of(PaddedBatch { input: self.pipeline().clone(), size, padding, drop_remainder: false })
    }

    /// Stacks elements like [`padded_batch`](Dataset::padded_batch), but drops the last batch if it is not full.
    #[doc(alias = "drop_remainder")]
    pub fn padded_batch_exact(&self, size: usize, padding: Padding) -> Dataset<T::Batch> {
        Dataset::of(PaddedBatch { input: self.pipeline().clone(), size, padding, drop_remainder: true })
    }
}

#[derive(Clone)]
struct PaddedBatch {
    input: Pipeline,
    size: usize,
    padding: Padding,
    drop_remainder: bool,
}

impl Operation for PaddedBatch {
    one_input!();

    fn describe(&self) -> String {
        if self.drop_remainder {
            format!("padded_batch {}, remainder dropped", self.size)
        } else {
            format!("padded_batch {}, last one may be shorter", self.size)
        }
    }

    fn identity(&self) -> String {
        self.describe() + &pad::identity(&self.padding)
    }

    fn cardinality(&self) -> Cardinality {
        batches(self.input.cardinality(), self.size, self.drop_remainder)
    }

    fn batching(&self) -> Batching {
        Batching::Batches(self.size)
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        let rows = batch_rows(self.input.cardinality(), self.size, self.drop_remainder);
        let mut sizes = self.padding.sizes.iter().flat_map(|sizes| sizes.iter());
        Some(self.input.spec(look)?.map(&mut |mut spec| {
            for (dim, size) in spec.dims.iter_mut().zip(sizes.next().into_iter().flatten()) {
                *dim = size.or(*dim);
            }
            spec.batched(rows)
        }))
    }

    fn check(&self) -> Result<()> {
        at_least_one("padded_batch", "the size", self.size)?;
        fits("padded_batch", "the size", self.size, self.input.cardinality())
    }

    fn sharding(&self) -> Sharding {
        remainder(self.drop_remainder)
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        let padding = self.padding.clone();
        let join = Box::new(move |elements: Assembly, first| {
            pad("padded_batch", &padding, elements, |element| first + element).map(Chunk::one)
        });
        Box::new(BatchStage::new(self.input.start(epoch), self.size, self.drop_remainder, join))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::testing::ids;
    use distribute_tensor::{DType, HostTensor, IndexedSlices};
    use proptest::prelude::*;

    /// Returns a matrix of shape `[rows, columns]`, numbered from 1.
    fn matrix(rows: usize, columns: usize) -> HostTensor {
        HostTensor::new((1..=(rows * columns) as i64).collect::<Vec<_>>(), [rows, columns]).unwrap()
    }

    fn fails<T: Nest>(data: &Dataset<T>) -> Error {
        data.iter().find_map(Result::err).unwrap()
    }

    proptest! {
        #[test]
        fn each_element_stands_in_the_corner_of_its_place(
            dims in proptest::collection::vec((0usize..4, 0usize..4), 1..7), batch in 1usize..4, wide: bool,
        ) {
            let elements: Vec<HostTensor> = dims.iter().map(|(r, c)| matrix(*r, *c)).collect();
            let padding = Padding::new().values(-7i64);
            let padding = if wide { padding.sizes([vec![None, Some(5)]]) } else { padding };
            let data = Dataset::from_items(elements.clone()).padded_batch(batch, padding);
            let mut left = elements.iter();
            for padded in data.iter() {
                let padded = padded.unwrap();
                let [rows, height, width] = padded.dims() else { panic!("{:?}", padded.dims()) };
                let (mut tallest, mut widest) = (0, if wide { 5 } else { 0 });
                for row in 0..*rows {
                    let element = left.next().unwrap();
                    tallest = tallest.max(element.dims()[0]);
                    widest = widest.max(element.dims()[1]);
                    for (r, c) in (0..*height).flat_map(|r| (0..*width).map(move |c| (r, c))) {
                        let found = padded.as_slice::<i64>().unwrap()[(row * height + r) * width + c];
                        let inside = r < element.dims()[0] && c < element.dims()[1];
                        let expected = if inside { (r * element.dims()[1] + c) as i64 + 1 } else { -7 };
                        prop_assert_eq!(found, expected);
                    }
                }
                prop_assert_eq!((*height, *width), (tallest, widest));
            }
            prop_assert!(left.next().is_none());
            prop_assert_eq!(data.cardinality().finite(), Some(dims.len().div_ceil(batch)));
        }
    }

    #[test]
    fn every_dtype_has_a_zero_and_elements_of_one_size_are_only_stacked() {
        for dtype in DType::ALL {
            let sizes = [1, 2].map(|n| HostTensor::zeros(dtype, [n]).unwrap());
            let batch =
                Dataset::from_items(sizes).padded_batch(2, Padding::new()).iter().next().unwrap().unwrap();
            assert_eq!(batch, HostTensor::zeros(dtype, [2, 2]).unwrap());
        }
        let range = Dataset::range(7);
        assert_eq!(ids(&range.padded_batch(3, Padding::new())), ids(&range.batch(3)));
        assert_eq!(ids(&range.padded_batch_exact(3, Padding::new())), ids(&range.batch_exact(3)));
        assert_eq!(ids(&range.padded_batch(3, Padding::new()).skip(1)), ids(&range.batch(3).skip(1)));
        assert_eq!(range.padded_batch(3, Padding::new()).batching(), Batching::Batches(3));
        let lines = Dataset::from_slices(HostTensor::zeros(DType::F32, [4, 3]).unwrap()).unwrap();
        let spec = lines.padded_batch_exact(2, Padding::new().sizes([vec![Some(5)]])).element_spec().unwrap();
        assert_eq!(spec.describe(&|spec| spec.to_string()), "float32 [2, 5]");
    }

    #[test]
    fn a_padding_error_names_the_element_and_the_tensor() {
        let pairs = Dataset::range(6).map(|n| (n, HostTensor::vector(vec![0f32; n as usize])));
        let error = fails(&pairs.padded_batch(2, Padding::new().sizes([vec![], vec![Some(4)]])));
        let expected = "padded_batch: value[1] of element 5 cannot be padded: axis 0 has size 5, more than the requested 4";
        assert_eq!(error.to_string(), expected);
        let error = fails(&pairs.padded_batch(2, Padding::new().sizes([vec![]])));
        assert!(
            error.to_string().contains("sizes were given for 1 tensors, but an element has 2"),
            "{error}"
        );
        let error = fails(&pairs.padded_batch(2, Padding::new().values((0i64, 0i64))));
        assert!(matches!(&error, Error::Pad { path, .. } if path == "value[1]"), "{error}");

        let ranks = Dataset::from_items([matrix(1, 2), HostTensor::scalar(1i64)]);
        let error = fails(&ranks.padded_batch(2, Padding::new()));
        assert!(matches!(error, Error::Pad { index: 1, .. }), "{error}");
        let dtypes = Dataset::from_items([HostTensor::scalar(1f32), HostTensor::scalar(1i64)]);
        let error = fails(&dtypes.padded_batch(2, Padding::new())).to_string();
        assert!(error.ends_with("its dtype is int64, that of the batch's first is float32"), "{error}");
        let huge = Padding::new().sizes([vec![Some(usize::MAX / 2), None]]);
        assert!(
            fails(&Dataset::from_items([matrix(1, 2)]).padded_batch(1, huge))
                .to_string()
                .contains("too large")
        );
        assert!(matches!(fails(&pairs.padded_batch(0, Padding::new())), Error::Parameter { .. }));
    }

    #[test]
    fn indexed_slices_are_refused() {
        let slices = IndexedSlices {
            values: matrix(1, 2),
            indices: HostTensor::vector(vec![0i64]),
            dense_shape: Some(vec![3, 2]),
        };
        let error = fails(&Dataset::from_items([slices]).padded_batch(1, Padding::new())).to_string();
        assert!(error.ends_with("it is indexed slices, not a dense tensor in host memory"), "{error}");
    }
}
