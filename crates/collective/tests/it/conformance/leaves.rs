//! What replicas bring: every dtype, odd lengths, nothing, rows.

use distribute_tensor::{DType, HostTensor, IndexedSlices, Leaf};

/// Rows of the table that slices are of.
pub const TABLE: usize = 4;

/// Numbers whose sum depends on the order in which they are added.
fn numbers(replica: usize, len: usize) -> HostTensor {
    let mut state = (replica as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 40) as f64 / 8388608.0 - 1.0) * if state & 64 == 0 { 1e-3 } else { 1e3 }
    };
    HostTensor::vector((0..len).map(|_| next()).collect())
}

/// None, one or two rows of `len`, which may be the same one.
fn rows(replica: usize, len: usize, dtype: DType, dense_shape: bool) -> Leaf {
    let count = replica % 3;
    let values = numbers(replica, count * len).cast(dtype).unwrap().reshape([count, len]).unwrap();
    let indices = HostTensor::vector((0..count).map(|row| ((row * 5 + replica) % TABLE) as i64).collect());
    IndexedSlices::new(values, indices, dense_shape.then(|| vec![TABLE, len])).unwrap().into()
}

/// Every dtype that has sums; rows of them; and rows on some replicas only.
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

/// Every dtype there is, `len` elements and as many more as the id says: what is gathered may differ in size.
pub fn joined(replica: usize, len: usize) -> Vec<Leaf> {
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
