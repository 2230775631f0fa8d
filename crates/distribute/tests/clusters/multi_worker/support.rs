//! Shared code of the comparisons with one process.

use distribute::strategy::CommunicationOptions;
use distribute::tensor::{DType, IndexedSlices, Leaf};
use distribute::{Error, Result, prelude::*};
use distribute_testing::watched;
use std::fmt::Debug;
use std::time::Duration;

/// Numbers of workers, and of replicas per worker.
pub(crate) const WORLDS: [(usize, usize); 9] =
    [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3)];

/// A number of elements of which each worker sums only a range. Smaller values are sent to every worker.
pub(crate) const LARGE: usize = 16_411;

/// Checks that `body` returns the same on every worker as in one process with the same number of replicas.
pub(crate) fn same_as_one_process<T: PartialEq + Debug + Send + 'static>(
    body: impl Fn(&Strategy) -> Result<T> + Send + Sync + 'static,
) {
    watched(move || {
        for (workers, replicas) in WORLDS {
            let one = body(&MirroredStrategy::cpus(workers * replicas).unwrap()).unwrap();
            let all = crate::multi_worker::on_threads(workers, replicas, |strategy| body(strategy));
            for (worker, got) in all.unwrap().into_iter().enumerate() {
                assert_eq!(got, one, "worker {worker} of {workers}, {replicas} replicas each");
            }
        }
    });
}

/// Checks that `body` returns the same for the replicas of all workers as in one process with the same number of
/// replicas.
pub(crate) fn replicas_as_in_one_process<T: PartialEq + Debug + Send + 'static>(
    body: impl Fn(&Strategy) -> Result<Vec<T>> + Send + Sync + 'static,
) {
    watched(move || {
        for (workers, replicas) in WORLDS {
            let one = body(&MirroredStrategy::cpus(workers * replicas).unwrap()).unwrap();
            let all = crate::multi_worker::on_threads(workers, replicas, |strategy| body(strategy));
            let all: Vec<T> = all.unwrap().into_iter().flatten().collect();
            assert_eq!(all, one, "{workers} workers, {replicas} replicas each");
        }
    });
}

/// Checks that all workers get an error with the same message from `body`, and that a sum of ones is correct
/// afterwards. Returns the message.
pub(crate) fn one_message(
    workers: usize,
    replicas: usize,
    body: impl Fn(&Strategy) -> Result<()> + Send + Sync + 'static,
) -> String {
    watched(move || {
        let options = CommunicationOptions { timeout: Some(Duration::from_secs(20)), ..Default::default() };
        let all = crate::multi_worker::on_threads_with(options, workers, replicas, |strategy| {
            let error = body(strategy).expect_err("nobody makes this call alone");
            let Error::Collective(blame) = error.root_cause() else { panic!("{error}") };
            let ones = strategy.distribute_values_from_function(|_| Ok(1f32))?;
            assert_eq!(strategy.reduce(ReduceOp::Sum, ones, None)?, (workers * replicas) as f32);
            let ones = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32))?;
            assert!(ones.iter().all(|sum| *sum == (workers * replicas) as f32));
            Ok(blame.to_string())
        });
        let mut texts = all.unwrap();
        texts.dedup();
        assert_eq!(texts.len(), 1, "{texts:#?}");
        texts.remove(0)
    })
}

/// Returns a number for element `i` of replica `id`. The sum of such numbers depends on the order of additions.
pub(crate) fn number(id: usize, i: usize) -> f64 {
    ((id * 31 + i * 7 + 1) as f64).sin() * 10f64.powi((id % 5) as i32 - 2)
}

/// Returns a tensor of `len` numbers, as [`number`] returns them. For integers they are multiplied by 1000.
pub(crate) fn vector(dtype: DType, id: usize, len: usize) -> HostTensor {
    let numbers = (0..len).map(|i| number(id, i));
    match dtype {
        DType::F32 => HostTensor::vector(numbers.map(|x| x as f32).collect::<Vec<_>>()),
        DType::F64 => HostTensor::vector(numbers.collect::<Vec<_>>()),
        DType::I32 => HostTensor::vector(numbers.map(|x| (x * 1e3) as i32).collect::<Vec<_>>()),
        other => panic!("{other} has no numbers here"),
    }
}

/// Returns the kind, dtype and shape of a leaf as text, and the bits of its elements.
pub(crate) fn bits(leaf: impl Into<Leaf>) -> (String, Vec<u64>) {
    let leaf = leaf.into();
    let bits = |tensor: &HostTensor| {
        let elements = tensor.cast(DType::F64).unwrap().to_vec::<f64>().unwrap();
        elements.into_iter().map(f64::to_bits).collect::<Vec<_>>()
    };
    match &leaf {
        Leaf::Slices(slices) => (leaf.describe(), [bits(&slices.values), bits(&slices.indices)].concat()),
        dense => (leaf.describe(), bits(&dense.to_host().unwrap())),
    }
}

/// Returns rows of a table of 5 rows of 2 elements. The number of rows depends on the id, and some are duplicates.
pub(crate) fn rows(id: usize) -> IndexedSlices {
    let count = id % 3 + 1;
    let values = (0..2 * count).map(|i| number(id, i) as f32).collect::<Vec<_>>();
    let indices: Vec<i64> = (0..count).map(|i| ((id + 2 * i) % 5) as i64).collect();
    let values = HostTensor::new(values, [count, 2]).unwrap();
    IndexedSlices::new(values, HostTensor::vector(indices), Some(vec![5, 2])).unwrap()
}
