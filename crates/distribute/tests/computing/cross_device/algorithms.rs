//! Checks that the results of all algorithms are bit-identical.

use crate::cross_device::{mirrored, rows, with_ops};
use crate::everywhere::{each, everywhere, of_all};
use candle_core::{Device, Tensor, Var};
use distribute::strategy::{DeviceName, HierarchicalCopyAllReduce, NcclAllReduce, ReductionToOneDevice};
use distribute::tensor::Leaf;
use distribute::{HostTensor, PerReplica, ReduceOp, Strategy};
use distribute_testing::watched;

/// Returns strategies with each algorithm and with the default one.
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

/// Returns numbers of a replica. The sum over replicas depends on the order of additions.
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

/// Checks that every function of a strategy that reduces sums [`leaves`] in the fixed order.
fn check_order(strategy: &Strategy) {
    let all = of_all(strategy, leaves);
    let local = each(strategy, leaves);
    let columns: Vec<PerReplica<Leaf>> =
        (0..all[0].len()).map(|i| each(strategy, |id| all[id][i].clone())).collect();
    for op in [ReduceOp::Sum, ReduceOp::Mean] {
        let column = |i: usize| all.iter().map(|list| list[i].clone()).collect::<Vec<_>>();
        let expected: Vec<Leaf> = (0..all[0].len()).map(|i| Leaf::reduce(op, &column(i)).unwrap()).collect();
        let expected = hosts(&expected);
        let on_all = columns.iter().map(|parts| (parts, parts));
        for (sum, expected) in strategy.batch_reduce_to(op, on_all).unwrap().iter().zip(&expected) {
            assert_eq!(sum.copies().len(), strategy.world().replicas(), "{strategy}");
            let mut copies = sum.copies().into_iter().map(|copy| copy.to_host().unwrap());
            assert!(copies.all(|copy| copy == *expected), "{op}: {strategy}");
        }
        let here = strategy.reduce(op, local.clone(), None).unwrap();
        assert_eq!(hosts(&here), expected, "{op}: {strategy}");
        let each_replica = strategy.run(local.clone(), |ctx, mine| ctx.all_reduce(op, mine)).unwrap();
        each_replica.iter().for_each(|mine| assert_eq!(hosts(mine), expected, "{op}: {strategy}"));
    }
}

// INV-7
#[test]
fn xd_2_and_xd_5_all_algorithms_are_bit_identical_in_one_order_of_sums() {
    watched(|| {
        (1..=8).for_each(|replicas| strategies(replicas).iter().for_each(check_order));
        everywhere(check_order);
    });
}

#[test]
fn xd_5_and_t8_an_odd_number_of_replicas_is_summed_completely() {
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
