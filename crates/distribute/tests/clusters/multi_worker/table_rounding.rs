//! Tables whose values are stored in bf16: the same bits for every location and world, and in resumed trainings.

use super::links;
use super::tables::{WORDS, model, train};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::VarBuilder;
use distribute::checkpoint::Checkpoint;
use distribute::nn::{DynamicEmbedding, dynamic_embedding, embedding};
use distribute::optimizer::rules::{Float, Formula, Rule, SlotSpec, Step};
use distribute::optimizer::{Momentum, RowAdagrad, Transform};
use distribute::parameter_server::{DynamicOptions, PartitionStrategy, RowCacheOptions};
use distribute::strategy::{HostedWeights, RowFormat, TableHosts, TableOptions};
use distribute::tensor::{HostTensor, IndexedSlices};
use distribute::variables::Variables;
use distribute::{LocalCluster, MultiWorkerMirroredStrategy, Result, Strategy, prelude::*};
use distribute_testing::watched;

/// The location of tables in a test.
#[derive(Clone, Copy, Debug)]
enum Place {
    Mirrored,
    Workers(PartitionStrategy),
    All,
    Cached,
    Servers(usize),
}

const PLACES: [Place; 7] = [
    Place::Mirrored,
    Place::Workers(PartitionStrategy::Mod),
    Place::Workers(PartitionStrategy::Div),
    Place::All,
    Place::Cached,
    Place::Servers(1),
    Place::Servers(3),
];

const SEED: RowFormat = RowFormat::Bf16 { seed: 7 };

fn on_threads<R: Send>(
    (workers, replicas): (usize, usize),
    place: Place,
    format: RowFormat,
    body: impl Fn(&Strategy) -> Result<R> + Sync,
) -> Vec<R> {
    let builder = MultiWorkerMirroredStrategy::builder().replicas(replicas);
    let of = |hosts: TableHosts| TableOptions { min_bytes: 0, format, ..hosts.into() };
    let builder = match place {
        Place::Mirrored => builder.tables(of(TableHosts::Mirrored)),
        Place::Workers(partition) => builder.tables(TableOptions { partition, ..of(TableHosts::Workers) }),
        Place::All => builder.tables(TableOptions { weights: HostedWeights::All, ..of(TableHosts::Workers) }),
        Place::Cached => {
            let row_cache = Some(RowCacheOptions { bytes: 240, staleness: 0 });
            builder.tables(TableOptions { row_cache, ..of(TableHosts::Workers) })
        }
        Place::Servers(servers) => {
            let cluster = LocalCluster::new(workers, servers).unwrap();
            builder.cluster_resolver(cluster.resolver()).tables(of(TableHosts::Servers))
        }
    };
    builder.on_threads(links(workers, replicas), workers, body).unwrap()
}

fn bits(variables: &Variables, name: &str) -> Result<Vec<u32>> {
    Ok(variables.get(name)?.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
}

fn in_bf16(bits: &[u32]) -> bool {
    bits.iter().all(|bits| bits & 0xffff == 0)
}

// INV-95
#[test]
fn rounded_tables_are_bit_identical_for_every_placement_and_world() {
    fn check<R: Rule>(optimizer: impl Fn(&Variables) -> Result<Optimizer<R>> + Copy + Sync) {
        let body = |strategy: &Strategy| {
            let model = model(strategy)?;
            assert!(in_bf16(&bits(&model.variables, "words.weight")?));
            train(strategy, &model, &optimizer(&model.variables)?, 0..5)?;
            for name in ["words.weight", "bags.weight"] {
                assert!(in_bf16(&bits(&model.variables, name)?), "{name}");
            }
            assert!(!in_bf16(&bits(&model.variables, "out.weight")?));
            model.variables.sha256()
        };
        let expected = &on_threads((1, 4), Place::Mirrored, SEED, body)[0];
        for (at, place) in PLACES.into_iter().enumerate() {
            let worlds = [(1, 4), (2, 2), (4, 1)];
            for world in worlds.into_iter().enumerate().filter(|(i, _)| (i + at) % 3 != 0) {
                let all = on_threads(world.1, place, SEED, body);
                assert!(all.iter().all(|sum| sum == expected), "{place:?} {world:?}");
            }
        }
        let other = &on_threads((1, 4), Place::Mirrored, RowFormat::Bf16 { seed: 8 }, body)[0];
        assert_ne!(other, expected);
    }
    watched(|| {
        check(|variables| Adam::new(variables, 0.05));
        check(|variables| {
            RowAdagrad::new(variables, 0.05)?.after_reduce(Transform::clip_by_global_norm(0.1))
        });
        check(|variables| Momentum::new(variables, 0.05));
    });
}

/// A rule of gradient descent that is code of the program.
#[derive(Clone, Debug)]
struct Mine;

impl Formula for Mine {
    type Slots<T: Copy> = [T; 0];

    fn label(&self) -> &'static str {
        "mine"
    }

    fn layout(&self) -> [SlotSpec; 0] {
        []
    }

    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 0]) -> (F, [F; 0]) {
        let rate = F::from_f64(at.learning_rate());
        move |var, grad, []| (var - rate * grad, [])
    }
}

/// Checks that mirrored tables are rounded in the same way if code of the program updates them, or workers update
/// shards of them.
// INV-95
#[test]
fn mirrored_tables_are_rounded_by_every_backend() {
    fn body<R: Rule>(
        strategy: &Strategy,
        optimizer: impl Fn(&Variables) -> Result<Optimizer<R>>,
    ) -> Result<String> {
        let model = model(strategy)?;
        train(strategy, &model, &optimizer(&model.variables)?, 0..4)?;
        model.variables.sha256()
    }
    watched(|| {
        let run = |body: &(dyn Fn(&Strategy) -> Result<String> + Sync)| {
            let all = on_threads((2, 2), Place::Mirrored, SEED, body);
            assert_eq!(all[0], all[1]);
            all[0].clone()
        };
        let expected = run(&|strategy| body(strategy, |variables| Sgd::new(variables, 0.05)));
        let mine = run(&|strategy| body(strategy, |variables| Optimizer::with_rule(Mine, variables, 0.05)));
        assert_eq!(mine, expected);
        let sharded = run(&|strategy| body(strategy, |variables| Sgd::new(variables, 0.05)?.shard_state()));
        assert_eq!(sharded, expected);
    });
}

#[test]
fn averages_of_rounded_tables_are_refused() {
    watched(|| {
        for place in [Place::Mirrored, Place::Workers(PartitionStrategy::Div), Place::Servers(1)] {
            let errors = on_threads((2, 1), place, SEED, |strategy| {
                Ok(Sgd::new(&model(strategy)?.variables, 0.05)?.with_ema(0.9).map(drop).unwrap_err())
            });
            for error in errors {
                assert!(matches!(error, distribute::Error::NotSupported { .. }), "{error}");
            }
        }
    });
}

/// Checks that a checkpoint can be restored with any location of tables. Values that were not rounded are rounded to
/// the nearest.
// INV-95
#[test]
fn a_training_with_rounded_tables_is_resumed_anywhere_with_the_same_bits() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let saved = |strategy: &Strategy, name: &str| {
            let model = model(strategy)?;
            let optimizer = Adam::new(&model.variables, 0.05)?;
            let state = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
            train(strategy, &model, &optimizer, 0..3)?;
            state.save(folder.path().join(name))?;
            train(strategy, &model, &optimizer, 3..6)?;
            model.variables.sha256()
        };
        let resumed = |strategy: &Strategy, name: &str| {
            let model = model(strategy)?;
            let optimizer = Adam::new(&model.variables, 0.05)?;
            let state = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
            state.restore(folder.path().join(name))?;
            train(strategy, &model, &optimizer, 3..6)?;
            model.variables.sha256()
        };
        let places = [Place::Mirrored, Place::Workers(PartitionStrategy::Mod), Place::Servers(2), Place::All];
        let mut sums = Vec::new();
        for place in places {
            let name = format!("{place:?}");
            sums.extend(on_threads((2, 1), place, SEED, |strategy| saved(strategy, &name)));
        }
        for (from, to) in places.into_iter().zip(places.into_iter().cycle().skip(1)) {
            let name = format!("{from:?}");
            sums.extend(on_threads((1, 2), to, SEED, |strategy| resumed(strategy, &name)));
            sums.extend(on_threads((2, 1), from, SEED, |strategy| resumed(strategy, &name)));
        }
        assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
        // From a training without rounding.
        let full = |strategy: &Strategy| saved(strategy, "full");
        let sum = &on_threads((2, 1), Place::Mirrored, RowFormat::Full, full)[0];
        assert_ne!(*sum, sums[0]);
        let begun = |place| on_threads((2, 1), place, SEED, |strategy| resumed(strategy, "full"));
        let sums: Vec<_> = places.into_iter().flat_map(begun).collect();
        assert!(sums.iter().all(|other| *other == sums[0] && other != sum), "{sums:?}");
    });
}

/// Checks that values that are assigned, added and scattered are rounded to the nearest, like initial values.
// INV-95
#[test]
fn values_that_are_written_are_rounded_to_the_nearest_for_every_placement() {
    let body = |strategy: &Strategy| {
        let model = model(strategy)?;
        let words = model.variables.variable("words.weight")?;
        let third = Tensor::full(1f32 / 3., (WORDS, 3), &Device::Cpu)?;
        words.assign_add(third.clone())?;
        let rows = HostTensor::new(vec![0.1f32; 9], [3, 3])?;
        let ids = HostTensor::vector(vec![5i64, 56, 5]);
        words.scatter_add(IndexedSlices::new(rows, ids, None)?)?;
        let written = bits(&model.variables, "words.weight")?;
        model.variables.set("bags.weight", &third)?;
        Ok((written, bits(&model.variables, "bags.weight")?))
    };
    watched(move || {
        let initial = on_threads((1, 1), Place::Mirrored, RowFormat::Full, |strategy| {
            bits(&model(strategy)?.variables, "words.weight")
        });
        let nearest = |x: f32| {
            let bits = x.to_bits();
            f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
        };
        let mut expected: Vec<f32> =
            initial[0].iter().map(|bits| nearest(nearest(f32::from_bits(*bits)) + 1. / 3.)).collect();
        for column in 0..3 {
            for (row, times) in [(5, 2), (56, 1)] {
                let value = &mut expected[3 * row + column];
                *value = nearest((0..times).fold(*value, |sum, _| sum + 0.1));
            }
        }
        let expected: Vec<u32> = expected.into_iter().map(f32::to_bits).collect();
        for place in PLACES {
            for (words, bags) in on_threads((2, 1), place, SEED, body) {
                assert_eq!(words, expected, "{place:?}");
                assert_eq!(bags, vec![nearest(1. / 3.).to_bits(); 3 * WORDS], "{place:?}");
            }
        }
    });
}

// INV-95
#[test]
fn rows_of_ids_are_rounded_equally_on_workers_and_servers() {
    let body = |strategy: &Strategy| {
        let model = strategy.replicate_seeded(5, |vb: VarBuilder| {
            dynamic_embedding(3, DynamicOptions::default(), vb.pp("users"))
        })?;
        let optimizer = RowAdagrad::new(&model.variables, 0.1)?;
        for step in 0..4i64 {
            strategy.run(&model, |ctx, users: &DynamicEmbedding| {
                let replica = ctx.replica_id_in_sync_group() as i64;
                let ids = Tensor::new(&[-5 - step, 1 << 40, replica << 33, replica * step], &Device::Cpu)?;
                optimizer.minimize(ctx, users.forward(&ids)?.sqr()?.mean_all()?, 4)
            })?;
        }
        let rows = model.variables.variable("users.weight")?.dynamic_rows()?;
        let bits = |values: &HostTensor| {
            values.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert!(in_bf16(&bits(&rows.values)) && !in_bf16(&bits(&rows.slots[0].1)));
        Ok((rows.ids, bits(&rows.values), bits(&rows.slots[0].1)))
    };
    watched(move || {
        let workers = Place::Workers(PartitionStrategy::Mod);
        let expected = &on_threads((1, 4), workers, SEED, body)[0];
        for (world, place) in [((4, 1), workers), ((2, 2), Place::Servers(1)), ((1, 4), Place::Servers(3))] {
            assert!(on_threads(world, place, SEED, body).iter().all(|found| found == expected), "{place:?}");
        }
    });
}

/// Checks that rounded tables of f32 take half of the memory. Smaller tables, tables of f64 and other weights do not
/// change.
#[test]
fn rounded_tables_take_half_of_the_memory() {
    watched(|| {
        for (format, bytes) in [(RowFormat::Full, 4), (SEED, 2)] {
            let options = TableOptions { format, min_bytes: 1000, ..TableHosts::Workers.into() };
            let builder = MultiWorkerMirroredStrategy::builder().tables(options);
            let all = builder.on_threads(links(2, 1), 2, |strategy| {
                let model = strategy.replicate(|vb: VarBuilder| {
                    let wide = vb.to_dtype(DType::F64);
                    distribute::Ok((
                        embedding(500, 4, vb.pp("large"))?,
                        embedding(50, 4, vb.pp("small"))?,
                        embedding(500, 4, wide.pp("wide"))?,
                    ))
                })?;
                assert!(!in_bf16(&bits(&model.variables, "small.weight")?));
                let ids = Tensor::new(&[3u32, 499], &Device::Cpu)?;
                let read = strategy.run(&model, |_, (large, _, wide)| {
                    assert_eq!(wide.forward(&ids)?.dtype(), DType::F64);
                    Ok(large.forward(&ids)?.dtype())
                })?;
                assert_eq!(read.values()[0], DType::F32);
                let usage = strategy.extended().parameter_servers().unwrap().usage()?;
                Ok(usage.iter().map(|worker| worker.bytes).sum::<u64>())
            });
            assert_eq!(all.unwrap(), [500 * 4 * (bytes + 8); 2]);
        }
    });
}
