//! Tables that the workers of a group store together: the same bits as with a copy on each worker.

use super::links;
use super::training::{ALL, Micro, Parts, Plan, assert_trains_equally};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{Linear, VarBuilder, linear};
use distribute::checkpoint::Checkpoint;
use distribute::nn::{
    BagMode, DynamicEmbedding, Embedding, EmbeddingBag, dynamic_embedding, embedding, embedding_bag,
    prefetch_rows,
};
use distribute::optimizer::rules::{self, Rule};
use distribute::optimizer::{RowAdagrad, Transform};
use distribute::parameter_server::{DynamicOptions, HotRows, PartitionStrategy, RowCacheOptions};
use distribute::strategy::{HostedWeights, TableHosts, TableOptions};
use distribute::{
    LocalCluster, MultiWorkerMirroredStrategy, ParameterServerStrategy, Result, Strategy, prelude::*,
};
use distribute_testing::watched;
use std::sync::Arc;

/// Numbers of workers, and of replicas per worker.
const WORLDS: [(usize, usize); 8] = [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2), (3, 2), (2, 3)];

/// The location of tables in a test.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tables {
    OnWorkers(PartitionStrategy),
    /// The given number of servers stores the tables.
    OnServers(usize),
    /// The workers store all weights. Weights of at least the given size in bytes are partitioned.
    AllOnWorkers(usize),
    /// The given number of servers stores all weights.
    AllOnServers(usize),
    /// The workers store the tables, and cache rows for at most the given number of steps.
    Cached(u64),
}

pub(super) const PLACEMENTS: [Tables; 8] = [
    Tables::OnWorkers(PartitionStrategy::Mod),
    Tables::OnWorkers(PartitionStrategy::Div),
    Tables::OnServers(1),
    Tables::OnServers(3),
    Tables::AllOnWorkers(0),
    Tables::AllOnWorkers(100),
    Tables::AllOnServers(2),
    Tables::Cached(0),
];

pub(super) fn on_threads<R: Send>(
    workers: usize,
    replicas: usize,
    tables: Tables,
    worker: impl Fn(&Strategy) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    on_threads_with(workers, replicas, tables, None, worker)
}

/// Acts like [`on_threads`]. Each worker has copies of `hot_rows`.
pub(super) fn on_threads_with<R: Send>(
    workers: usize,
    replicas: usize,
    tables: Tables,
    hot_rows: Option<HotRows>,
    worker: impl Fn(&Strategy) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let mut builder = MultiWorkerMirroredStrategy::builder().replicas(replicas);
    let options = |hosts: TableHosts| TableOptions { min_bytes: 0, ..hosts.into() };
    let options = match tables {
        Tables::OnWorkers(partition) => TableOptions { partition, ..options(TableHosts::Workers) },
        Tables::Cached(staleness) => {
            let row_cache = Some(RowCacheOptions { bytes: 240, staleness });
            TableOptions { row_cache, ..options(TableHosts::Workers) }
        }
        Tables::AllOnWorkers(min_bytes) => {
            TableOptions { min_bytes, weights: HostedWeights::All, ..TableHosts::Workers.into() }
        }
        Tables::OnServers(servers) | Tables::AllOnServers(servers) => {
            builder = builder.cluster_resolver(LocalCluster::new(workers, servers)?.resolver());
            let weights = match tables {
                Tables::AllOnServers(_) => HostedWeights::All,
                _ => HostedWeights::Tables,
            };
            TableOptions { weights, ..options(TableHosts::Servers) }
        }
    };
    let builder = builder.tables(TableOptions { hot_rows, ..options });
    builder.on_threads(links(workers, replicas), workers, worker)
}

pub(super) fn assert_all_train_equally<R: Rule + Clone + 'static>(plan: Plan, rule: R) {
    watched(move || {
        for (at, tables) in PLACEMENTS.into_iter().enumerate() {
            // Each world with two of the placements.
            let worlds =
                WORLDS.into_iter().enumerate().filter(|(i, _)| (i + at) % 2 == 0).map(|(_, world)| world);
            assert_trains_equally(Plan { tables: Some(tables), ..plan }, rule.clone(), worlds, false);
        }
    });
}

pub(super) fn plan() -> Plan {
    Plan { parts: Parts { table: true, ..Parts::default() }, words: 33, ..Plan::new(31, 16) }
}

// INV-86
#[test]
fn every_rule_is_bit_identical_with_tables_on_workers() {
    assert_all_train_equally(plan(), rules::Sgd);
    assert_all_train_equally(plan(), rules::Momentum { nesterov: true, ..Default::default() });
    assert_all_train_equally(plan(), rules::Adam::default());
    assert_all_train_equally(plan(), rules::Adam { lazy: true, ..Default::default() });
    assert_all_train_equally(plan(), rules::Adagrad::default());
    assert_all_train_equally(plan(), rules::Ftrl::default());
    assert_all_train_equally(plan(), rules::RowAdagrad::default());
    let averaged = rules::Averaged { rule: Arc::new(rules::RowAdagrad::default()), momentum: 0.9 };
    assert_all_train_equally(Plan { clip: true, micro: Micro::Uneven, ..plan() }, averaged);
}

#[test]
fn doubles_micro_batches_norms_and_every_part_of_a_model_give_the_same_bits() {
    assert_all_train_equally(Plan { dtype: DType::F64, ..plan() }, rules::Adagrad::default());
    assert_all_train_equally(Plan { micro: Micro::Uneven, clip: true, ..plan() }, rules::Adam::default());
    assert_all_train_equally(Plan { parts: ALL, clip: true, ..plan() }, rules::Momentum::default());
}

/// Checks workers without rows, and a last batch in which some replicas have none.
#[test]
fn workers_without_data_change_nothing() {
    for rows in [1, 2, 9] {
        let plan = Plan { rows, batch: 8, ..plan() };
        assert_all_train_equally(plan, rules::Adagrad::default());
    }
}

/// A model of two tables, one of which is looked up in bags, and a layer.
pub(super) struct Model {
    pub(super) words: Embedding,
    bags: EmbeddingBag,
    out: Linear,
}

pub(super) const WORDS: usize = 57;

impl Model {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        Ok(Self {
            words: embedding(WORDS, 3, vb.pp("words"))?,
            bags: embedding_bag(WORDS, 3, BagMode::Mean, vb.pp("bags"))?,
            out: linear(3, 2, vb.pp("out"))?,
        })
    }

    /// Returns ids of words: some that all replicas look up, some that only one looks up, and repeated ones.
    fn ids(step: usize, replica: usize) -> Result<Tensor> {
        let ids: Vec<u32> =
            (0..6).map(|i| ((step * 11 + replica * (i % 2) * 7 + i * 5) % WORDS) as u32).collect();
        Ok(Tensor::from_vec(ids, (2, 3), &Device::Cpu)?)
    }

    /// Prefetches the rows that a replica looks up in the given step.
    pub(super) fn prefetch(&self, step: usize, replica: usize) -> Result<()> {
        let ids = Self::ids(step, replica)?;
        Ok(prefetch_rows(&[(&self.words, &ids), (&self.bags, &ids)])?)
    }

    pub(super) fn loss(&self, step: usize, replica: usize) -> Result<Tensor> {
        let ids = Self::ids(step, replica)?;
        let x = (self.words.forward(&ids)?.mean(1)? + self.bags.forward(&ids)?)?;
        Ok(self.out.forward(&x)?.tanh()?.sqr()?.mean_all()?)
    }
}

pub(super) fn model(strategy: &Strategy) -> Result<Replicated<Model>> {
    strategy.replicate_seeded(3, |vb: VarBuilder| Model::new(vb))
}

pub(super) fn train<R: Rule>(
    strategy: &Strategy,
    model: &Replicated<Model>,
    optimizer: &Optimizer<R>,
    steps: std::ops::Range<usize>,
) -> Result<()> {
    for step in steps {
        strategy.run(model, |ctx, model| {
            optimizer.minimize(ctx, model.loss(step, ctx.replica_id_in_sync_group())?, 2)
        })?;
    }
    Ok(())
}

/// Checks that a checkpoint is the same for all locations of tables, and can be restored with any of them.
// INV-86
#[test]
fn a_training_is_resumed_with_tables_elsewhere_and_on_other_workers() {
    assert_is_resumed(|variables| Adam::new(variables, 0.05));
}

/// Checks the slots of a rule by row, with one number for each row of a table, and those of averages, with the table's
/// shape.
// INV-86
#[test]
fn a_training_with_slots_of_rows_is_resumed_with_tables_elsewhere_and_on_other_workers() {
    assert_is_resumed(|variables| RowAdagrad::new(variables, 0.05)?.with_ema(0.9));
}

fn assert_is_resumed<R: Rule>(
    optimizer: impl Fn(&Variables) -> Result<Optimizer<R>> + Copy + Send + Sync + 'static,
) {
    watched(move || {
        let folder = tempfile::tempdir().unwrap();
        let saved = |strategy: &Strategy, name: &str| {
            let model = model(strategy)?;
            let optimizer = optimizer(&model.variables)?;
            train(strategy, &model, &optimizer, 0..3)?;
            let path = folder.path().join(name);
            let checkpoint = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
            checkpoint.save(&path)?;
            train(strategy, &model, &optimizer, 3..6)?;
            model.variables.sha256()
        };
        let resumed = |strategy: &Strategy, name: &str| {
            let model = model(strategy)?;
            let optimizer = optimizer(&model.variables)?;
            let checkpoint = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
            checkpoint.restore(folder.path().join(name))?;
            train(strategy, &model, &optimizer, 3..6)?;
            model.variables.sha256()
        };
        let expected = saved(&MirroredStrategy::cpus(6).unwrap(), "mirrored").unwrap();
        for (workers, replicas, tables) in
            [(2, 3, PLACEMENTS[0]), (3, 2, PLACEMENTS[1]), (2, 3, PLACEMENTS[3]), (3, 2, PLACEMENTS[5])]
        {
            let name = format!("{tables:?}");
            let all = on_threads(workers, replicas, tables, |strategy| saved(strategy, &name)).unwrap();
            assert!(all.iter().all(|sum| *sum == expected), "{workers} workers");
            let all =
                on_threads(workers, replicas, tables, |strategy| resumed(strategy, "mirrored")).unwrap();
            assert!(all.iter().all(|sum| *sum == expected), "{workers} workers, resumed from copies");
            let other =
                on_threads(replicas, 6 / replicas, PLACEMENTS[2], |strategy| resumed(strategy, &name));
            assert!(other.unwrap().iter().all(|sum| *sum == expected), "{workers} workers, elsewhere");
            let alone = resumed(&MirroredStrategy::cpus(6).unwrap(), &name).unwrap();
            assert_eq!(alone, expected, "of {workers} workers, resumed in one process");
        }
    });
}

/// Checks that each worker stores about its share of the rows, and that reads and writes of the complete table include
/// all shares.
#[test]
fn each_worker_stores_its_share_and_writes_are_made_once() {
    watched(|| {
        let expected = {
            let strategy = MirroredStrategy::cpus(3).unwrap();
            let model = model(&strategy).unwrap();
            model.variables.get("words.weight").unwrap().to_vec2::<f32>().unwrap()
        };
        let body = |strategy: &Strategy| {
            let model = model(strategy)?;
            let words = model.variables.variable("words.weight")?;
            assert_eq!(words.shards().len(), 3);
            let before = model.variables.get("words.weight")?.to_vec2::<f32>()?;
            assert_eq!(before, expected);
            words.assign_add(Tensor::ones((WORDS, 3), DType::F32, &Device::Cpu)?)?;
            let rows = words.gather(&[56, 0, 7, 56])?.to_vec::<f32>()?;
            assert_eq!(rows[..3], before[56].iter().map(|x| x + 1.).collect::<Vec<_>>()[..]);
            model.variables.set("words.weight", &Tensor::zeros((WORDS, 3), DType::F32, &Device::Cpu)?)?;
            assert_eq!(words.gather(&[3])?.to_vec::<f32>()?, [0.; 3]);
            let rows = strategy.run((), |_, ()| Ok(words.gather(&[3])?.to_vec::<f32>()?))?;
            assert_eq!(rows.values()[0], [0.; 3]);
            // An error of one worker is that of all.
            let wrong = words.scatter_add(distribute::tensor::IndexedSlices::new(
                HostTensor::new(vec![1f32; 3], [1, 3])?,
                HostTensor::vector(vec![57i64]),
                None,
            )?);
            assert!(wrong.is_err());
            let usage = strategy.extended().parameter_servers().unwrap().usage()?;
            Ok(usage.iter().map(|server| server.rows).collect::<Vec<_>>())
        };
        for tables in [PLACEMENTS[0], PLACEMENTS[1], PLACEMENTS[3]] {
            assert_eq!(on_threads(3, 1, tables, body).unwrap(), vec![vec![2 * 19u64; 3]; 3], "{tables:?}");
        }
    });
}

/// Checks that ids that several workers train together get the same rows as with servers.
#[test]
fn tables_of_ids_are_those_of_one_worker_on_servers() {
    fn body<R: Rule>(strategy: &Strategy, rule: R) -> Result<(Vec<i64>, Vec<u32>)> {
        let model = strategy.replicate_seeded(5, |vb: VarBuilder| {
            dynamic_embedding(3, DynamicOptions::default(), vb.pp("users"))
        })?;
        let optimizer =
            Optimizer::with_rule(rule, &model.variables, 0.1)?.after_reduce(Transform::clip_by_norm(0.7))?;
        for step in 0..4i64 {
            strategy.run(&model, |ctx, users: &DynamicEmbedding| {
                let replica = ctx.replica_id_in_sync_group() as i64;
                let ids = Tensor::new(&[-5 - step, 1 << 40, replica << 33, replica * step], &Device::Cpu)?;
                optimizer.minimize(ctx, users.forward(&ids)?.sqr()?.mean_all()?, 4)
            })?;
        }
        let rows = model.variables.variable("users.weight")?.dynamic_rows()?;
        let bits = |tensor: &HostTensor| {
            tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let slots = rows.slots.iter().flat_map(|(_, slot)| bits(slot));
        Ok((rows.ids, bits(&rows.values).into_iter().chain(slots).collect()))
    }
    fn check<R: Rule + Clone>(rule: &R, numbers: usize) {
        let body = |strategy: &Strategy| body(strategy, rule.clone());
        let cluster = LocalCluster::new(1, 1).unwrap();
        let servers = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver());
        let servers = servers.devices(["cpu:0", "cpu:1", "cpu:2", "cpu:3"]).build().unwrap();
        let expected = body(&servers).unwrap();
        assert_eq!((expected.0.len(), expected.1.len()), (15, 15 * numbers));
        for (workers, replicas, tables) in
            [(2, 2, PLACEMENTS[0]), (4, 1, PLACEMENTS[0]), (1, 4, PLACEMENTS[3]), (2, 2, PLACEMENTS[3])]
        {
            for of_worker in on_threads(workers, replicas, tables, body).unwrap() {
                assert_eq!(of_worker, expected, "{workers} workers");
            }
        }
    }
    watched(|| {
        check(&rules::Adagrad::default(), 6);
        // A row of three has one number of state.
        check(&rules::RowAdagrad::default(), 4);
    });
}

/// Checks a table that is also the weight of another layer: it is complete on each worker, with its rows in order.
#[test]
fn a_table_that_is_tied_to_the_last_layer_is_trained_like_a_mirrored_one() {
    fn body(strategy: &Strategy) -> Result<String> {
        let model = strategy.replicate_seeded(3, |vb: VarBuilder| {
            let words = embedding(11, 3, vb.pp("words"))?;
            distribute::Ok((linear(3, 3, vb.pp("hidden"))?, words))
        })?;
        let optimizer = Adam::new(&model.variables, 0.05)?;
        for step in 0..4 {
            strategy.run(&model, |ctx, (hidden, words)| {
                let replica = ctx.replica_id_in_sync_group() as u32;
                let ids = Tensor::new(&[step, replica, 10], &Device::Cpu)?;
                let x = hidden.forward(&words.forward(&ids)?)?;
                let logits = x.matmul(&words.embeddings().t()?)?;
                optimizer.minimize(ctx, distribute::nn::loss::cross_entropy(&logits, &ids)?, 3)
            })?;
        }
        model.variables.sha256()
    }
    watched(|| {
        let expected = body(&MirroredStrategy::cpus(4).unwrap()).unwrap();
        for tables in PLACEMENTS {
            let all = on_threads(2, 2, tables, body).unwrap();
            assert!(all.iter().all(|sum| *sum == expected), "{tables:?}");
        }
    });
}

/// Checks that tables count the steps of the optimizer, even after a checkpoint of an earlier step is restored.
#[test]
fn an_earlier_step_is_restored_and_trained_again_with_the_same_weights() {
    watched(|| {
        for tables in [PLACEMENTS[0], PLACEMENTS[3]] {
            let folder = tempfile::tempdir().unwrap();
            let all = on_threads(2, 1, tables, |strategy| {
                let model = model(strategy)?;
                let optimizer = Adam::new(&model.variables, 0.05)?;
                let state = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
                train(strategy, &model, &optimizer, 0..3)?;
                state.save(folder.path().join("3"))?;
                train(strategy, &model, &optimizer, 3..8)?;
                let once = model.variables.sha256()?;
                state.restore(folder.path().join("3"))?;
                train(strategy, &model, &optimizer, 3..8)?;
                Ok((once, model.variables.sha256()?))
            });
            assert!(all.unwrap().iter().all(|(once, twice)| once == twice), "{tables:?}");
        }
    });
}

// INV-86
#[test]
fn workers_that_write_different_values_get_an_error_and_write_nothing() {
    watched(|| {
        let all = on_threads(2, 1, PLACEMENTS[0], |strategy| {
            let model = model(strategy)?;
            let before = model.variables.get("words.weight")?.to_vec2::<f32>()?;
            let other = Tensor::full(strategy.world().worker() as f32, (WORDS, 3), &Device::Cpu)?;
            let error = model.variables.set("words.weight", &other).unwrap_err().to_string();
            assert!(error.contains("words.weight"), "{error}");
            assert_eq!(model.variables.get("words.weight")?.to_vec2::<f32>()?, before);
            // The next write is made by both again.
            model.variables.set("words.weight", &Tensor::zeros((WORDS, 3), DType::F32, &Device::Cpu)?)
        });
        all.unwrap();
    });
}

/// Checks results that contain a model, and with it the strategy, and a single worker with tables of ids.
#[test]
fn models_outlive_their_workers_and_one_worker_has_tables_of_ids() {
    watched(|| {
        let models = on_threads(3, 1, PLACEMENTS[0], model).unwrap();
        assert_eq!(models.len(), 3);
        drop(models);
        let rows = on_threads(1, 2, PLACEMENTS[0], |strategy| {
            let model = strategy.replicate(|vb: VarBuilder| {
                dynamic_embedding(3, DynamicOptions::default(), vb.pp("users"))
            })?;
            let optimizer = distribute::Sgd::new(&model.variables, 0.1)?;
            strategy.run(&model, |ctx, users: &DynamicEmbedding| {
                let ids = Tensor::new(&[7i64, ctx.replica_id_in_sync_group() as i64], &Device::Cpu)?;
                optimizer.minimize(ctx, users.forward(&ids)?.sqr()?.mean_all()?, 2)
            })?;
            Ok(model.variables.variable("users.weight")?.dynamic_rows()?.ids)
        });
        assert_eq!(rows.unwrap(), [[0, 1, 7]]);
    });
}
