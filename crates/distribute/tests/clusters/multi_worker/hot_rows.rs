//! Copies of the hottest rows on each worker: the same bits as without, the usage of the copies, and the reads of
//! shards.

use super::links;
use super::tables::{self, assert_all_train_equally};
use super::training::{Micro, Plan};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::VarBuilder;
use distribute::checkpoint::Checkpoint;
use distribute::nn::{
    DynamicEmbedding, Embedding, Linear, dynamic_embedding, embedding, linear, prefetch_rows,
};
use distribute::optimizer::Adagrad;
use distribute::optimizer::rules::{self, Rule};
use distribute::parameter_server::{
    DynamicOptions, HotRowUsage, HotRows, PartitionStrategy, RowCacheOptions,
};
use distribute::strategy::{HostedWeights, Links, RowFormat, TableHosts, TableOptions};
use distribute::{Error, LocalCluster, Result, Strategy, Variable, prelude::*};
use distribute_testing::watched;
use std::path::Path;
use std::time::Duration;

const WORDS: usize = 57;

/// The number of replicas of all workers together.
const REPLICAS: usize = 6;

/// The location of tables: on workers, or on the given number of servers.
#[derive(Clone, Copy, Debug)]
enum Hosts {
    Workers,
    Servers(usize),
}

fn on_threads<R: Send>(
    workers: usize,
    (hosts, options): (Hosts, TableOptions),
    hot_rows: Option<HotRows>,
    worker: impl Fn(&Strategy) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let replicas = REPLICAS / workers;
    let builder = MultiWorkerMirroredStrategy::builder().replicas(replicas);
    let builder = match hosts {
        Hosts::Workers => builder.tables(TableOptions { hosts: TableHosts::Workers, hot_rows, ..options }),
        Hosts::Servers(servers) => {
            let tables = TableOptions { hosts: TableHosts::Servers, hot_rows, ..options };
            builder.cluster_resolver(LocalCluster::new(workers, servers)?.resolver()).tables(tables)
        }
    };
    builder.on_threads(links(workers, replicas), workers, worker)
}

fn options() -> TableOptions {
    TableOptions { min_bytes: 0, ..TableHosts::Workers.into() }
}

fn usage(strategy: &Strategy) -> HotRowUsage {
    strategy.extended().parameter_servers().unwrap().hot_row_usage()
}

/// A model of a table, of which some rows are in every batch, and a layer.
struct Model {
    words: Embedding,
    out: Linear,
}

impl Model {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        Ok(Self { words: embedding(WORDS, 3, vb.pp("words"))?, out: linear(3, 2, vb.pp("out"))? })
    }

    /// Returns the ids of a replica: the hot ones, ids of the step, and ids of the replica. The hot ones change after
    /// step 40.
    fn ids(step: usize, replica: usize) -> Result<Tensor> {
        let hot = if step < 40 { [0, 7, 8] } else { [1, 7, 50] };
        let ids: Vec<u32> =
            hot.into_iter().chain([step, step * 5 + 11 * replica, 7]).map(|id| (id % WORDS) as u32).collect();
        Ok(Tensor::from_vec(ids, (2, 3), &Device::Cpu)?)
    }

    fn loss(&self, step: usize, replica: usize) -> Result<Tensor> {
        let x = self.words.forward(&Self::ids(step, replica)?)?.mean(1)?;
        Ok(self.out.forward(&x)?.tanh()?.sqr()?.mean_all()?)
    }
}

fn model(strategy: &Strategy) -> Result<Replicated<Model>> {
    strategy.replicate_seeded(3, |vb: VarBuilder| Model::new(vb))
}

fn train<R: Rule>(
    strategy: &Strategy,
    model: &Replicated<Model>,
    optimizer: &Optimizer<R>,
    steps: std::ops::Range<usize>,
) -> Result<()> {
    for step in steps {
        if step % 3 == 0 {
            let words = &model.models().values()[0].words;
            prefetch_rows(&[(words, &Model::ids(step + 1, 0)?)])?;
        }
        strategy.run(model, |ctx, model| {
            optimizer.minimize(ctx, model.loss(step, ctx.replica_id_in_sync_group())?, 2)
        })?;
    }
    Ok(())
}

fn named() -> HotRows {
    // No variable has the second name.
    HotRows::named([("words.weight", vec![7, 0, 3, 56]), ("none", vec![1])])
}

/// Checks that copies of named rows change no weights, also with workers without rows, micro-batches, clipping, and
/// rules that change all rows.
// INV-110
#[test]
fn weights_are_bit_identical_with_named_rows() {
    let plan = || Plan { hot: true, ..tables::plan() };
    assert_all_train_equally(plan(), rules::Adagrad::default());
    assert_all_train_equally(Plan { micro: Micro::Uneven, clip: true, ..plan() }, rules::Adam::default());
    assert_all_train_equally(Plan { rows: 9, batch: 8, ..plan() }, rules::Momentum::default());
    assert_all_train_equally(
        Plan { dtype: DType::F64, prefetch: true, ..plan() },
        rules::RowAdagrad::default(),
    );
}

/// Checks that copies change no weights while other rows become hot.
// INV-110
#[test]
fn weights_are_bit_identical_with_measured_rows() {
    watched(|| {
        let rule = rules::Adagrad::default();
        let trained = |strategy: &Strategy| {
            let model = model(strategy)?;
            let optimizer = Optimizer::with_rule(rule, &model.variables, 0.05)?;
            train(strategy, &model, &optimizer, 0..80)?;
            let used = strategy.extended().parameter_servers().map(|servers| servers.hot_row_usage());
            Ok((model.variables.sha256()?, used.unwrap_or_default()))
        };
        let (expected, _) = trained(&MirroredStrategy::cpus(REPLICAS).unwrap()).unwrap();
        let div = TableOptions { partition: PartitionStrategy::Div, ..options() };
        let all = TableOptions { weights: HostedWeights::All, ..options() };
        let cached = TableOptions { row_cache: Some(RowCacheOptions::default()), ..options() };
        // The last hot rows differ from the first ones. Three rows are in enough gradients.
        for (workers, hosts, options, hot, copies) in [
            (1, Hosts::Workers, options(), 5, 0),
            (2, Hosts::Workers, options(), 5, 3),
            (2, Hosts::Servers(3), options(), 2, 2),
            (3, Hosts::Workers, div, 2, 2),
            (2, Hosts::Servers(1), all, 3, 3),
            (3, Hosts::Workers, cached, 5, 3),
        ] {
            let place = (hosts, options.clone());
            let hot = HotRows::measured(hot);
            for (sum, used) in on_threads(workers, place, Some(hot.clone()), trained).unwrap() {
                assert_eq!(sum, expected, "{workers} workers, {hosts:?}, {options:?}, {hot:?}");
                assert_eq!(used.hits > 50, workers > 1, "{workers} workers, {hosts:?}, {hot:?}: {used:?}");
                assert_eq!(used.rows, copies, "{workers} workers, {hosts:?}, {hot:?}");
            }
        }
    });
}

/// Trains a table of ids, and returns its rows.
fn train_ids(strategy: &Strategy, options: DynamicOptions) -> Result<(Vec<i64>, Vec<f32>)> {
    let model =
        strategy.replicate_seeded(5, move |vb: VarBuilder| dynamic_embedding(3, options, vb.pp("users")))?;
    let optimizer = Optimizer::with_rule(rules::Adagrad::default(), &model.variables, 0.1)?;
    for step in 0..70 {
        strategy.run(&model, |ctx, users: &DynamicEmbedding| {
            let replica = ctx.replica_id_in_sync_group() as i64;
            // Those that are seldom used from step 30 on are evicted while they are hot, and looked up again.
            let often = if step < 30 { [-5, 1 << 40] } else { [9, 1 << 41] };
            let seldom = if step % 8 == 7 { -5 } else { step };
            let ids = [&often[..], &[step * 3 + replica, replica << 33, seldom]].concat();
            let ids = Tensor::from_vec(ids, 5, &Device::Cpu)?;
            optimizer.minimize(ctx, users.forward(&ids)?.sqr()?.mean_all()?, 5)
        })?;
    }
    let rows = model.variables.variable("users.weight")?.dynamic_rows()?;
    Ok((rows.ids, rows.values.to_vec()?))
}

// INV-110
#[test]
fn tables_of_ids_are_the_same_with_hot_rows_also_if_these_are_evicted() {
    watched(|| {
        let few = DynamicOptions { max_rows: Some(12), max_age: Some(3), ..DynamicOptions::default() };
        for (workers, hosts, format) in [
            (2, Hosts::Workers, RowFormat::Full),
            (3, Hosts::Servers(2), RowFormat::Full),
            (3, Hosts::Workers, RowFormat::Bf16 { seed: 7 }),
        ] {
            let place = || (hosts, TableOptions { format, ..options() });
            for of_ids in [DynamicOptions::default(), few] {
                let expected = on_threads(workers, place(), None, |strategy| train_ids(strategy, of_ids));
                let expected = expected.unwrap().swap_remove(0);
                let named = HotRows::named([("users.weight", [-5, 9, 1 << 40, 77])]);
                for hot in [named, HotRows::measured(6)] {
                    let found = on_threads(workers, place(), Some(hot), |strategy| {
                        Ok((train_ids(strategy, of_ids)?, usage(strategy)))
                    });
                    let found = found.unwrap();
                    assert!(found.iter().any(|(_, used)| used.sent_rows > 0 && used.sent_bytes > 0));
                    for (rows, used) in found {
                        assert_eq!(rows, expected, "{workers} workers, {hosts:?}");
                        assert!(used.hits > 50, "{used:?}");
                    }
                }
            }
        }
    });
}

/// Checks that writes, failed steps, evaluations and restored checkpoints leave no old copies, and that two models
/// whose variables have the same names have copies of their own.
// INV-110
#[test]
fn copies_are_never_older_than_the_table() {
    fn body(strategy: &Strategy, path: &Path) -> Result<Vec<String>> {
        let (first, second) = (model(strategy)?, model(strategy)?);
        let [one, other] = [&first, &second].map(|model| Adagrad::new(&model.variables, 0.05));
        let (one, other) = (one?, other?);
        let mut sums = Vec::new();
        let sum = |models: &[&Replicated<Model>]| -> Result<String> {
            models.iter().map(|model| model.variables.sha256()).collect()
        };
        for step in 0..20 {
            train(strategy, &first, &one, step..step + 1)?;
            train(strategy, &second, &other, 30 - step..31 - step)?;
        }
        sums.push(sum(&[&first, &second])?);
        let state = Checkpoint::new().part("model", &first.variables).part("optimizer", &one);
        state.save(path)?;
        train(strategy, &first, &one, 20..25)?;
        let words = first.variables.variable("words.weight")?;
        words.assign_add(Tensor::ones((WORDS, 3), DType::F32, &Device::Cpu)?)?;
        let evaluate = |step| {
            let losses = strategy.run(&first, |_, model| Ok(model.loss(step, 0)?.to_scalar::<f32>()?))?;
            distribute::Ok(losses.values()[0])
        };
        let mut losses = vec![evaluate(25)?];
        train(strategy, &first, &one, 25..27)?;
        losses.push(evaluate(27)?);
        sums.push(sum(&[&first, &second])?);
        // One worker fails before the gradients are exchanged.
        let failed = strategy.run(&first, |ctx, model| match ctx.replica_id_in_sync_group() {
            0 => Err(Error::other("no")),
            replica => one.minimize(ctx, model.loss(27, replica)?, 2),
        });
        assert!(failed.is_err());
        train(strategy, &first, &one, 27..29)?;
        sums.push(sum(&[&first, &second])?);
        // The tables refuse the rule of another optimizer, after the step has begun.
        let other_rule = Sgd::new(&first.variables, 0.05)?;
        let refused = strategy.run(&first, |ctx, model| {
            other_rule.minimize(ctx, model.loss(29, ctx.replica_id_in_sync_group())?, 2)
        });
        let refused = refused.map(drop).unwrap_err().to_string();
        assert!(refused.contains("has ended while tables were being updated"), "{refused}");
        state.restore(path)?;
        losses.push(evaluate(20)?);
        train(strategy, &first, &one, 20..23)?;
        sums.push(sum(&[&first, &second])?);
        drop((second, other));
        train(strategy, &first, &one, 23..40)?;
        sums.push(sum(&[&first])?);
        sums.push(format!("{losses:?}"));
        Ok(sums)
    }
    watched(|| {
        for (workers, hosts) in [(2, Hosts::Workers), (3, Hosts::Servers(2)), (3, Hosts::Workers)] {
            let folder = tempfile::tempdir().unwrap();
            let of = |hot: Option<HotRows>| {
                let path = folder.path().join(format!("{}", hot.is_some()));
                let all = on_threads(workers, (hosts, options()), hot, |strategy| {
                    Ok((body(strategy, &path)?, usage(strategy)))
                });
                std::fs::remove_dir_all(path).unwrap();
                all.unwrap()
            };
            let without = of(None);
            for hot in [named(), HotRows::measured(4)] {
                for ((expected, unused), (sums, used)) in without.iter().zip(of(Some(hot))) {
                    assert_eq!(sums, *expected, "{workers} workers, {hosts:?}");
                    assert_eq!(*unused, HotRowUsage::default());
                    assert!(used.hits > 100, "{used:?}");
                }
            }
        }
    });
}

/// Checks a write through a variable that combines others: the copies of these are discarded.
// INV-110
#[test]
fn a_write_to_a_combined_variable_discards_the_copies_of_its_parts() {
    watched(|| {
        let options = || TableOptions { weights: HostedWeights::All, ..TableHosts::Workers.into() };
        let of = |hot| {
            let all = on_threads(2, (Hosts::Workers, options()), hot, |strategy| {
                let model = model(strategy)?;
                let optimizer = Adagrad::new(&model.variables, 0.05)?;
                train(strategy, &model, &optimizer, 0..3)?;
                let words = model.variables.variable("words.weight")?.clone();
                let both = Variable::of_shards("both", &[words], PartitionStrategy::Div)?;
                both.assign_add(Tensor::ones((WORDS, 3), DType::F32, &Device::Cpu)?)?;
                train(strategy, &model, &optimizer, 3..6)?;
                Ok((model.variables.sha256()?, usage(strategy).hits))
            });
            all.unwrap()
        };
        let (without, with) = (of(None), of(Some(named())));
        assert!(without.iter().zip(&with).all(|((expected, _), (sum, hits))| sum == expected && *hits > 0));
    });
}

/// Trains from the last checkpoint, saves every fifth step, and loses worker 1 after step `lost`.
fn train_saved(strategy: &Strategy, folder: &Path, lost: Option<usize>) -> Result<(String, HotRowUsage)> {
    let model = model(strategy)?;
    let optimizer = Adagrad::new(&model.variables, 0.05)?;
    let state = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
    std::fs::create_dir_all(folder).unwrap();
    let saved =
        distribute_testing::names_in(folder).into_iter().filter_map(|name| name.parse::<usize>().ok());
    let first = saved.max();
    if let Some(last) = first {
        state.restore(folder.join(last.to_string()))?;
    }
    for step in first.unwrap_or(0)..60 {
        train(strategy, &model, &optimizer, step..step + 1)?;
        if (step + 1) % 5 == 0 {
            state.save(folder.join((step + 1).to_string()))?;
        }
        if lost == Some(step) && strategy.world().worker() == 1 {
            return Err(Error::other("this worker is lost"));
        }
    }
    Ok((model.variables.sha256()?, usage(strategy)))
}

/// Checks the loss of a worker that stores hot rows: the others get an error, and the next job, which resumes from the
/// last checkpoint, has the same weights.
// INV-103, INV-110
#[test]
fn a_job_with_hot_rows_that_has_lost_a_worker_continues_with_the_same_weights() {
    watched(|| {
        for (workers, hosts) in [(2, Hosts::Workers), (3, Hosts::Workers), (2, Hosts::Servers(2))] {
            let folder = tempfile::tempdir().unwrap();
            let job = |hot, folder: &Path, lost| {
                on_threads(workers, (hosts, options()), hot, |strategy| train_saved(strategy, folder, lost))
            };
            let expected = job(None, &folder.path().join("undisturbed"), None).unwrap();
            for (lost, hot) in [(3, named()), (22, HotRows::measured(3)), (33, HotRows::measured(3))] {
                let disturbed = folder.path().join(lost.to_string());
                let error = job(Some(hot.clone()), &disturbed, Some(lost)).unwrap_err().to_string();
                assert!(error.contains("lost"), "{error}");
                for ((sum, used), (expected, _)) in
                    job(Some(hot), &disturbed, None).unwrap().iter().zip(&expected)
                {
                    assert_eq!(sum, expected, "{workers} workers, {hosts:?}, step {lost}");
                    assert!(used.hits > 0, "{used:?}");
                }
            }
        }
    });
}

/// Checks that hot rows are not read from their shards, and that all processes see the reads of each shard.
#[test]
fn reads_of_shards_are_counted_and_hot_rows_are_not_read() {
    fn body(strategy: &Strategy) -> Result<Vec<u64>> {
        let words = strategy.replicate(|vb: VarBuilder| embedding(WORDS, 4, vb.pp("words")))?;
        let optimizer = Sgd::new(&words.variables, 0.05)?;
        for step in 0..20u32 {
            // Two rows of the first shard and one of the second.
            let ids = Tensor::new(&[0u32, 8, 1 + step * 2 % 20], &Device::Cpu)?;
            strategy.run(&words, |ctx, words: &Embedding| {
                optimizer.minimize(ctx, words.forward(&ids)?.sqr()?.mean_all()?, 3)
            })?;
        }
        // All reads before any count.
        strategy.run((), |ctx, ()| ctx.all_reduce(distribute::ReduceOp::Sum, 1f32))?;
        let servers = strategy.extended().parameter_servers().unwrap();
        let (placement, _) = servers.placement_and_usage_within(Duration::from_secs(60));
        let shards = placement.of("words.weight").unwrap();
        assert!(placement.to_string().contains("rows read"), "{placement}");
        let reads: Vec<_> = shards.iter().map(|shard| shard.reads.unwrap()).collect();
        assert!(reads.iter().all(|reads| reads.bytes == 16 * reads.rows));
        Ok(reads.iter().map(|reads| reads.rows).collect())
    }
    watched(|| {
        let of = |hot| {
            let mut all = on_threads(2, (Hosts::Workers, options()), hot, body).unwrap();
            assert_eq!(all[0], all[1]);
            all.swap_remove(0)
        };
        // Each of six replicas.
        assert_eq!(of(None), [20 * 2 * 6, 20 * 6]);
        // The first step reads them, and in each step one worker does for all.
        assert_eq!(of(Some(HotRows::named([("words.weight", [0, 8])]))), [2 * 6 + 20 * 2, 20 * 6]);
    });
}

#[test]
fn hot_rows_of_mirrored_tables_and_rows_that_do_not_exist_are_refused() {
    watched(|| {
        let hot = || Some(HotRows::measured(5));
        let mirrored = TableOptions { hot_rows: hot(), ..TableHosts::Mirrored.into() };
        let builder = MultiWorkerMirroredStrategy::builder().tables(mirrored);
        let error = builder.on_threads(Links::Memory, 1, |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("hot_rows are for tables on workers or servers"), "{error}");
        let named = Some(HotRows::named([("words.weight", [0, WORDS as i64])]));
        // Also by a single worker, which has no copies.
        for workers in [1, 2] {
            let place = (Hosts::Workers, options());
            let error = on_threads(workers, place, named.clone(), |strategy| model(strategy).map(drop));
            let error = error.unwrap_err().to_string();
            assert!(error.contains("hot_rows names row 57 of words.weight, which has 57 rows"), "{error}");
        }
    });
}
