//! Checks that candle leaves stay candle leaves, with the same results as host tensors.

use candle_core::{CpuStorage, DType as CandleDType, Device, Storage, Tensor, Var};
use distribute_tensor::{DType, Error, HostTensor, IndexedSlices, Leaf, ReduceOp};

const SHARED: [DType; 9] = [
    DType::F16,
    DType::Bf16,
    DType::F32,
    DType::F64,
    DType::U8,
    DType::I16,
    DType::I32,
    DType::U32,
    DType::I64,
];

fn of(dtype: DType, shape: &[usize], from: u8) -> HostTensor {
    let len: usize = shape.iter().product();
    HostTensor::new((0..len).map(|i| from + i as u8).collect::<Vec<_>>(), shape).unwrap().cast(dtype).unwrap()
}

fn both(tensor: HostTensor) -> (Leaf, Leaf) {
    let candle = tensor.to_candle(&Device::Cpu).unwrap();
    (Leaf::Host(tensor), Leaf::Candle(candle))
}

fn same(candle: distribute_tensor::Result<Leaf>, host: distribute_tensor::Result<Leaf>) {
    let (candle, host) = (candle.unwrap(), host.unwrap());
    assert_eq!(candle.kind(), "a candle tensor");
    assert_eq!(candle.to_host().unwrap(), host.to_host().unwrap());
    assert_eq!((candle.dtype().unwrap(), candle.dims()), (host.dtype().unwrap(), host.dims()));
    assert_eq!((candle.describe(), candle.to_string()), (host.describe(), host.to_string()));
}

#[test]
fn every_operation_agrees_with_host_tensors() {
    for dtype in SHARED {
        let (hosts, candles): (Vec<_>, Vec<_>) =
            [1, 50, 100].map(|from| both(of(dtype, &[4, 3], from))).into_iter().unzip();
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            for n in 1..=3 {
                same(Leaf::reduce(op, &candles[..n]), Leaf::reduce(op, &hosts[..n]));
            }
        }
        for axis in 0..2 {
            same(Leaf::concat(&candles, axis), Leaf::concat(&hosts, axis));
            same(candles[0].narrow(axis, 1, 2), hosts[0].narrow(axis, 1, 2));
            same(candles[1].sum_axes(&[axis]), hosts[1].sum_axes(&[axis]));
        }
        same(Leaf::stack(&candles), Leaf::stack(&hosts));
        same(candles[2].sum_axes(&[1, 0]), hosts[2].sum_axes(&[1, 0]));
        same(candles[2].take_rows(&[3, 0, 3]), hosts[2].take_rows(&[3, 0, 3]));
        same(candles[2].take_rows(&[]), hosts[2].take_rows(&[]));
        same(candles[2].row(2), hosts[2].row(2));
        same(candles[2].divide(7.0), hosts[2].divide(7.0));
        let (host, candle) = both(of(dtype, &[0, 3], 0));
        same(
            Leaf::concat(&[candle.clone(), candles[0].clone()], 0),
            Leaf::concat(&[host.clone(), hosts[0].clone()], 0),
        );
        same(candle.sum_axes(&[0]), host.sum_axes(&[0]));
        same(Leaf::stack(&[candle.clone(), candle]), Leaf::stack(&[host.clone(), host]));
    }
}

// INV-7
#[test]
fn halves_are_added_up_as_f32_whether_gradients_flow_or_not() {
    let values = Var::from_tensor(&Tensor::new(&[[256f32], [1.], [1.]], &Device::Cpu).unwrap()).unwrap();
    let halves = values.to_dtype(CandleDType::BF16).unwrap();
    for halves in [halves.clone(), halves.detach()] {
        let sum = Leaf::Candle(halves.clone()).sum_axes(&[0]).unwrap();
        let parts: Vec<Leaf> = (0..3).map(|row| Leaf::Candle(halves.get(row).unwrap())).collect();
        for sum in [sum, Leaf::reduce(ReduceOp::Sum, &parts).unwrap()] {
            let Leaf::Candle(sum) = sum else { panic!("{}", sum.kind()) };
            let found = sum.to_dtype(CandleDType::F32).unwrap().to_vec1::<f32>().unwrap();
            assert_eq!((sum.dtype(), found), (CandleDType::BF16, vec![258.]));
        }
    }
}

#[test]
fn views_are_read_in_their_own_order() {
    for dtype in SHARED {
        let host = of(dtype, &[3, 4], 0);
        let turned = host.to_candle(&Device::Cpu).unwrap().t().unwrap();
        let part = host.to_candle(&Device::Cpu).unwrap().narrow(0, 1, 2).unwrap();
        assert_eq!(HostTensor::from_candle(&part).unwrap(), host.narrow(0, 1, 2).unwrap());
        let rows: Vec<HostTensor> =
            (0..4).map(|i| host.narrow(1, i, 1).unwrap().reshape([3]).unwrap()).collect();
        let expected = HostTensor::stack(&rows.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(HostTensor::from_candle(&turned).unwrap(), expected);
        same(
            Leaf::reduce(ReduceOp::Sum, &[Leaf::Candle(turned.clone()), Leaf::Candle(turned)]),
            Leaf::reduce(ReduceOp::Sum, &[Leaf::Host(expected.clone()), Leaf::Host(expected)]),
        );
    }
}

#[test]
fn the_same_tensor_twice_counts_twice() {
    let leaf = Leaf::Candle(Tensor::new(&[1f32, 2.0], &Device::Cpu).unwrap());
    let sum = Leaf::reduce(ReduceOp::Sum, &[leaf.clone(), leaf.clone(), leaf]).unwrap();
    assert_eq!(sum.to_host().unwrap(), HostTensor::vector(vec![3f32, 6.0]));
}

#[test]
fn op_4_a_mean_of_i64_is_f64() {
    let leaves = [1i64, 2].map(|x| Leaf::Candle(Tensor::new(x, &Device::Cpu).unwrap()));
    let Leaf::Candle(mean) = Leaf::reduce(ReduceOp::Mean, &leaves).unwrap() else { panic!("not candle's") };
    assert_eq!(mean.dtype(), CandleDType::F64);
    assert_eq!(mean.to_scalar::<f64>().unwrap(), 1.5);
}

#[test]
fn op_4_a_mean_of_integers_does_not_wrap() {
    fn mean<T: candle_core::WithDType>(number: T, expected: CandleDType) {
        for replicas in 1..=4 {
            let leaf = Leaf::Candle(Tensor::new(&[number], &Device::Cpu).unwrap());
            let Leaf::Candle(mean) = Leaf::reduce(ReduceOp::Mean, &vec![leaf; replicas]).unwrap() else {
                panic!("not candle's")
            };
            assert_eq!(mean.dtype(), expected);
            let mean = mean.to_dtype(CandleDType::F64).unwrap().to_vec1::<f64>().unwrap();
            assert_eq!(mean, [number.to_f64()], "{replicas} replicas");
        }
    }
    mean(200u8, CandleDType::F32);
    mean(i16::MIN, CandleDType::F32);
    mean(i32::MAX, CandleDType::F64);
    mean(u32::MAX, CandleDType::F64);
    mean(i64::MAX, CandleDType::F64);
}

#[test]
fn integers_wrap() {
    let leaf = Leaf::Candle(Tensor::new(&[i32::MAX, i32::MIN], &Device::Cpu).unwrap());
    let sum = Leaf::reduce(ReduceOp::Sum, &[leaf.clone(), leaf.clone()]).unwrap();
    assert_eq!(sum.to_host().unwrap(), HostTensor::vector(vec![-2i32, 0]));
    let sum = Leaf::concat(&[leaf.clone(), leaf], 0).unwrap().sum_axes(&[0]).unwrap();
    assert_eq!(sum.to_host().unwrap().item::<i32>().unwrap(), -2);
}

#[test]
fn gradients_flow_through_operations_on_one_leaf_only() {
    let var = Var::new(&[[1f32, 2.0], [3.0, 4.0]], &Device::Cpu).unwrap();
    let leaf = Leaf::Candle(var.as_tensor().clone());
    let Leaf::Candle(loss) = leaf.take_rows(&[1]).unwrap().sum_axes(&[0, 1]).unwrap().divide(2.0).unwrap()
    else {
        panic!("not candle's")
    };
    let grads = loss.backward().unwrap();
    assert_eq!(grads.get(&var).unwrap().to_vec2::<f32>().unwrap(), [[0.0, 0.0], [0.5, 0.5]]);
    for op in [Leaf::stack, |leaves: &[Leaf]| Leaf::reduce(ReduceOp::Sum, leaves)] {
        for n in 1..=2 {
            let Leaf::Candle(out) = op(&vec![leaf.clone(); n]).unwrap() else { panic!("not candle's") };
            assert!(!out.track_op());
        }
    }
}

#[test]
fn sparse_3_slices_next_to_candle_tensors_become_candle_tensors() {
    let dense = Leaf::Candle(Tensor::new(&[[1f32], [1.0], [1.0]], &Device::Cpu).unwrap());
    let rows = HostTensor::new(vec![2f32], [1, 1]).unwrap();
    let sparse = Leaf::Slices(IndexedSlices::new(rows, HostTensor::vector(vec![1i32]), None).unwrap());
    let sum = Leaf::reduce(ReduceOp::Sum, &[sparse, dense]).unwrap();
    assert_eq!(sum.kind(), "a candle tensor");
    assert_eq!(sum.to_host().unwrap(), HostTensor::new(vec![1f32, 3.0, 1.0], [3, 1]).unwrap());
}

#[test]
fn errors_name_the_replica_and_the_missing_operation_of_candle() {
    let leaf = |t: HostTensor| both(t).1;
    let (a, b) = (leaf(of(DType::F32, &[2], 0)), leaf(of(DType::F32, &[3], 0)));
    let text = Leaf::reduce(ReduceOp::Sum, &[a.clone(), b]).unwrap_err().to_string();
    assert!(
        text.starts_with("replica 1 differs from replica 0: reduce: shapes differ: [2] and [3]"),
        "{text}"
    );
    let host = Leaf::Host(of(DType::F32, &[2], 0));
    assert!(matches!(Leaf::reduce(ReduceOp::Sum, &[a.clone(), host]), Err(Error::Differs { index: 1, .. })));
    assert!(matches!(a.row(2), Err(Error::Index { .. })));
    assert!(matches!(a.narrow(0, 1, 2), Err(Error::Index { .. })));
    assert!(matches!(a.take_rows(&[2]), Err(Error::Index { .. })));
    assert!(matches!(a.sum_axes(&[1]), Err(Error::Axis { .. })));
    for dtype in DType::ALL.into_iter().filter(|d| !SHARED.contains(d) && *d != DType::Bool) {
        let tensor = HostTensor::zeros(dtype, [1]).unwrap();
        assert!(matches!(tensor.to_candle(&Device::Cpu), Err(Error::UnsupportedDType { .. })), "{dtype}");
    }
    let truth = HostTensor::vector(vec![true, false]).to_candle(&Device::Cpu).unwrap();
    assert_eq!(truth.to_vec1::<u8>().unwrap(), [1, 0]);
    let tiny =
        Tensor::zeros(2, CandleDType::F32, &Device::Cpu).unwrap().to_dtype(CandleDType::F8E4M3).unwrap();
    let text = Leaf::Candle(tiny.clone()).dtype().unwrap_err().to_string();
    assert!(text.contains("candle's dtype f8e4m3 is not supported"), "{text}");
    assert_eq!(Leaf::Candle(tiny).describe(), "f8e4m3[2]");
}

// ITER-2
#[test]
fn tensors_without_elements_have_minimal_memory() {
    let memory_of = |tensor: &Tensor| match &*tensor.storage_and_layout().0 {
        Storage::Cpu(CpuStorage::I64(all)) => all.len(),
        _ => panic!("not int64 on the CPU"),
    };
    let all = Tensor::zeros((100, 6, 2), CandleDType::I64, &Device::Cpu).unwrap();
    for (dims, memory) in [([0, 6, 2], 12), ([3, 0, 2], 6), ([0, 6, 0], 6)] {
        let empty = distribute_tensor::without_elements(&dims, CandleDType::I64, &Device::Cpu).unwrap();
        assert_eq!((empty.dims(), empty.dtype(), memory_of(&empty)), (&dims[..], CandleDType::I64, memory));
    }
    for rows in [all.clone(), all.narrow(0, 40, 4).unwrap(), all.narrow(0, 100, 0).unwrap()] {
        let Leaf::Candle(empty) = Leaf::Candle(rows).without_rows().unwrap() else { panic!("not candle's") };
        assert_eq!((empty.dims(), empty.dtype(), memory_of(&empty)), (&[0, 6, 2][..], CandleDType::I64, 12));
    }
    let scalar = Leaf::Candle(Tensor::new(1i64, &Device::Cpu).unwrap());
    assert!(matches!(scalar.without_rows(), Err(Error::Axis { axis: 0, .. })));
    let host = Leaf::Host(of(DType::I64, &[4, 3], 0)).without_rows().unwrap();
    assert_eq!((host.dims(), host.to_host().unwrap().len()), (&[0, 3][..], 0));
}
