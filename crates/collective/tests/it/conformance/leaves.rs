//! The contributions of replicas: every dtype, odd lengths, empty tensors, rows.

use distribute_tensor::{DType, HostTensor, IndexedSlices, Leaf};

/// The number of rows of the table that slices belong to.
pub const TABLE: usize = 4;

/// Returns numbers whose sum depends on the order in which they are added.
fn numbers(replica: usize, len: usize) -> HostTensor {
    let mut state = (replica as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 40) as f64 / 8388608.0 - 1.0) * if state & 64 == 0 { 1e-3 } else { 1e3 }
    };
    HostTensor::vector((0..len).map(|_| next()).collect())
}

/// Returns no row, one row or two rows of length `len`. The two rows may have the same index.
fn rows(replica: usize, len: usize, dtype: DType, dense_shape: bool) -> Leaf {
    let count = replica % 3;
    let values = numbers(replica, count * len).cast(dtype).unwrap().reshape([count, len]).unwrap();
    let indices = HostTensor::vector((0..count).map(|row| ((row * 5 + replica) % TABLE) as i64).collect());
    IndexedSlices::new(values, indices, dense_shape.then(|| vec![TABLE, len])).unwrap().into()
}

/// Returns leaves of every dtype that has sums, rows of these dtypes, and rows on only some replicas.
pub fn summed(replica: usize, len: usize) -> Vec<Leaf> {
    let dtypes = || DType::ALL.into_iter().filter(|dtype| dtype.mean().is_some());
    let mut all: Vec<Leaf> =
        dtypes().map(|dtype| numbers(replica, len).cast(dtype).unwrap().into()).collect();
    all.extend(dtypes().map(|dtype| rows(replica, len, dtype, true)));
    all.push(rows(replica, len, DType::F32, false));
    all.push(match replica % 2 {
        0 => rows(replica, len, DType::F32, true),
        _ => numbers(replica, TABLE * len).cast(DType::F32).unwrap().reshape([TABLE, len]).unwrap().into(),
    });
    all
}

/// Returns leaves of every dtype. The length is `len`, `len + 1` or `len + 2`, by the replica's id, because gathered
/// leaves may differ in size.
pub fn of_every_dtype(replica: usize, len: usize) -> Vec<Leaf> {
    let len = len + replica % 3;
    let of = |dtype| match dtype {
        DType::Bool => HostTensor::vector((0..len).map(|i| (i + replica).is_multiple_of(2)).collect()),
        DType::String => {
            HostTensor::vector((0..len).map(|i| format!("{replica}.{i}").into_bytes()).collect())
        }
        dtype => numbers(replica, len).cast(dtype).unwrap(),
    };
    DType::ALL.into_iter().map(|dtype| of(dtype).into()).collect()
}
