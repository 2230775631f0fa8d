//! Rows that are fetched before their step: the same bits as without prefetching, and the usage counters.

use super::tables::{self, PLACEMENTS, Tables, assert_all_train_equally, model, on_threads};
use super::training::{Micro, Plan};
use candle_core::{Device, Module, Tensor};
use candle_nn::VarBuilder;
use distribute::checkpoint::Checkpoint;
use distribute::data::Dataset;
use distribute::nn::{DynamicEmbedding, dynamic_embedding, prefetch_rows};
use distribute::optimizer::rules;
use distribute::parameter_server::{DynamicOptions, PrefetchUsage};
use distribute::{Error, Result, Strategy, prelude::*};
use distribute_testing::watched;
use std::ops::Range;
use std::path::Path;

fn usage(strategy: &Strategy) -> PrefetchUsage {
    strategy.extended().parameter_servers().unwrap().prefetch_usage()
}

/// Checks that prefetching changes no weights, also with workers without rows, micro-batches, and rules that change all
/// rows.
// INV-102
#[test]
fn weights_are_bit_identical_with_prefetched_rows() {
    let plan = || Plan { prefetch: true, ..tables::plan() };
    assert_all_train_equally(plan(), rules::Adagrad::default());
    assert_all_train_equally(Plan { micro: Micro::Uneven, clip: true, ..plan() }, rules::Adam::default());
    assert_all_train_equally(Plan { rows: 9, batch: 8, ..plan() }, rules::Momentum::default());
}

/// Returns the ids of a step: some that all replicas look up, some repeated, and some that only one replica looks up.
fn ids(step: i64, replica: usize) -> Result<Tensor> {
    let replica = replica as i64;
    let ids = [-5 - step % 3, 1 << 40, replica << 33, replica * step, 1 << 40];
    // Every third step, replica 1 has no ids.
    let count = if step % 3 == 2 && replica == 1 { 0 } else { ids.len() };
    Ok(Tensor::from_slice(&ids[..count], count, &Device::Cpu)?)
}

/// Ids, and the elements of their rows.
type Rows = (Vec<i64>, Vec<f32>);

/// Trains a table of ids. Before each step, calls `early` with the number of the next step.
fn train_ids(
    strategy: &Strategy,
    early: impl Fn(&DynamicEmbedding, i64) -> Result<()>,
) -> Result<(Rows, PrefetchUsage)> {
    let model = strategy.replicate_seeded(5, |vb: VarBuilder| {
        dynamic_embedding(3, DynamicOptions::default(), vb.pp("users"))
    })?;
    let optimizer = Optimizer::with_rule(rules::Adagrad::default(), &model.variables, 0.1)?;
    for step in 0..8 {
        early(&model.models().values()[0], step + 1)?;
        strategy.run(&model, |ctx, users: &DynamicEmbedding| {
            let ids = ids(step, ctx.replica_id_in_sync_group())?;
            if ids.elem_count() == 0 {
                return optimizer.skip(ctx);
            }
            optimizer.minimize(ctx, users.forward(&ids)?.sqr()?.mean_all()?, ids.elem_count())
        })?;
    }
    let rows = model.variables.variable("users.weight")?.dynamic_rows()?;
    Ok(((rows.ids, rows.values.to_vec()?), usage(strategy)))
}

/// Checks that a worker may prefetch all rows, some, other ones, or none: the weights are always the same.
// INV-102
#[test]
fn tables_of_ids_are_the_same_whatever_is_prefetched() {
    watched(|| {
        for (workers, replicas, tables) in
            [(1, 2, PLACEMENTS[0]), (2, 1, PLACEMENTS[0]), (3, 1, PLACEMENTS[3]), (2, 2, Tables::Cached(0))]
        {
            let expected =
                on_threads(workers, replicas, tables, |strategy| train_ids(strategy, |_, _| Ok(())));
            let (expected, _) = expected.unwrap().swap_remove(0);
            let trained = on_threads(workers, replicas, tables, |strategy| {
                let world = strategy.world();
                train_ids(strategy, |users, step| {
                    match (step + world.worker() as i64) % 4 {
                        // The rows of another step.
                        0 => prefetch_rows(&[(users, &ids(step + 7, 0)?)])?,
                        // Nothing.
                        1 => {}
                        _ => {
                            for replica in world.local_replicas() {
                                prefetch_rows(&[(users, &ids(step, replica)?)])?;
                            }
                        }
                    }
                    Ok(())
                })
            });
            for (trained, used) in trained.unwrap() {
                assert_eq!(trained, expected, "{workers} workers of {replicas} replicas, {tables:?}");
                assert!(used.prefetched > 0 && used.late > 0, "{used:?}");
            }
        }
    });
}

/// Trains an epoch in batches of a dataset, and saves every second step. Worker 1 is lost after step `lost`. A later
/// call resumes from the last checkpoint.
fn train_epoch(strategy: &Strategy, prefetches: bool, folder: &Path, lost: Option<u64>) -> Result<String> {
    let model = strategy.replicate_seeded(5, |vb: VarBuilder| {
        dynamic_embedding(3, DynamicOptions::default(), vb.pp("users"))
    })?;
    let optimizer = Optimizer::with_rule(rules::Adagrad::default(), &model.variables, 0.1)?;
    let ids = Dataset::range(41).map(|id: i64| id * id % 13).shuffle(41, 3).batch(4);
    let batches = strategy.distribute_dataset(ids)?;
    let state = Checkpoint::new().part("model", &model.variables);
    let state = state.part("optimizer", &optimizer).part("input", &batches);
    std::fs::create_dir_all(folder).unwrap();
    let saved = distribute_testing::names_in(folder).into_iter().filter_map(|name| name.parse::<u64>().ok());
    if let Some(last) = saved.max() {
        state.restore(folder.join(last.to_string()))?;
    }
    let tensor = |ids: &HostTensor| ids.to_candle(&Device::Cpu);
    let users = model.models().values().first().filter(|_| prefetches);
    let early = |ids: &HostTensor| {
        users.map_or(Ok(()), |users: &DynamicEmbedding| {
            distribute::Ok(prefetch_rows(&[(users, &tensor(ids)?)])?)
        })
    };
    for ids in batches.iter().look_ahead(early) {
        strategy.run((&model, ids?), |ctx, (users, ids)| {
            let loss = users.forward(&tensor(&ids)?)?.sqr()?.sum_all()?;
            optimizer.minimize(ctx, loss, ids.dims()[0])
        })?;
        let step = batches.position().steps;
        if step.is_multiple_of(2) {
            state.save(folder.join(step.to_string()))?;
        }
        if lost == Some(step) && strategy.world().worker() == 1 {
            return Err(Error::other("this worker is lost"));
        }
    }
    let rows = model.variables.variable("users.weight")?.dynamic_rows()?;
    Ok(format!("{:?} {:?}", rows.ids, rows.values.to_vec::<f32>()?))
}

/// Checks the loss of a worker. The others get an error even if they wait for rows. The next job resumes from the last
/// checkpoint, and trains the batch that had been taken early.
// INV-102, INV-103
#[test]
fn a_job_that_has_lost_a_worker_continues_with_the_same_weights() {
    watched(|| {
        for (workers, tables) in [(2, PLACEMENTS[0]), (3, PLACEMENTS[0]), (2, PLACEMENTS[3])] {
            let folder = tempfile::tempdir().unwrap();
            let job = |prefetches, folder: &Path, lost| {
                on_threads(workers, 1, tables, |strategy| train_epoch(strategy, prefetches, folder, lost))
            };
            let undisturbed = folder.path().join("undisturbed");
            let expected = job(false, &undisturbed, None).unwrap();
            for lost in [1, 4, 7] {
                let disturbed = folder.path().join(lost.to_string());
                let error = job(true, &disturbed, Some(lost)).unwrap_err().to_string();
                assert!(error.contains("lost"), "{error}");
                assert_eq!(job(true, &disturbed, None).unwrap(), expected, "{workers} workers, {tables:?}");
            }
        }
    });
}

/// Trains the given steps, and prefetches the rows of each next step.
fn train(
    strategy: &Strategy,
    model: &Replicated<tables::Model>,
    optimizer: &Adam,
    steps: Range<usize>,
) -> Result<()> {
    for step in steps.clone() {
        for replica in strategy.world().local_replicas().filter(|_| step + 1 < steps.end) {
            model.models().values()[0].prefetch(step + 1, replica)?;
        }
        tables::train(strategy, model, optimizer, step..step + 1)?;
    }
    Ok(())
}

/// Checks that rows of the first step are late, and all others are prefetched. After a write and a restore, rows have
/// the written values. A step that fails on one worker is repeated by all.
// INV-102
#[test]
fn writes_failed_steps_and_restored_checkpoints_discard_prefetched_rows() {
    /// Returns the checksums of the weights after each part.
    fn body(strategy: &Strategy, prefetches: bool, path: &Path) -> Result<(Vec<String>, PrefetchUsage)> {
        let model = model(strategy)?;
        let optimizer = Adam::new(&model.variables, 0.05)?;
        let train_steps = if prefetches { train } else { tables::train };
        let train = |steps| train_steps(strategy, &model, &optimizer, steps);
        let prefetch = |step: usize| {
            let mut replicas = strategy.world().local_replicas().filter(|_| prefetches);
            replicas.try_for_each(|replica| model.models().values()[0].prefetch(step, replica))
        };
        train(0..6)?;
        let used = usage(strategy);
        let state = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
        state.save(path)?;

        // Rows of step 6 are requested after step 8, and then restored.
        train(6..8)?;
        prefetch(6)?;
        train(8..9)?;
        state.restore(path)?;
        // Rows of step 7 are requested after step 6, and then written.
        prefetch(7)?;
        train(6..7)?;
        let mut sums = vec![model.variables.sha256()?];
        let words = model.variables.variable("words.weight")?;
        words.assign_add(Tensor::ones((tables::WORDS, 3), candle_core::DType::F32, &Device::Cpu)?)?;
        prefetch(8)?;
        train(7..8)?;
        sums.push(model.variables.sha256()?);

        // One worker fails.
        let failed = strategy.run(&model, |ctx, model| match ctx.replica_id_in_sync_group() {
            0 => Err(Error::other("no")),
            replica => optimizer.minimize(ctx, model.loss(8, replica)?, 2),
        });
        assert!(failed.is_err());
        train(8..10)?;
        sums.push(model.variables.sha256()?);
        // A run between two steps has its own rows.
        prefetch(10)?;
        let evaluated = strategy.run(&model, |_, model| Ok(model.loss(3, 0)?.to_scalar::<f32>()?))?;
        assert!(evaluated.values()[0].is_finite());
        train(10..12)?;
        sums.push(model.variables.sha256()?);
        state.restore(path)?;
        train(6..8)?;
        sums.push(model.variables.sha256()?);
        Ok((sums, used))
    }
    watched(|| {
        for (workers, tables) in
            [(1, PLACEMENTS[0]), (2, PLACEMENTS[0]), (3, PLACEMENTS[3]), (2, Tables::Cached(0))]
        {
            let folder = tempfile::tempdir().unwrap();
            let of = |prefetches: bool| {
                let path = folder.path().join(format!("{prefetches}"));
                on_threads(workers, 2, tables, |strategy| body(strategy, prefetches, &path)).unwrap()
            };
            let (without, with) = (of(false), of(true));
            for ((expected, unused), (sums, used)) in without.into_iter().zip(with) {
                assert_eq!(sums, expected, "{workers} workers, {tables:?}");
                assert_eq!(unused, PrefetchUsage::default());
                // Five of six steps.
                assert!(used.prefetched > 3 * used.late && used.late > 0, "{used:?}");
            }
        }
    });
}
