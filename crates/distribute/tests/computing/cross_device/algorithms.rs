//! Checks that all algorithms give the same bits.

use crate::cross_device::{mirrored, per_replica, rows, with_ops};
use candle_core::{Device, Tensor, Var};
use distribute::{
    DeviceName, HierarchicalCopyAllReduce, HostTensor, Leaf, NcclAllReduce, PerReplica, ReduceOp,
    ReductionToOneDevice, Strategy,
};
use distribute_testing::watched;

/// Returns strategies with every algorithm, and with the default one.
fn strategies(replicas: usize) -> Vec<Strategy> {
    let last = DeviceName::cpu(replicas - 1);
    let mut all = vec![
        mirrored(replicas),
        with_ops(replicas, ReductionToOneDevice::default()),
        with_ops(replicas, ReductionToOneDevice { reduce_to_device: Some(last) }),
        with_ops(replicas, NcclAllReduce::default()),
    ];
    all.extend([0, 1, 3].map(|num_packs| with_ops(replicas, HierarchicalCopyAllReduce { num_packs })));
    all
}

/// Returns numbers whose sum depends on the order.
fn numbers(replica: usize, len: usize) -> Vec<f64> {
    let number = |at: usize| ((at * 7919 + replica * 104_729) % 1009) as f64 / 3.;
    (0..len).map(|at| number(at) * [1e-3, 1., 1e4][(at + replica) % 3]).collect()
}

/// Returns leaves of several dtypes and kinds, with odd lengths.
fn leaves(replica: usize) -> Vec<Leaf> {
    let numbers = |len| numbers(replica, len);
    let wide = numbers(257);
    let narrow: Vec<f32> = numbers(131).iter().map(|x| *x as f32).collect();
    let half: Vec<half::bf16> = numbers(33).iter().map(|x| half::bf16::from_f64(*x)).collect();
    let whole: Vec<i32> = numbers(77).iter().map(|x| *x as i32).collect();
    vec![
        Leaf::Candle(Tensor::new(narrow.clone(), &Device::Cpu).unwrap()),
        Leaf::Host(HostTensor::vector(narrow)),
        Leaf::Candle(Tensor::new(wide, &Device::Cpu).unwrap()),
        Leaf::Host(HostTensor::vector(half)),
        Leaf::Host(HostTensor::new(whole, [7, 11]).unwrap()),
        Leaf::Candle(Tensor::new(numbers(1)[0] as f32, &Device::Cpu).unwrap()),
        Leaf::Host(HostTensor::vector(Vec::<f32>::new())),
        rows(vec![0.1; replica + 1], (0..replica as i64 + 1).map(|row| row % 5).collect()),
    ]
}

pub fn hosts(leaves: &[Leaf]) -> Vec<HostTensor> {
    leaves.iter().map(|leaf| leaf.to_host().unwrap()).collect()
}

// INV-7
#[test]
fn xd_2_and_xd_5_all_algorithms_give_the_bits_of_the_one_order_of_sums() {
    watched(|| {
        for replicas in 1..=8 {
            let lists: Vec<Vec<Leaf>> = (0..replicas).map(leaves).collect();
            let columns: Vec<PerReplica<Leaf>> =
                (0..lists[0].len()).map(|i| per_replica(lists.iter().map(|list| list[i].clone()))).collect();
            for op in [ReduceOp::Sum, ReduceOp::Mean] {
                let expected: Vec<Leaf> =
                    columns.iter().map(|parts| Leaf::reduce(op, parts.values()).unwrap()).collect();
                let expected = hosts(&expected);
                for strategy in strategies(replicas) {
                    let everywhere = columns.iter().map(|parts| (parts, parts));
                    for (sum, expected) in
                        strategy.batch_reduce_to(op, everywhere).unwrap().iter().zip(&expected)
                    {
                        assert_eq!(sum.copies().len(), replicas);
                        sum.copies().iter().for_each(|copy| assert_eq!(&copy.to_host().unwrap(), expected));
                    }
                    let here = strategy.reduce(op, per_replica(lists.clone()), None).unwrap();
                    assert_eq!(hosts(&here), expected);
                    let all = strategy.run(per_replica(lists.clone()), |ctx, mine| ctx.all_reduce(op, mine));
                    all.unwrap().iter().for_each(|mine| assert_eq!(hosts(mine), expected));
                }
            }
        }
    });
}

#[test]
fn xd_5_and_t8_with_an_odd_number_of_replicas_nobody_is_left_out() {
    watched(|| {
        for replicas in [3, 5, 7] {
            let strategy = with_ops(replicas, HierarchicalCopyAllReduce::default());
            let all: u64 = (0..replicas as u32).map(|r| 10u64.pow(r)).sum();
            let sums = strategy.run((), |ctx, ()| {
                ctx.all_reduce(ReduceOp::Sum, 10u64.pow(ctx.replica_id_in_sync_group() as u32))
            });
            assert_eq!(sums.unwrap().values(), vec![all; replicas]);
        }
    });
}

#[test]
fn ar_7_gradients_flow_through_an_algorithm_of_choice() {
    watched(|| {
        for (op, expected) in [(ReduceOp::Sum, [6., 12.]), (ReduceOp::Mean, [3., 6.])] {
            let strategy = with_ops(2, HierarchicalCopyAllReduce::default());
            let gradients = strategy.run((), |ctx, ()| {
                let rank = ctx.replica_id_in_sync_group() as f64 + 1.;
                let x = Var::new(rank as f32, &Device::Cpu)?;
                let y = (ctx.all_reduce(op, x.sqr()?)? * rank)?;
                Ok(y.backward()?.get(&x).unwrap().to_scalar::<f32>()?)
            });
            assert_eq!(gradients.unwrap().values(), expected);
        }
    });
}
