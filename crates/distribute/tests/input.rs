//! Datasets of candle tensors, cut over replicas.

#![allow(clippy::unwrap_used)]

use candle_core::{Device, Tensor};
use distribute::data::{Dataset, SplitRule, split};

#[test]
fn candle_tensors_are_sliced_shuffled_batched_and_split() {
    let x = Tensor::arange(0f32, 10., &Device::Cpu).unwrap().reshape((5, 2)).unwrap();
    let y = Tensor::arange(0u32, 5, &Device::Cpu).unwrap();
    let data = Dataset::from_slices((x, y)).unwrap().shuffle(5, 42).batch(3);
    let mut seen = Vec::new();
    for batch in &data {
        for (x, y) in split(batch.unwrap(), 2, SplitRule::Even).unwrap() {
            assert_eq!(x.dim(0).unwrap(), y.dim(0).unwrap());
            let (x, y) = (x.to_vec2::<f32>().unwrap(), y.to_vec1::<u32>().unwrap());
            assert!(x.iter().zip(&y).all(|(x, y)| x[0] == 2. * *y as f32));
            seen.extend(y);
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4]);
}
