//! Sums in all orders and wire formats.

use crate::conformance::{on_workers, several_workers, vector};
use bytes::Bytes;
use distribute_collective::group::{Order, Real, SumOptions, Wire, numbers};
use distribute_tensor::kernel::fold_scaled;
use half::{bf16, f16};
use std::collections::HashSet;

/// Returns options of sums with each order, each type on the wire, and packs of two sizes.
fn ways() -> impl Iterator<Item = SumOptions> {
    [Order::Exact, Order::Fast].into_iter().flat_map(|order| {
        [Wire::Full, Wire::F16, Wire::Bf16].into_iter().flat_map(move |wire| {
            [0, 10_000].map(|bytes_per_pack| SumOptions { order, wire, bytes_per_pack })
        })
    })
}

/// Returns a value as it is received.
fn sent(wire: Wire, x: f32) -> f32 {
    match wire {
        Wire::Full => x,
        Wire::F16 => f16::from_f32(x).to_f32(),
        Wire::Bf16 => bf16::from_f32(x).to_f32(),
    }
}

/// Returns the largest possible difference from the exact sum. Sums are rounded when they are added and when they are
/// sent.
fn tolerance(options: &SumOptions, bytes: usize, (workers, replicas): (usize, usize), sizes: f64) -> f64 {
    let (unit, least) = match options.wire {
        Wire::Full => (0., 0.),
        Wire::F16 => (2f64.powi(-11), 2f64.powi(-25)),
        Wire::Bf16 => (2f64.powi(-8), 0.),
    };
    let roundings = options.order.algorithm(bytes, workers).map_or(2, |by| by.roundings(workers)) as f64;
    let added = (workers * replicas + 1) as f64 * 2f64.powi(-24);
    // Terms of a higher order, and the underflow of each vector and partial sum.
    1.05 * (roundings * unit + added) * sizes + (workers * replicas) as f64 * (roundings + 1.) * least
}

/// Returns the result of each worker for vectors that are summed with all options.
fn summed_in_all_ways<F: Real>(world: (usize, usize), all: Vec<Vec<F>>, weights: Vec<F>) -> Vec<Vec<Vec<F>>> {
    on_workers(world, move |mut calling, replicas| {
        let mine = replicas.map(|replica| {
            let bytes: &[u8] = bytemuck::cast_slice(&all[replica]);
            let mut buffer = calling.buffers().take(bytes.len());
            buffer.bytes_mut().copy_from_slice(bytes);
            buffer.freeze()
        });
        let mine: Vec<_> = mine.collect();
        let sum = |options| {
            numbers::<F>(&calling.all_reduce_vectors(&mine, &weights, &options).unwrap().concat())
                .into_owned()
        };
        ways().map(sum).collect()
    })
}

// INV-7
#[test]
fn sums_equal_those_of_the_tree_or_are_close_in_all_orders_and_wire_formats() {
    let mut algorithms = HashSet::new();
    for world in several_workers() {
        let count = world.0 * world.1;
        // The longest vectors are for the ring. With many replicas, checking them takes too long.
        for len in [0, 1, 63, 1001, 40_000, 70_001].into_iter().filter(|len| len * count < 450_000) {
            let weights: Vec<f32> = (0..count).map(|replica| 1. / (replica + 1) as f32).collect();
            // Small enough for f16.
            let all: Vec<Vec<f32>> = (0..count)
                .map(|replica| vector(replica, len).into_iter().map(|x| x / 64.).collect())
                .collect();
            let got = summed_in_all_ways(world, all.clone(), weights.clone());
            let sum = |at: usize| {
                let terms = || all.iter().zip(&weights).map(|(all, w)| f64::from(all[at]) * f64::from(*w));
                (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>())
            };
            let sums: Vec<_> = (0..len).map(sum).collect();
            for (way, options) in ways().enumerate() {
                let what = format!("{len} numbers {options} over {world:?}");
                let first = &got[0][way];
                for other in &got {
                    assert!(
                        other[way].iter().map(|x| x.to_bits()).eq(first.iter().map(|x| x.to_bits())),
                        "{what}"
                    );
                }
                assert_eq!(first.len(), len, "{what}");
                if options.order == Order::Exact {
                    let received: Vec<Vec<f32>> =
                        all.iter().map(|all| all.iter().map(|x| sent(options.wire, *x)).collect()).collect();
                    let mut expected = vec![0f32; len];
                    fold_scaled(
                        &received.iter().map(Vec::as_slice).collect::<Vec<_>>(),
                        &weights,
                        &mut expected,
                    );
                    let expected = expected.iter().map(|x| sent(options.wire, *x).to_bits());
                    assert!(first.iter().map(|x| x.to_bits()).eq(expected), "{what}");
                }
                let pack = if options.bytes_per_pack == 0 { 4 * len } else { (4 * len).min(9984) };
                algorithms.extend(options.order.algorithm(pack, world.0));
                for (at, (got, (sum, sizes))) in first.iter().zip(&sums).enumerate() {
                    let (error, most) =
                        ((f64::from(*got) - sum).abs(), tolerance(&options, pack, world, *sizes));
                    assert!(error <= most, "{what}: {at} is {got}, not {sum}, by more than {most}");
                }
            }
        }
    }
    assert_eq!(algorithms.len(), 3, "{algorithms:?}");
}

#[test]
fn numbers_of_64_bits_are_summed_on_all_paths() {
    for (world, len) in [((3, 1), 1001), ((2, 3), 40_000)] {
        let all: Vec<Vec<f64>> = (0..world.0 * world.1)
            .map(|replica| vector(replica, len).into_iter().map(|x| f64::from(x) / 64.3).collect())
            .collect();
        let weights = vec![1f64; all.len()];
        let got = summed_in_all_ways(world, all.clone(), weights);
        for (way, options) in ways().enumerate() {
            for at in 0..len {
                let terms = || all.iter().map(|all| all[at]);
                let (sum, sizes) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                let pack = if options.bytes_per_pack == 0 { 8 * len } else { 9728 };
                let error = (got[0][way][at] - sum).abs();
                let most = if options.wire == Wire::Full {
                    1e-14 * sizes
                } else {
                    tolerance(&options, pack, world, sizes)
                };
                assert!(error <= most, "{options} over {world:?}: {at} is {error} away");
            }
            assert!(got.iter().all(|other| other[way] == got[0][way]), "{options} over {world:?}");
        }
    }
}

/// Sums vectors that are larger than the buffers of sockets.
#[test]
fn large_vectors_go_both_ways_at_once() {
    for world in [(2, 1), (3, 1), (4, 1)] {
        let all = vec![vec![1f32; 2 << 20]; world.0];
        let got = on_workers(world, move |mut calling, replicas| {
            let mine = Bytes::copy_from_slice(bytemuck::cast_slice(&all[replicas.start]));
            let options = SumOptions { order: Order::Fast, ..Default::default() };
            let sum = calling.all_reduce_vectors(&[mine], &vec![1f32; all.len()], &options).unwrap();
            sum.iter().all(|piece| numbers::<f32>(piece).iter().all(|x| *x == all.len() as f32))
        });
        assert!(got.into_iter().all(|right| right), "{world:?}");
    }
}

// INV-25
#[test]
fn workers_with_different_reductions_get_an_error_before_any_sum() {
    let others = |one: SumOptions, another: SumOptions, lens: [usize; 2]| {
        let errors = on_workers((3, 1), move |mut calling, replicas| {
            let (options, len) = if replicas.start == 1 { (another, lens[1]) } else { (one, lens[0]) };
            calling
                .all_reduce_vectors(&[vec![0; 4 * len].into()], &[1f32; 3], &options)
                .unwrap_err()
                .to_string()
        });
        assert!(errors.iter().all(|text| *text == errors[0]), "{errors:#?}");
        errors.into_iter().next().unwrap()
    };
    let f16 = SumOptions { wire: Wire::F16, ..Default::default() };
    let text = others(f16, SumOptions { wire: Wire::Bf16, ..f16 }, [100; 2]);
    assert!(text.contains("sent as f16") && text.contains("sent as bf16"), "{text}");
    let text = others(f16, SumOptions { bytes_per_pack: 64, ..f16 }, [100; 2]);
    assert!(text.contains("in packs of 64 bytes"), "{text}");
    let fast = SumOptions { order: Order::Fast, ..Default::default() };
    let text = others(fast, SumOptions::default(), [100; 2]);
    assert!(text.contains("in the fast order, tree") && text.contains("its ranges"), "{text}");
    let text = others(fast, fast, [100, 101]);
    assert!(text.contains("400 bytes") && text.contains("404 bytes"), "{text}");
}
