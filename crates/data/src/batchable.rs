//! What a batch of elements of some type is.

use distribute_tensor::{HostTensor, Leaf, Nest, Tree};
use std::collections::{BTreeMap, HashMap};

/// Nests of which batches can be made, and the type of such a batch.
///
/// A batch of tensors of shape `[…]` is a tensor of shape `[n, …]`, so tensors keep their type; a batch of numbers
/// is a tensor of shape `[n]`, which is another type than a number. Containers are batched member by member:
/// `(HostTensor, i64)` becomes `(HostTensor, HostTensor)`.
///
/// A struct of tensors keeps its type, too:
///
/// ```
/// use distribute_data::{Batchable, Dataset};
/// use distribute_tensor::{HostTensor, Leaf, Nest, Result, Tree};
///
/// struct Point { x: HostTensor }
/// impl Nest for Point { // `#[derive(Nest)]` writes this
///     fn into_tree(self) -> Tree<Leaf> { self.x.into_tree() }
///     fn from_tree(tree: Tree<Leaf>) -> Result<Self> { Ok(Point { x: HostTensor::from_tree(tree)? }) }
/// }
/// impl Batchable for Point { type Batch = Self; }
///
/// let points = Dataset::from_slices(Point { x: HostTensor::vector(vec![1f32, 2., 3.]) })?;
/// let batch: Point = points.batch(2).iter().next().unwrap()?;
/// assert_eq!(batch.x.dims(), [2]);
/// # Ok::<(), distribute_data::Error>(())
/// ```
pub trait Batchable: Nest {
    /// A batch of such elements.
    type Batch: Nest;
}

macro_rules! same {
    ($($t:ty),*) => {$( impl Batchable for $t { type Batch = $t; } )*};
}
same!(HostTensor, Leaf, Tree<Leaf>);

#[cfg(feature = "candle")]
same!(candle_core::Tensor);

macro_rules! scalars {
    ($($t:ty),*) => {$( impl Batchable for $t { type Batch = HostTensor; } )*};
}
scalars!(f32, f64, i8, u8, i16, u16, i32, u32, i64, u64, usize, bool, String);

impl<T: Batchable> Batchable for Vec<T> {
    type Batch = Vec<T::Batch>;
}
impl<T: Batchable, const N: usize> Batchable for [T; N] {
    type Batch = [T::Batch; N];
}
impl<T: Batchable> Batchable for Option<T> {
    type Batch = Option<T::Batch>;
}
impl<T: Batchable> Batchable for BTreeMap<String, T> {
    type Batch = BTreeMap<String, T::Batch>;
}
impl<T: Batchable> Batchable for HashMap<String, T> {
    type Batch = HashMap<String, T::Batch>;
}

macro_rules! tuples {
    ($(($($t:ident),*))*) => {$(
        impl<$($t: Batchable),*> Batchable for ($($t,)*) {
            type Batch = ($($t::Batch,)*);
        }
    )*};
}
tuples! { () (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F) (A, B, C, D, E, F, G) (A, B, C, D, E, F, G, H) }

#[cfg(test)]
mod tests {
    use crate::{Dataset, Iter};
    use distribute_tensor::HostTensor;

    #[test]
    fn containers_are_batched_member_by_member() {
        let data = Dataset::range(4).map(|i| (vec![i, -i], Some([i as f32]), "ab".repeat(i as usize)));
        let (list, some, text) = data.batch(4).iter().next().unwrap().unwrap();
        assert_eq!(list[1].as_slice::<i64>().unwrap(), [0, -1, -2, -3]);
        assert_eq!(some.unwrap()[0].dims(), [4]);
        assert_eq!(text.as_slice::<Vec<u8>>().unwrap()[1], b"ab");
    }

    #[test]
    fn datasets_and_passes_can_move_to_other_threads() {
        fn check<T: Send>() {}
        fn check_shared<T: Send + Sync>() {}
        check_shared::<Dataset<HostTensor>>();
        check::<Iter<HostTensor>>();
        check_shared::<crate::Error>();
    }

    #[cfg(feature = "candle")]
    #[test]
    fn candle_tensors_are_sliced_shuffled_and_batched() {
        use candle_core::{Device, Tensor};
        let x = Tensor::arange(0f32, 10., &Device::Cpu).unwrap().reshape((5, 2)).unwrap();
        let y = Tensor::arange(0u32, 5, &Device::Cpu).unwrap();
        let data = Dataset::from_slices((x, y)).unwrap().shuffle(5, 42).batch(3);
        let mut seen = Vec::new();
        for batch in &data {
            for (x, y) in crate::split(batch.unwrap(), 2, crate::SplitRule::Even).unwrap() {
                assert_eq!(x.dim(0).unwrap(), y.dim(0).unwrap());
                let (x, y) = (x.to_vec2::<f32>().unwrap(), y.to_vec1::<u32>().unwrap());
                assert!(x.iter().zip(&y).all(|(x, y)| x[0] == 2. * *y as f32));
                seen.extend(y);
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4]);
    }
}
