//! Operations on leaves of every kind. Names contain the numbers of the rules.

use distribute_tensor::{DType, Element, Error, HostTensor, IndexedSlices, Leaf, ReduceOp, with_buffer};
use half::{bf16, f16};
use proptest::prelude::*;

fn vector<T: Element>(values: Vec<T>) -> Leaf {
    Leaf::Host(HostTensor::vector(values))
}

fn host(leaf: Leaf) -> HostTensor {
    leaf.to_host().unwrap()
}

/// Returns a tensor of the given dtype and shape. Its elements vary, and depend on `from`.
fn of(dtype: DType, shape: &[usize], from: usize) -> HostTensor {
    let len: usize = shape.iter().product();
    if dtype == DType::String {
        return HostTensor::new((from..from + len).map(|i| vec![b'a'; i % 5]).collect::<Vec<_>>(), shape)
            .unwrap();
    }
    let numbers = (from..from + len).map(|i| (i % 100) as u8).collect::<Vec<_>>();
    HostTensor::new(numbers, shape).unwrap().cast(dtype).unwrap()
}

fn slices(values: Vec<f32>, indices: Vec<i64>, rows: Option<usize>) -> IndexedSlices {
    let width = values.len() / indices.len().max(1);
    let values = HostTensor::new(values, [indices.len(), width]).unwrap();
    IndexedSlices::new(values, HostTensor::vector(indices), rows.map(|r| vec![r, width])).unwrap()
}

#[test]
fn red_3_reduce_is_element_wise() {
    let leaves = [vector(vec![0i32, 1, 2, 3]), vector(vec![4, 5, 6, 7])];
    assert_eq!(host(Leaf::reduce(ReduceOp::Sum, &leaves).unwrap()), HostTensor::vector(vec![4i32, 6, 8, 10]));
}

#[test]
fn op_3_bool_and_string_have_no_sum() {
    for dtype in [DType::Bool, DType::String] {
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            let leaf = Leaf::Host(HostTensor::zeros(dtype, [2]).unwrap());
            for leaves in [vec![leaf.clone(), leaf.clone()], vec![leaf.clone()]] {
                match Leaf::reduce(op, &leaves) {
                    Err(Error::UnsupportedDType { dtype: found, .. }) => assert_eq!(found, dtype),
                    other => panic!("{other:?}"),
                }
                assert!(Leaf::summands(op, &leaves).is_err());
            }
            assert!(matches!(leaf.sum_axes(&[0]), Err(Error::UnsupportedDType { .. })));
            assert!(matches!(leaf.divide(2.0), Err(Error::UnsupportedDType { .. })));
        }
    }
}

#[test]
fn op_4_a_mean_is_a_true_division_after_the_sum() {
    for dtype in DType::ALL.into_iter().filter(|d| d.mean().is_some()) {
        let leaves = [of(dtype, &[2], 1), of(dtype, &[2], 2)].map(Leaf::Host);
        let mean = host(Leaf::reduce(ReduceOp::Mean, &leaves).unwrap());
        assert_eq!(Some(mean.dtype()), dtype.mean());
        assert_eq!(mean, HostTensor::vector(vec![1.5f64, 2.5]).cast(mean.dtype()).unwrap(), "{dtype}");
        // One value is reduced as several are.
        let one = host(Leaf::reduce(ReduceOp::Mean, &leaves[..1]).unwrap());
        assert_eq!(one, HostTensor::vector(vec![1f64, 2.]).cast(mean.dtype()).unwrap(), "{dtype}");
    }
}

// The result is a float: nothing of it says that the sum of integers has wrapped.
#[test]
fn op_4_a_mean_of_integers_does_not_wrap() {
    fn mean<T: Element>(elements: Vec<T>, replicas: usize) -> f64 {
        let leaf = vector(elements);
        let mean = host(Leaf::reduce(ReduceOp::Mean, &vec![leaf; replicas]).unwrap());
        mean.cast(DType::F64).unwrap().item().unwrap()
    }
    for replicas in 1..=5 {
        assert_eq!(mean(vec![200u8], replicas), 200.);
        assert_eq!(mean(vec![i8::MIN], replicas), -128.);
        assert_eq!(mean(vec![u16::MAX], replicas), 65535.);
        assert_eq!(mean(vec![i16::MIN], replicas), -32768.);
        assert_eq!(mean(vec![i32::MAX], replicas), 2147483647.);
        assert_eq!(mean(vec![u32::MAX], replicas), 4294967295.);
        assert_eq!(mean(vec![i64::MAX], replicas), i64::MAX as f64);
        assert_eq!(mean(vec![u64::MAX], replicas), u64::MAX as f64);
    }
    let rows = |row: i64| {
        let whole = Some(vec![3]);
        IndexedSlices::new(HostTensor::vector(vec![200u8, 200]), HostTensor::vector(vec![1, row]), whole)
            .unwrap()
    };
    let mean = IndexedSlices::reduce(ReduceOp::Mean, &[&rows(1), &rows(2)]).unwrap();
    assert_eq!(mean.to_dense().unwrap(), HostTensor::vector(vec![0f32, 300., 100.]));
    // Made dense beside a dense leaf, and alone.
    let mixed = [Leaf::Slices(rows(1)), vector(vec![0u8, 0, 100])];
    let mean = host(Leaf::reduce(ReduceOp::Mean, &mixed).unwrap());
    assert_eq!(mean, HostTensor::vector(vec![0f32, 200., 50.]));
    let Leaf::Slices(one) = Leaf::reduce(ReduceOp::Mean, &[Leaf::Slices(rows(1))]).unwrap() else {
        panic!("not slices")
    };
    assert_eq!(one.values, HostTensor::vector(vec![400f32]));
    let differ = Leaf::reduce(ReduceOp::Mean, &[Leaf::Slices(rows(1)), vector(vec![0i32; 3])]).unwrap_err();
    assert!(
        differ.to_string().starts_with("replica 1 differs from replica 0: reduce: dtypes differ"),
        "{differ}"
    );
}

// OP-6: the sum comes first, so it may overflow, and a SUM of integers wraps.
#[test]
fn op_6_a_mean_does_not_scale_first() {
    let big = vector(vec![f32::MAX]);
    let mean = host(Leaf::reduce(ReduceOp::Mean, &[big.clone(), big]).unwrap());
    assert_eq!(mean.item::<f32>().unwrap(), f32::INFINITY);
    let most = vector(vec![i8::MAX, i8::MIN]);
    let sum = host(Leaf::reduce(ReduceOp::Sum, &[most.clone(), most]).unwrap());
    assert_eq!(sum, HostTensor::vector(vec![-2i8, 0]));
}

// INV-7
#[test]
fn op_6_the_16_bit_floats_are_added_up_as_f32_and_rounded_once() {
    // 256 + 1 is 256 in bfloat16, whichever way the tie goes at 257.
    let leaves: Vec<Leaf> = [256.0, 1.0, 1.0].map(|x| vector(vec![bf16::from_f32(x)])).into();
    let total = Leaf::from(HostTensor::vector(vec![bf16::from_f32(258.)]));
    let sum = |leaves: &[Leaf]| host(Leaf::reduce(ReduceOp::Sum, leaves).unwrap());
    assert_eq!(sum(&leaves), host(total.clone()));
    assert_eq!(host(Leaf::concat(&leaves, 0).unwrap().sum_axes(&[0]).unwrap()), host(total.row(0).unwrap()));
    // As summands, whose sum is rounded at last.
    let summands = Leaf::summands(ReduceOp::Sum, &leaves).unwrap();
    assert_eq!(summands[0].dtype().unwrap(), DType::F32);
    let summed = Leaf::reduce(ReduceOp::Sum, &summands).unwrap();
    assert_eq!(host(summed.reduction(ReduceOp::Sum, 3, DType::Bf16).unwrap()), host(total.clone()));
    // The mean of numbers whose sum is more than float16 has.
    let large = vector(vec![f16::from_f32(40_000.)]);
    for n in 1..=9 {
        let mean = Leaf::reduce(ReduceOp::Mean, &vec![large.clone(); n]).unwrap();
        assert_eq!(host(mean), host(large.clone()), "{n} replicas");
    }
    // Rows: of one replica, of several, made dense, and beside dense leaves.
    let row = |x: f32, index: i64| {
        let values = HostTensor::new(vec![bf16::from_f32(x)], [1, 1]).unwrap();
        IndexedSlices::new(values, HostTensor::vector(vec![index]), Some(vec![2, 1])).unwrap()
    };
    let rows = [256., 1., 1.].map(|x| row(x, 1));
    let own = IndexedSlices::concat(&rows.iter().collect::<Vec<_>>()).unwrap();
    let whole = HostTensor::new([0., 258.].map(bf16::from_f32).to_vec(), [2, 1]).unwrap();
    assert_eq!(own.to_dense().unwrap(), whole);
    for slices in [vec![&own], rows.iter().collect()] {
        let sum = IndexedSlices::reduce(ReduceOp::Sum, &slices).unwrap();
        assert_eq!((sum.to_dense().unwrap(), sum.to_rows().unwrap()), (whole.clone(), vec![1]));
    }
    let dense = HostTensor::new([0., 256.].map(bf16::from_f32).to_vec(), [2, 1]).unwrap();
    let mixed = [dense.into(), Leaf::Slices(row(1., 1)), Leaf::Slices(row(1., 1))];
    assert_eq!(sum(&mixed), whole);
    let large = |index| {
        let values = HostTensor::new(vec![f16::from_f32(40_000.)], [1, 1]).unwrap();
        IndexedSlices::new(values, HostTensor::vector(vec![index]), Some(vec![2, 1])).unwrap()
    };
    let mean = IndexedSlices::reduce(ReduceOp::Mean, &[&large(0), &large(0)]).unwrap();
    assert_eq!(mean.values, large(0).values);
}

#[test]
fn rto_3_nothing_is_broadcast_and_the_replica_is_named() {
    let wide = Leaf::Host(HostTensor::zeros(DType::F32, [3, 4]).unwrap());
    let flat = Leaf::Host(HostTensor::zeros(DType::F32, [1, 4]).unwrap());
    let text = Leaf::reduce(ReduceOp::Sum, &[wide.clone(), wide.clone(), flat]).unwrap_err().to_string();
    assert_eq!(
        text,
        "replica 2 differs from replica 0: reduce: shapes differ: [3, 4] and [1, 4]; values are never broadcast"
    );
    let double = Leaf::Host(HostTensor::zeros(DType::F64, [3, 4]).unwrap());
    let text = Leaf::reduce(ReduceOp::Mean, &[wide.clone(), double]).unwrap_err().to_string();
    assert!(text.starts_with("replica 1 differs from replica 0: reduce: dtypes differ: float32 and float64"));
    assert!(matches!(Leaf::reduce(ReduceOp::Sum, &[]), Err(Error::Empty { .. })));
}

// INV-9
#[test]
fn red_5_an_empty_replica_counts_for_nothing() {
    let leaves = [vector(vec![1.0f32, 2.0]), vector::<f32>(vec![])];
    let sums = leaves.clone().map(|l| l.sum_axes(&[0]).unwrap());
    let count: usize = leaves.iter().map(|l| l.dims()[0]).sum();
    let mean = Leaf::reduce(ReduceOp::Sum, &sums).unwrap().divide(count as f64).unwrap();
    assert_eq!(host(mean).item::<f32>().unwrap(), 1.5);
    let none = vector::<f32>(vec![]).sum_axes(&[0]).unwrap().divide(0.0).unwrap();
    assert!(host(none).item::<f32>().unwrap().is_nan());
}

#[test]
fn red_6_axes_are_within_the_rank_and_given_once() {
    let leaf = Leaf::Host(of(DType::I64, &[2, 3, 4], 0));
    assert_eq!(host(leaf.sum_axes(&[2, 0]).unwrap()), HostTensor::vector(vec![60i64, 92, 124]));
    assert_eq!(host(leaf.sum_axes(&[0, 2, 1]).unwrap()).item::<i64>().unwrap(), 276);
    assert!(matches!(leaf.sum_axes(&[3]), Err(Error::Axis { axis: 3, rank: 3, .. })));
    assert!(matches!(leaf.sum_axes(&[1, 1]), Err(Error::DuplicateAxis { axis: 1, .. })));
    let text = Leaf::Host(HostTensor::scalar(1.0f32)).sum_axes(&[0]).unwrap_err().to_string();
    assert!(text.contains("a scalar has no axis"), "{text}");
}

#[test]
fn sparse_1_and_2_rows_are_merged_in_replica_order() {
    let leaves =
        [slices(vec![1.0, 2.0], vec![0, 1], Some(3)), slices(vec![3.0], vec![1], Some(3))].map(Leaf::Slices);
    let Leaf::Slices(sum) = Leaf::reduce(ReduceOp::Sum, &leaves).unwrap() else { panic!("not slices") };
    assert_eq!(sum, slices(vec![1.0, 5.0], vec![0, 1], Some(3)));
    assert_eq!(sum.to_dense().unwrap(), HostTensor::new(vec![1.0f32, 5.0, 0.0], [3, 1]).unwrap());
    let Leaf::Slices(mean) = Leaf::reduce(ReduceOp::Mean, &leaves).unwrap() else { panic!("not slices") };
    assert_eq!(mean, slices(vec![0.5, 2.5], vec![0, 1], Some(3)));
    // Replica by replica, not as a tree: (((big + 1) + -big) + 1).
    let big = 16_777_216.0;
    let four = [big, 1.0, -big, 1.0].map(|x| slices(vec![x], vec![7], None));
    let sum = IndexedSlices::reduce(ReduceOp::Sum, &four.each_ref()).unwrap();
    assert_eq!(sum, slices(vec![1.0], vec![7], None));
}

#[test]
fn sparse_1_rows_of_one_replica_are_merged() {
    let own = Leaf::Slices(slices(vec![1.0, 2.0, 4.0], vec![2, 0, 2], Some(3)));
    for op in [ReduceOp::Sum, ReduceOp::Mean] {
        let Leaf::Slices(merged) = Leaf::reduce(op, std::slice::from_ref(&own)).unwrap() else {
            panic!("not slices")
        };
        assert_eq!(merged, slices(vec![2.0, 5.0], vec![0, 2], Some(3)));
        let again = IndexedSlices::reduce(op, &[&merged]).unwrap();
        assert_eq!(again, merged);
    }
}

#[test]
fn sparse_1_a_mean_of_integers_is_a_float_and_the_indices_keep_their_dtype() {
    let of = |values: Vec<i32>, indices: Vec<i32>| {
        let values = HostTensor::new(values, [indices.len(), 1]).unwrap();
        IndexedSlices::new(values, HostTensor::vector(indices), None).unwrap()
    };
    let mean =
        IndexedSlices::reduce(ReduceOp::Mean, &[&of(vec![1, 3], vec![4, 1]), &of(vec![4], vec![4])]).unwrap();
    assert_eq!(mean.values, HostTensor::new(vec![1.5f64, 2.5], [2, 1]).unwrap());
    assert_eq!(mean.indices, HostTensor::vector(vec![1i32, 4]));
    let flags = HostTensor::zeros(DType::Bool, [1, 1]).unwrap();
    let flags = IndexedSlices::new(flags, HostTensor::vector(vec![0i64]), None).unwrap();
    assert!(matches!(IndexedSlices::reduce(ReduceOp::Sum, &[&flags]), Err(Error::UnsupportedDType { .. })));
}

// An all-gather of the rows, in contrast, would need memory that grows with the number of replicas.
#[test]
fn sparse_1_the_sum_of_many_replicas_has_no_more_rows_than_the_dense_shape() {
    let of =
        |replica: i64| slices(vec![1.0; 50], (0..50).map(|i| (i * 7 + replica) % 40).collect(), Some(40));
    let all: Vec<_> = (0..64).map(of).collect();
    let sum = IndexedSlices::reduce(ReduceOp::Sum, &all.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(sum.indices, HostTensor::vector((0..40).collect::<Vec<i64>>()));
    assert_eq!(sum.to_dense().unwrap().sum_axes(&[0, 1]).unwrap().item::<f32>().unwrap(), 64.0 * 50.0);
}

#[test]
fn sparse_1_concat_keeps_duplicates_and_order() {
    let all = [slices(vec![1.0, 2.0], vec![1, 0], None), slices(vec![3.0], vec![1], Some(3))];
    let joined = IndexedSlices::concat(&all.each_ref()).unwrap();
    assert_eq!(joined, slices(vec![1.0, 2.0, 3.0], vec![1, 0, 1], Some(3)));
    assert!(matches!(IndexedSlices::concat(&[]), Err(Error::Empty { .. })));
    let other = slices(vec![3.0], vec![1], Some(4));
    let text = IndexedSlices::concat(&[&all[1], &other]).unwrap_err().to_string();
    assert!(
        text.starts_with("replica 1 differs from replica 0: concat: shapes differ: [3, 1] and [4, 1]"),
        "{text}"
    );
}

#[test]
fn sparse_3_next_to_dense_leaves_slices_become_dense() {
    let dense = Leaf::Host(HostTensor::new(vec![1.0f32; 6], [3, 2]).unwrap());
    let sparse = Leaf::Slices(slices(vec![1.0, 2.0, 3.0, 4.0], vec![2, 2], None));
    for leaves in [[dense.clone(), sparse.clone()], [sparse.clone(), dense.clone()]] {
        let sum = host(Leaf::reduce(ReduceOp::Sum, &leaves).unwrap());
        assert_eq!(sum, HostTensor::new(vec![1.0f32, 1.0, 1.0, 1.0, 5.0, 7.0], [3, 2]).unwrap());
    }
    let wrong = Leaf::Slices(slices(vec![1.0, 2.0], vec![5], None));
    let text = Leaf::reduce(ReduceOp::Sum, &[dense, wrong]).unwrap_err().to_string();
    assert_eq!(text, "replica 1 differs from replica 0: to_dense: index 5 is outside [0, 3)");
}

#[test]
fn sparse_4_slices_are_not_gathered() {
    let leaf = Leaf::Slices(slices(vec![1.0], vec![0], Some(2)));
    let text = Leaf::concat(&[leaf.clone(), leaf.clone()], 0).unwrap_err().to_string();
    assert_eq!(text, "concat: expected a dense tensor, found indexed slices");
    let dense = Leaf::Host(HostTensor::zeros(DType::F32, [2, 1]).unwrap());
    let text = Leaf::concat(&[dense, leaf], 0).unwrap_err().to_string();
    assert!(text.starts_with("replica 1 differs from replica 0: concat: expected a host tensor"), "{text}");
}

#[test]
fn slices_that_do_not_fit_together_are_refused() {
    let new = |values: &[usize], indices: HostTensor, whole: Option<Vec<usize>>| {
        IndexedSlices::new(HostTensor::zeros(DType::F32, values).unwrap(), indices, whole)
    };
    let two = || HostTensor::vector(vec![0i32, 3]);
    assert!(new(&[2, 5], two(), Some(vec![4, 5])).is_ok());
    assert!(matches!(new(&[], two(), None), Err(Error::Axis { .. })));
    assert!(matches!(new(&[3, 5], two(), None), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(new(&[2, 5], two(), Some(vec![4, 6])), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(new(&[2, 5], two(), Some(vec![])), Err(Error::ShapeMismatch { .. })));
    assert!(matches!(new(&[2, 5], two(), Some(vec![3, 5])), Err(Error::Index { index: 3, len: 3, .. })));
    let negative = HostTensor::vector(vec![-1i64, 0]);
    assert!(matches!(new(&[2, 5], negative, None), Err(Error::Index { index: -1, .. })));
    let floats = HostTensor::vector(vec![0.0f32, 1.0]);
    assert!(matches!(new(&[2, 5], floats, None), Err(Error::DTypeMismatch { found: DType::F32, .. })));
    assert!(matches!(new(&[2, 5], two(), None).unwrap().to_dense(), Err(Error::NoDenseShape { .. })));
    let huge = new(&[0, 5], HostTensor::vector(Vec::<i64>::new()), Some(vec![usize::MAX, 5])).unwrap();
    assert!(matches!(huge.to_dense(), Err(Error::TooLarge { .. })));
    let empty = new(&[0, 0], HostTensor::vector(Vec::<i64>::new()), Some(vec![4, 0])).unwrap();
    assert_eq!(empty.to_dense().unwrap().dims(), [4, 0]);
}

#[test]
fn ga_1_to_5_gather() {
    let leaf = |shape: &[usize]| Leaf::Host(of(DType::I32, shape, 0));
    assert_eq!(Leaf::concat(&[leaf(&[1, 2, 3]), leaf(&[1, 3, 3])], 1).unwrap().dims(), [1, 5, 3]); // GA-1
    let text = Leaf::concat(&[leaf(&[1, 2, 3]), leaf(&[1, 3, 3])], 0).unwrap_err().to_string(); // GA-2
    assert!(text.starts_with("replica 1 differs from replica 0: concat: shapes differ"), "{text}");
    assert!(matches!(Leaf::concat(&[leaf(&[1]), leaf(&[1, 2])], 0), Err(Error::Differs { index: 1, .. })));
    assert!(matches!(Leaf::concat(&[leaf(&[]), leaf(&[])], 0), Err(Error::Axis { rank: 0, .. }))); // GA-3
    assert!(matches!(Leaf::concat(&[leaf(&[2])], 1), Err(Error::Axis { axis: 1, .. }))); // GA-4
    assert_eq!(Leaf::concat(&[leaf(&[0, 2]), leaf(&[1, 2])], 0).unwrap().dims(), [1, 2]); // GA-5
}

#[test]
fn rows_and_ranges_outside_are_refused() {
    let leaf = Leaf::Host(of(DType::F32, &[3, 2], 0));
    assert!(matches!(leaf.row(3), Err(Error::Index { index: 3, len: 3, .. })));
    assert!(matches!(leaf.take_rows(&[0, 7]), Err(Error::Index { index: 7, .. })));
    assert!(matches!(leaf.narrow(1, 1, 2), Err(Error::Index { index: 2, len: 2, .. })));
    assert!(matches!(leaf.narrow(0, usize::MAX, 2), Err(Error::Index { .. })));
    assert!(matches!(leaf.narrow(2, 0, 0), Err(Error::Axis { axis: 2, .. })));
    assert_eq!(leaf.narrow(0, 3, 0).unwrap().dims(), [0, 2]);
    assert_eq!(leaf.take_rows(&[]).unwrap().dims(), [0, 2]);
    assert!(matches!(Leaf::Host(HostTensor::scalar(1u8)).row(0), Err(Error::Axis { .. })));
}

#[test]
fn leaves_describe_themselves() {
    assert_eq!(Leaf::Host(of(DType::F32, &[2, 3], 0)).describe(), "float32[2, 3]");
    let sparse = Leaf::Slices(slices(vec![1.0, 2.0], vec![0, 1], Some(3)));
    assert_eq!(sparse.describe(), "IndexedSlices(float32[2, 1] of [3, 1])");
    assert_eq!(
        sparse.to_string(),
        "IndexedSlices(values=<Tensor: shape=(2, 1), dtype=float32, data=\n[[1.0],\n [2.0]]>, \
         indices=<Tensor: shape=(2,), dtype=int64, data=[0, 1]>, dense_shape=(3, 1))"
    );
}

#[test]
fn host_tensors_convert() {
    let t = HostTensor::new(vec![1i64, 2, 3, 4], [2, 2]).unwrap();
    assert_eq!(t.to_vec::<i64>().unwrap(), [1, 2, 3, 4]);
    assert!(matches!(t.to_vec::<i32>(), Err(Error::DTypeMismatch { found: DType::I64, .. })));
    assert_eq!(t.reshape([4]).unwrap().into_vec::<i64>().unwrap(), [1, 2, 3, 4]);
    assert!(matches!(t.reshape([3]), Err(Error::ElementCount { elements: 4, .. })));
    assert!(t.item::<i64>().is_err());
    assert_eq!((t.len(), t.rank(), t.is_empty()), (4, 2, false));
    assert!(matches!(HostTensor::zeros(DType::F64, [usize::MAX, 2]), Err(Error::TooLarge { .. })));
    // Changing a clone copies first.
    let mut changed = t.clone();
    changed.as_mut_slice::<i64>().unwrap()[0] = 7;
    assert_eq!(t.as_slice::<i64>().unwrap()[0], 1);
    assert!(changed.as_mut_slice::<u8>().is_none());
    assert_ne!(t, changed);
    assert_ne!(t, t.cast(DType::I32).unwrap());
}

/// Checks that an empty axis does not hide the overflow of the others: their product would wrap.
#[test]
fn shapes_that_overflow_are_refused_in_any_order() {
    const MOST: usize = usize::MAX;
    let none = || HostTensor::vector(Vec::<f32>::new());
    for shape in [[0, MOST, 2], [MOST, 0, 2], [MOST, 2, 0], [MOST / 2 + 1, 0, 2], [2, 0, MOST / 2 + 1]] {
        assert!(matches!(HostTensor::new(Vec::<f32>::new(), shape), Err(Error::ElementCount { .. })));
        assert!(matches!(none().reshape(shape), Err(Error::ElementCount { .. })), "{shape:?}");
        assert!(matches!(HostTensor::zeros(DType::F32, shape), Err(Error::TooLarge { .. })), "{shape:?}");
    }
    // What can be is cut, joined and shown.
    let wide = none().reshape([0, MOST / 4]).unwrap();
    assert_eq!(wide.narrow(1, 3, 5).unwrap().dims(), [0, 5]);
    assert_eq!(wide.take_rows(&[]).unwrap().dims(), [0, MOST / 4]);
    assert_eq!(HostTensor::concat(&[&wide, &wide], 0).unwrap().dims(), [0, MOST / 4]);
    assert!(HostTensor::concat(&[&wide; 5], 1).is_err());
    assert!(matches!(HostTensor::stack(&[&wide; 5]), Err(Error::TooLarge { operation: "stack", .. })));
    let flat = none().reshape([MOST / 4, 0]).unwrap();
    assert!(matches!(HostTensor::concat(&[&flat; 5], 0), Err(Error::TooLarge { operation: "concat", .. })));
    assert!(!flat.to_string().is_empty());
    // More than any machine has, but not more than a number holds.
    assert!(matches!(HostTensor::zeros(DType::F32, [1 << 58]), Err(Error::TooLarge { .. })));
}

/// Returns a replica's random rows, with duplicates, and with numbers whose sum depends on the order.
fn random_slices(count: usize, seed: u64) -> IndexedSlices {
    let mut state = seed.wrapping_mul(6364136223846793005) | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 24
    };
    let indices = (0..count).map(|_| (next() % 7) as i64).collect();
    let values = (0..count * 3).map(|_| next() as f32 / 1e6 - 5e5).map(|x| if x > 4e5 { -0.0 } else { x });
    let values = HostTensor::new(values.collect::<Vec<_>>(), [count, 3]).unwrap();
    IndexedSlices::new(values, HostTensor::vector(indices), Some(vec![7, 3])).unwrap()
}

fn float_bits(tensor: &HostTensor) -> Vec<u32> {
    tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

proptest! {
    // INV-7: one order of sums, for rows as for dense tensors.
    #[test]
    fn sparse_1_rows_are_reduced_bit_identically_to_dense_tensors_and_per_worker_sums(
        counts in prop::collection::vec(0usize..12, 1..9),
        seed: u64,
        mean: bool,
    ) {
        let op = if mean { ReduceOp::Mean } else { ReduceOp::Sum };
        let all: Vec<_> = counts.iter().zip(0u64..).map(|(n, r)| random_slices(*n, seed ^ r)).collect();
        let refs: Vec<_> = all.iter().collect();
        let sparse = IndexedSlices::reduce(op, &refs).unwrap();
        let dense: Vec<_> = all.iter().map(|slices| slices.to_dense().unwrap()).collect();
        let dense = HostTensor::reduce(op, &dense.iter().collect::<Vec<_>>()).unwrap();
        prop_assert_eq!(float_bits(&sparse.to_dense().unwrap()), float_bits(&dense));
        for replicas in [2, 4] {
            let workers: Vec<_> =
                refs.chunks(replicas).map(|own| IndexedSlices::reduce(ReduceOp::Sum, own).unwrap()).collect();
            let sum = IndexedSlices::reduce(ReduceOp::Sum, &workers.iter().collect::<Vec<_>>()).unwrap();
            let whole = IndexedSlices::reduce(ReduceOp::Sum, &refs).unwrap();
            prop_assert_eq!(&sum.indices, &whole.indices);
            prop_assert_eq!(float_bits(&sum.values), float_bits(&whole.values));
        }
    }
}

/// Checks that each replica's rows with the same index are summed in the narrow type, as in its dense tensor.
// INV-7
#[test]
fn rows_of_narrow_types_are_reduced_bit_identically_to_dense_tensors() {
    let rows = |dtype, values: &[f32], indices: &[i64]| {
        let values = HostTensor::new(values.to_vec(), [values.len(), 1]).unwrap().cast(dtype).unwrap();
        IndexedSlices::new(values, HostTensor::vector(indices.to_vec()), Some(vec![2, 1])).unwrap()
    };
    for dtype in [DType::Bf16, DType::F16, DType::I8, DType::U8, DType::I16, DType::I32, DType::F32] {
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            // OP-4: a mean of integers does not wrap.
            if op == ReduceOp::Mean && !matches!(dtype, DType::Bf16 | DType::F16 | DType::F32) {
                continue;
            }
            let (large, one) = if dtype == DType::F16 { (2048., 1.) } else { (100., 101.) };
            let (large, one) = if dtype == DType::Bf16 { (256., 1.) } else { (large, one) };
            let all = [rows(dtype, &[large, one], &[1, 1]), rows(dtype, &[one], &[1]), rows(dtype, &[], &[])];
            for replicas in 1..=3 {
                let refs: Vec<_> = all.iter().take(replicas).collect();
                let sparse = IndexedSlices::reduce(op, &refs).unwrap().to_dense().unwrap();
                let dense: Vec<_> = refs.iter().map(|slices| slices.to_dense().unwrap()).collect();
                let dense = HostTensor::reduce(op, &dense.iter().collect::<Vec<_>>()).unwrap();
                assert_eq!(sparse, dense, "{op} of {replicas} replicas");
                let merged: Vec<_> =
                    refs.iter().map(|own| IndexedSlices::reduce(ReduceOp::Sum, &[own]).unwrap()).collect();
                let merged = IndexedSlices::reduce(op, &merged.iter().collect::<Vec<_>>()).unwrap();
                assert_eq!(merged.to_dense().unwrap(), dense, "{op} of {replicas} merged replicas");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn narrow_undoes_concat_for_every_dtype(
        shape in prop::collection::vec(1usize..4, 1..4),
        sizes in prop::collection::vec(0usize..4, 1..4),
        axis: prop::sample::Index,
    ) {
        let axis = axis.index(shape.len());
        for dtype in DType::ALL {
            let pieces: Vec<Leaf> = sizes.iter().enumerate().map(|(i, size)| {
                let mut shape = shape.clone();
                shape[axis] = *size;
                Leaf::Host(of(dtype, &shape, 31 * i))
            }).collect();
            let whole = Leaf::concat(&pieces, axis)?;
            let mut start = 0;
            for (piece, size) in pieces.into_iter().zip(&sizes) {
                prop_assert_eq!(host(whole.narrow(axis, start, *size)?), host(piece));
                start += size;
            }
        }
    }

    #[test]
    fn row_undoes_stack_for_every_dtype(shape in prop::collection::vec(0usize..4, 0..3), n in 1usize..4) {
        for dtype in DType::ALL {
            let elements: Vec<Leaf> = (0..n).map(|i| Leaf::Host(of(dtype, &shape, 17 * i))).collect();
            let batch = Leaf::stack(&elements)?;
            let turned: Vec<usize> = (0..n).rev().collect();
            let reversed = batch.take_rows(&turned)?;
            for (i, element) in elements.into_iter().enumerate() {
                prop_assert_eq!(host(reversed.row(n - 1 - i)?), host(batch.row(i)?));
                prop_assert_eq!(host(batch.row(i)?), host(element));
            }
        }
    }

    // The leaf's sum is the tree of pairs over the list, for every dtype that has one.
    // INV-7
    #[test]
    fn a_sum_of_three_is_first_the_pair_then_the_third(x in any::<[u8; 3]>()) {
        for dtype in DType::ALL.into_iter().filter(|d| d.mean().is_some()) {
            let leaf = |x: u8| Leaf::Host(HostTensor::scalar(x).cast(dtype).unwrap());
            let sum = |leaves: &[Leaf]| Leaf::reduce(ReduceOp::Sum, leaves).unwrap();
            let three = [leaf(x[0]), leaf(x[1]), leaf(x[2])];
            let all = sum(&three);
            // In the dtype of the sum, which is rounded at last.
            let of = Leaf::summands(ReduceOp::Sum, &three).unwrap();
            let pair = sum(&[sum(&of[..2]), of[2].clone()]).reduction(ReduceOp::Sum, 3, dtype).unwrap();
            with_buffer!(host(all).buffer(), got => {
                prop_assert_eq!(format!("{got:?}"), with_buffer!(host(pair).buffer(), want => format!("{want:?}")));
            });
        }
    }
}
