//! The datasets of the input figures. `bench/peers/inputs.py` contains the same datasets.

use super::files;
use super::formula::{noise, unit};
use distribute::data::example::{Features, FixedLen};
use distribute::data::{Csv, Dataset, TfRecord};
use distribute::tensor::Leaf;
use distribute::{HostTensor, Nest, Result};
use std::collections::BTreeMap;

/// One pass over the examples of a dataset.
pub struct Pass<T> {
    /// The component of the figure's name.
    pub name: &'static str,
    /// A description of the examples.
    pub what: &'static str,
    /// The number of examples.
    pub examples: usize,
    /// The checksum of all examples, computed by [`checksum`].
    pub checksum: i64,
    /// A function that creates the dataset.
    pub dataset: fn() -> Result<Dataset<T>>,
}

/// Columns, keyed by name.
type Columns = BTreeMap<String, HostTensor>;

/// Records in 8 files. Each contains 64 floats, an integer and a name.
pub const TFRECORD: Pass<Columns> = Pass {
    name: "tfrecord",
    what: "8 TFRecord files of 8192 examples (64 float32, an int64, a string)",
    examples: files::PARTS * files::RECORDS,
    checksum: 2_198_590_241_493,
    dataset: || {
        let features = Features::new().with("x", FixedLen::floats([files::NUMBERS]))?;
        let features = features.with("y", FixedLen::ints([]))?.with("name", FixedLen::bytes([]))?;
        Ok(TfRecord::new(files::examples()?).examples(&features)?)
    },
};

/// Lines of a CSV file. Each contains 20 floats and a label.
pub const CSV: Pass<(HostTensor, i64)> = Pass {
    name: "csv",
    what: "a CSV file of 200,000 lines (20 float32, an int64)",
    examples: files::ROWS,
    checksum: -119_805_928_876,
    dataset: || Ok(Csv::file(files::rows()?).labelled("label")?),
};

/// Rows of tensors in memory, which are shuffled again in each pass.
pub const SHUFFLE: Pass<(HostTensor, HostTensor)> = Pass {
    name: "shuffle",
    what: "60,000 rows of tensors (784 float32, an int64) in random order",
    examples: IMAGES,
    checksum: 24_663_027_526_410,
    dataset: || {
        let pixels: Vec<f32> = (0..IMAGES * PIXELS).map(|i| unit(420, i)).collect();
        let labels = (0..IMAGES).map(|i| i64::from(noise(421, i) % 10)).collect();
        let images = HostTensor::new(pixels, [IMAGES, PIXELS])?;
        Ok(Dataset::from_slices((images, HostTensor::vector::<i64>(labels)))?.shuffle(IMAGES, 42))
    },
};

/// The results of an expensive function of each number in a range.
pub const MAP: Pass<HostTensor> = Pass {
    name: "map",
    what: "a function of some 20 µs (64 float64) on 2 threads of each number of a range",
    examples: 4096,
    checksum: 886_170_595_072,
    dataset: || Ok(Dataset::range(1i64 << 40).map_parallel(2, costly)),
};

const IMAGES: usize = 60_000;
const PIXELS: usize = 784;
const ROOTS: usize = 3;

/// Computes `v[j] = (j + 1) (1 + i mod 16)` for 4096 values of j, takes the square root three times, and selects every
/// 64th element.
fn costly(i: i64) -> HostTensor {
    let factor = (1 + i % 16) as f64;
    let mut v: Vec<f64> = (1..4097).map(|j| f64::from(j) * factor).collect();
    for _ in 0..ROOTS {
        v.iter_mut().for_each(|x| *x = x.sqrt());
    }
    HostTensor::vector(v.into_iter().skip(63).step_by(64).collect::<Vec<_>>())
}

/// Returns the sum of all elements of host tensors. Integers are added directly, floats as floor(x 2^20), and strings
/// as the sum of their bytes.
pub fn checksum(nest: impl Nest) -> i64 {
    nest.into_tree().leaves().into_iter().map(of_leaf).sum()
}

fn of_leaf(leaf: &Leaf) -> i64 {
    let Leaf::Host(tensor) = leaf else { return 0 };
    let float = |x: f64| (x * f64::from(1 << 20)).floor() as i64;
    if let Some(floats) = tensor.as_slice::<f32>() {
        floats.iter().map(|x| float(f64::from(*x))).sum()
    } else if let Some(floats) = tensor.as_slice::<f64>() {
        floats.iter().map(|x| float(*x)).sum()
    } else if let Some(integers) = tensor.as_slice::<i64>() {
        integers.iter().sum()
    } else {
        let names = tensor.as_slice::<Vec<u8>>().unwrap_or_default();
        names.iter().flatten().map(|byte| i64::from(*byte)).sum()
    }
}
