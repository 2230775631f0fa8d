//! Checks that all_reduce is bit-identical to a reduction on one thread.

use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::{all_reduce, threads::Team};
use distribute_tensor::{HostTensor, IndexedSlices, Leaf, Packing, ReduceOp};
use distribute_testing::watched;
use proptest::prelude::*;
use std::panic::Location;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Returns the result of each member of a team for its leaves.
fn reduced(op: ReduceOp, packing: Packing, leaves: Vec<Vec<Leaf>>) -> Vec<Result<Vec<Leaf>, String>> {
    watched(move || {
        let team = Arc::new(Team::new(leaves.len()).unwrap());
        let results: Vec<_> = leaves.iter().map(|_| Mutex::new(None)).collect();
        team.run(1, Duration::from_secs(60), &|member| {
            let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
            let mine = leaves[member.rank()].clone();
            let result = all_reduce(&member, call, op, packing, mine)
                .map(|combined| combined.leaves)
                .map_err(|e| e.to_string());
            let good = result.is_ok();
            *results[member.rank()].lock().unwrap() = Some(result);
            good
        });
        results.into_iter().map(|r| r.into_inner().unwrap().unwrap()).collect()
    })
}

/// Returns the bits of the values, and for slices also the indices.
fn bits(leaf: &Leaf) -> Vec<u64> {
    if let Leaf::Slices(slices) = leaf {
        let indices = slices.indices.to_vec::<i64>().unwrap().into_iter().map(|i| i as u64);
        return indices.chain(bits(&Leaf::Host(slices.values.clone()))).collect();
    }
    let host = leaf.to_host().unwrap();
    if let Some(v) = host.as_slice::<f32>() {
        return v.iter().map(|x| u64::from(x.to_bits())).collect();
    }
    if let Some(v) = host.as_slice::<i32>() {
        return v.iter().map(|x| *x as u64).collect();
    }
    host.as_slice::<f64>().unwrap().iter().map(|x| x.to_bits()).collect()
}

/// Returns numbers whose sum depends on the order.
fn numbers(rank: usize, len: usize, seed: u64) -> Vec<f64> {
    let mut state = (seed ^ (rank as u64) << 32) | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 40) as f64 / 8388608.0 - 1.0) * if state & 64 == 0 { 1e-3 } else { 1e3 }
    };
    (0..len).map(|_| next()).collect()
}

fn leaf(dtype: usize, numbers: &[f64]) -> Leaf {
    Leaf::Host(match dtype {
        0 => HostTensor::vector(numbers.iter().map(|x| *x as f32).collect::<Vec<f32>>()),
        1 => HostTensor::vector(numbers.to_vec()),
        _ => HostTensor::vector(numbers.iter().map(|x| *x as i32).collect::<Vec<i32>>()),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    // Below and above the size from which members work together, odd lengths, several leaves in one call.
    #[test]
    fn every_member_gets_the_bits_of_one_thread(
        world in 1usize..=8,
        lens in prop::collection::vec(prop_oneof![0usize..70, 16_300usize..16_500, 33_000usize..34_000], 1..4),
        dtype in 0usize..3,
        mean: bool,
        packing in prop_oneof![Just(0), 1usize..200_000],
        seed: u64,
    ) {
        let op = if mean { ReduceOp::Mean } else { ReduceOp::Sum };
        let packing = Packing::Bytes(packing);
        let leaves: Vec<Vec<Leaf>> = (0..world)
            .map(|rank| lens.iter().map(|len| leaf(dtype, &numbers(rank, *len, seed ^ *len as u64))).collect())
            .collect();
        let wanted: Vec<Leaf> = (0..lens.len())
            .map(|i| Leaf::reduce(op, &leaves.iter().map(|l| l[i].clone()).collect::<Vec<_>>()).unwrap())
            .collect();
        for got in reduced(op, packing, leaves) {
            let got = got.unwrap();
            prop_assert_eq!(got.len(), wanted.len());
            for (got, wanted) in got.iter().zip(&wanted) {
                prop_assert_eq!(got.dtype()?, wanted.dtype()?);
                prop_assert_eq!(bits(got), bits(wanted));
            }
        }
    }
}

/// Returns rows of a table. Some rows occur several times.
fn rows(dtype: usize, rank: usize, count: usize, table: usize, width: usize, seed: u64) -> Leaf {
    let Leaf::Host(values) = leaf(dtype, &numbers(rank, count * width, seed)) else { panic!("not dense") };
    let indices: Vec<i64> =
        numbers(rank, count, seed ^ 77).iter().map(|x| (x.abs() * 1e6) as i64 % table as i64).collect();
    let values = HostTensor::from_buffer(values.buffer().clone(), [count, width]).unwrap();
    IndexedSlices::new(values, HostTensor::vector(indices), Some(vec![table, width])).unwrap().into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    // SPARSE-1, SPARSE-2. Below and above the size from which members work together, whoever has the many rows, and
    // on both sides of the crossover between sorting and looking at the whole table.
    // INV-7
    #[test]
    fn every_member_gets_the_merged_rows_of_one_thread(
        world in 1usize..=8,
        many in 0usize..8,
        counts in (0usize..200, 3_000usize..4_000),
        table in prop_oneof![1usize..50, 5_000usize..6_000, 900_000usize..1_000_000],
        width in prop_oneof![Just(1usize), Just(7), Just(16)],
        dtype in 0usize..3,
        mean: bool,
        seed: u64,
    ) {
        let op = if mean { ReduceOp::Mean } else { ReduceOp::Sum };
        let count = |rank| if rank == many { counts.1 } else { counts.0 };
        let leaves: Vec<Vec<Leaf>> =
            (0..world).map(|rank| vec![rows(dtype, rank, count(rank), table, width, seed)]).collect();
        let all: Vec<Leaf> = leaves.iter().map(|l| l[0].clone()).collect();
        let wanted = Leaf::reduce(op, &all).unwrap();
        // The result has no more rows than the table.
        prop_assert!(wanted.dims()[0] <= table.min((0..world).map(count).sum()));
        for got in reduced(op, Packing::APART, leaves) {
            let got = got.unwrap();
            prop_assert_eq!(got[0].dtype()?, wanted.dtype()?);
            prop_assert_eq!(bits(&got[0]), bits(&wanted));
        }
    }
}

#[test]
fn members_of_different_shapes_all_get_the_error_even_in_a_joint_reduction() {
    let leaves = vec![vec![leaf(0, &numbers(0, 40_000, 1))], vec![leaf(0, &numbers(1, 40_001, 1))]];
    let errors: Vec<_> =
        reduced(ReduceOp::Sum, Packing::APART, leaves).into_iter().map(Result::unwrap_err).collect();
    assert!(errors[0].contains("replica 1") && errors[0] == errors[1], "{errors:?}");
}
