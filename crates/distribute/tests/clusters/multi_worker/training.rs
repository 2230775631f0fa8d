//! Checks that trainings of W workers with R replicas each are bit-identical to one process with W·R replicas, and
//! equal to one device up to rounding.

use super::replicated;
use super::tables::Tables;
use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, ModuleT, VarBuilder, linear};
use distribute::data::Dataset;
use distribute::input::DistributedDataset;
use distribute::nn::{BatchNorm, Dropout, Embedding, batch_norm, embedding, loss, prefetch_rows};
use distribute::optimizer::rules::{Adafactor, Adagrad, Adam, Lamb, Momentum, Rule, Sgd};
use distribute::optimizer::{NotFinite, Transform};
use distribute::parameter_server::HotRows;
use distribute::{MirroredStrategy, OneDeviceStrategy, Optimizer, PerReplica, Replicated, Result, Strategy};
use distribute_testing::watched;
use std::collections::BTreeMap;

/// The optional parts of the model, in addition to two layers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parts {
    pub(crate) table: bool,
    pub(crate) norm: bool,
    pub(crate) dropout: bool,
    pub(crate) collective: bool,
}

/// The options of one training.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) batch: usize,
    pub(crate) parts: Parts,
    pub(crate) clip: bool,
    /// Whether weights decay.
    pub(crate) decay: bool,
    pub(crate) micro: Micro,
    /// The number of elements of the middle layer.
    pub(crate) width: usize,
    /// The number of rows of the table.
    pub(crate) words: usize,
    /// Whether workers shard the optimizer's state.
    pub(crate) sharded: bool,
    /// Whether each worker has a copy of another worker's shard.
    pub(crate) replicated: bool,
    /// The location of the table; `None` if each worker has a copy.
    pub(super) tables: Option<Tables>,
    /// Whether rows of the table are prefetched.
    pub(super) prefetch: bool,
    /// Whether each worker has copies of some rows of the table.
    pub(super) hot: bool,
}

/// A split of a replica's batch into micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Micro {
    Whole,
    /// Two micro-batches, one of which may be empty.
    Halves,
    /// A different number of micro-batches on each replica. A replica without rows skips the step.
    Uneven,
}

/// Returns numbers of workers, and of replicas per worker.
fn worlds() -> impl Iterator<Item = (usize, usize)> {
    (1..=5).flat_map(|workers| (1..=3).map(move |replicas| (workers, replicas)))
}

impl Plan {
    pub(crate) fn new(rows: usize, batch: usize) -> Self {
        let (dtype, parts, micro) = (DType::F32, Parts::default(), Micro::Whole);
        let (clip, decay, sharded, prefetch, hot) = (false, false, false, false, false);
        let (width, words, replicated, tables) = (5, 11, false, None);
        Self {
            dtype,
            rows,
            batch,
            parts,
            clip,
            decay,
            micro,
            width,
            words,
            sharded,
            replicated,
            tables,
            prefetch,
            hot,
        }
    }
}

struct Model {
    table: Option<Embedding>,
    hidden: Linear,
    norm: Option<BatchNorm>,
    dropout: Option<Dropout>,
    out: Linear,
}

impl Model {
    fn new(vb: VarBuilder<'_>, Plan { parts, width, words, .. }: Plan) -> candle_core::Result<Self> {
        let inputs = if parts.table { 6 } else { 3 };
        Ok(Self {
            table: parts.table.then(|| embedding(words, 3, vb.pp("table"))).transpose()?,
            hidden: linear(inputs, width, vb.pp("hidden"))?,
            norm: parts.norm.then(|| batch_norm(width, 1e-5, vb.pp("norm"))).transpose()?,
            dropout: parts.dropout.then(|| Dropout::new(0.4, 3, "drop")).transpose()?,
            out: linear(width, 3, vb.pp("out"))?,
        })
    }

    fn loss(
        &self,
        ctx: &distribute::ReplicaContext,
        collective: bool,
        x: &Tensor,
        words: &Tensor,
        y: &Tensor,
    ) -> Result<Tensor> {
        let mut x = x.clone();
        if let Some(table) = &self.table {
            x = Tensor::cat(&[x, table.forward(words)?], 1)?;
        }
        let mut x = self.hidden.forward(&x)?;
        if let Some(norm) = &self.norm {
            x = norm.forward_t(&x, true)?;
        }
        x = x.tanh()?;
        if let Some(dropout) = &self.dropout {
            x = dropout.forward(&x, true)?;
        }
        if collective {
            let all = ctx.all_reduce(distribute::ReduceOp::Sum, x.sum(0)?)?;
            x = x.broadcast_add(&(all * 0.01)?)?;
        }
        Ok(loss::cross_entropy(&self.out.forward(&x)?, y)?)
    }
}

/// The values, words and labels of a batch.
type Batch = (Tensor, Tensor, Tensor);

/// Returns the examples of a plan, which are the same for all strategies.
fn examples(Plan { rows, dtype, words, .. }: Plan) -> Batch {
    let x: Vec<f64> = (0..rows * 3).map(|i| ((i * 37 + 11) % 41) as f64 / 20. - 1.).collect();
    let words: Vec<u32> = (0..rows).map(|i| ((i * 5 + i / 3) % 11 * (words / 11)) as u32).collect();
    let y: Vec<u32> = (0..rows).map(|i| ((i * 7 + 3) % 3) as u32).collect();
    let x = Tensor::from_vec(x, (rows, 3), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
    let vector = |v| Tensor::from_vec(v, rows, &Device::Cpu).unwrap();
    (x, vector(words), vector(y))
}

/// Returns the optimizer, with its state sharded over the workers if `sharded` is set.
pub(crate) fn sharded_if<R: Rule>(sharded: bool, optimizer: Optimizer<R>) -> Result<Optimizer<R>> {
    if sharded { optimizer.shard_state() } else { Ok(optimizer) }
}

/// The bits of the losses, and the name and bits of each weight.
pub(crate) type Outcome = (Vec<u64>, Vec<(String, Vec<u64>)>);

pub(crate) fn train<R: Rule + Clone + 'static>(strategy: &Strategy, plan: Plan, rule: &R) -> Result<Outcome> {
    let parts = plan.parts;
    let model =
        strategy.replicate_seeded(7, move |vb: VarBuilder| Model::new(vb.to_dtype(plan.dtype), plan))?;
    let mut optimizer = Optimizer::with_rule(rule.clone(), &model.variables, 0.05)?;
    optimizer = if plan.replicated {
        optimizer.shard_state_replicated()?
    } else {
        sharded_if(plan.sharded, optimizer)?
    };
    if plan.decay {
        optimizer = optimizer
            .after_reduce(Transform::weight_decay(0.1))?
            .after_reduce(Transform::clip_by_norm(0.05))?
            .after_reduce(Transform::clip_by_value(-0.02, 0.02))?;
    }
    if plan.clip {
        optimizer =
            optimizer.after_reduce(Transform::clip_by_global_norm(0.05))?.on_not_finite(NotFinite::Error);
    }
    let dataset = Dataset::from_slices(examples(plan))?.batch(plan.batch);
    let batches = strategy.distribute_dataset(dataset)?;
    let mut losses = Vec::new();
    for _ in 0..2 {
        for batch in pass(&batches, plan, &model) {
            let loss = strategy.run((&model, batch?), |ctx, (model, (x, words, y))| {
                let n = y.dim(0)?;
                let cuts = match plan.micro {
                    Micro::Whole => {
                        let loss = model.loss(ctx, parts.collective, &x, &words, &y)?;
                        return optimizer.minimize(ctx, loss, n);
                    }
                    Micro::Uneven if n == 0 => return optimizer.skip(ctx),
                    Micro::Halves => vec![0, n / 2, n],
                    Micro::Uneven => {
                        (0..=ctx.replica_id_in_sync_group() % 3).map(|i| i.min(n)).chain([n]).collect()
                    }
                };
                let micro = cuts.windows(2).map(|cut| {
                    let (start, len) = (cut[0], cut[1] - cut[0]);
                    let cut = |t: &Tensor| t.narrow(0, start, len);
                    let loss = model.loss(ctx, parts.collective, &cut(&x)?, &cut(&words)?, &cut(&y)?)?;
                    Ok((loss, len))
                });
                optimizer.minimize_each(ctx, micro)
            })?;
            let loss: f64 = loss.values()[0].to_dtype(DType::F64)?.to_scalar()?;
            losses.push(loss.to_bits());
        }
    }
    if plan.replicated {
        replicated::assert_copies(strategy, &optimizer)?;
    }
    let bits = |name: String| {
        let tensor = model.variables.get(&name)?.flatten_all()?.to_dtype(DType::F64)?;
        Ok((name, tensor.to_vec1::<f64>()?.into_iter().map(f64::to_bits).collect()))
    };
    Ok((losses, model.variables.names().into_iter().map(bits).collect::<Result<_>>()?))
}

/// Starts a pass over the batches. Prefetches the table's rows for each batch if the plan says so.
fn pass<'a>(
    batches: &DistributedDataset<Batch>,
    plan: Plan,
    model: &'a Replicated<Model>,
) -> Box<dyn Iterator<Item = Result<PerReplica<Batch>>> + 'a> {
    let Some(table) = model.models().values()[0].table.as_ref().filter(|_| plan.prefetch) else {
        return Box::new(batches.iter());
    };
    Box::new(batches.iter().look_ahead(move |(_, words, _): &Batch| prefetch_rows(&[(table, words)])))
}

fn on_workers<R: Rule + Clone + 'static>(workers: usize, replicas: usize, plan: Plan, rule: &R) -> Outcome {
    let worker = |strategy: &Strategy| {
        let outcome = train(strategy, plan, rule)?;
        let servers = strategy.extended().parameter_servers();
        let early =
            servers.map(|servers| (servers.prefetch_usage().prefetched, servers.hot_row_usage().hits));
        Ok((outcome, early.unwrap_or_default()))
    };
    let hot_rows = plan.hot.then(|| HotRows::named([("table.weight", [0, 3, 4, 30])]));
    let outcomes = match plan.tables {
        Some(tables) => {
            crate::multi_worker::tables::on_threads_with(workers, replicas, tables, hot_rows, worker)
        }
        None => crate::multi_worker::on_threads(workers, replicas, worker),
    };
    let (outcomes, early): (Vec<_>, Vec<_>) = outcomes.unwrap().into_iter().unzip();
    // The last batch may be that of one worker.
    let is_prefetched = early.iter().any(|(prefetched, _)| *prefetched > 0);
    assert_eq!(is_prefetched, plan.prefetch, "{early:?} rows of {workers} workers: {plan:?}");
    let is_copied = early.iter().any(|(_, copied)| *copied > 0);
    assert_eq!(is_copied, plan.hot && workers > 1, "{early:?} rows of {workers} workers: {plan:?}");
    for other in &outcomes[1..] {
        assert!(*other == outcomes[0], "all workers have the same weights: {plan:?}");
    }
    outcomes.into_iter().next().unwrap()
}

fn largest_difference(a: &Outcome, b: &Outcome) -> f64 {
    let numbers = |outcome: &Outcome| -> Vec<f64> {
        outcome.1.iter().flat_map(|(_, bits)| bits).map(|bits| f64::from_bits(*bits)).collect()
    };
    numbers(a).iter().zip(numbers(b)).map(|(a, b)| (a - b).abs()).fold(0., f64::max)
}

/// Checks that the weights equal those of one device, up to rounding.
fn assert_trains_like_one_device(one: &Outcome, other: &Outcome, plan: Plan) {
    let tolerance = if plan.dtype == DType::F64 { 1e-12 } else { 1e-5 };
    let difference = largest_difference(one, other);
    assert!(difference <= tolerance, "{difference} beside one device: {plan:?}");
}

/// Checks that every world is bit-identical to one process with the same number of replicas, and close to one device.
fn assert_all_train_equally<R: Rule + Clone + 'static>(plan: Plan, rule: R) {
    assert_trains_equally(plan, rule, worlds(), true);
}

/// Acts like [`assert_all_train_equally`] for the given worlds. If `one_device` is `false`, results are not compared
/// with one device, because they depend on the split of a batch.
pub(crate) fn assert_trains_equally<R: Rule + Clone + 'static>(
    plan: Plan,
    rule: R,
    worlds: impl IntoIterator<Item = (usize, usize)>,
    one_device: bool,
) {
    let one = train(&OneDeviceStrategy::new("cpu:0").unwrap(), plan, &rule).unwrap();
    let mut processes = BTreeMap::new();
    for (workers, replicas) in worlds {
        let alone = processes.entry(workers * replicas).or_insert_with(|| {
            let plan = Plan { prefetch: false, ..plan };
            let alone = train(&MirroredStrategy::cpus(workers * replicas).unwrap(), plan, &rule).unwrap();
            if one_device {
                assert_trains_like_one_device(&one, &alone, plan);
            }
            alone
        });
        let outcome = on_workers(workers, replicas, plan, &rule);
        assert_eq!(outcome.0, alone.0, "losses of {workers} workers of {replicas} replicas: {plan:?}");
        for (mine, theirs) in outcome.1.iter().zip(&alone.1) {
            assert!(mine == theirs, "{} of {workers} workers of {replicas} replicas: {plan:?}", mine.0);
        }
    }
}

pub(crate) const ALL: Parts = Parts { table: true, norm: true, dropout: true, collective: true };

/// Checks a last batch of 16 rows for up to 15 replicas, of which each worker has two rows, one or none.
// INV-27
#[test]
fn every_remainder_of_the_last_batch_gives_the_same_bits() {
    watched(|| (0..16).for_each(|remainder| assert_all_train_equally(Plan::new(16 + remainder, 16), Sgd)));
}

#[test]
fn every_remainder_gives_the_same_bits_in_every_part_of_a_model() {
    watched(|| {
        // An epoch of one batch each, so that what a batch without rows on some workers does is not mixed with others.
        for rows in [1, 2, 3, 5, 7, 11, 14] {
            assert_all_train_equally(Plan { parts: ALL, ..Plan::new(rows, 15) }, Adagrad::default());
        }
    });
}

#[test]
fn workers_without_data_change_nothing() {
    watched(|| {
        assert_all_train_equally(Plan::new(7, 2), Adam::default());
        assert_all_train_equally(Plan::new(1, 1), Momentum::default());
    });
}

#[test]
fn every_part_of_a_model_gives_the_same_bits() {
    watched(|| {
        let plan = Plan::new(31, 16);
        for parts in [
            Parts { table: true, ..Parts::default() },
            Parts { norm: true, ..Parts::default() },
            Parts { dropout: true, ..Parts::default() },
            Parts { collective: true, ..Parts::default() },
            ALL,
        ] {
            assert_all_train_equally(Plan { parts, ..plan }, Adagrad::default());
        }
    });
}

/// Checks a table with gradients by row, with rules that change all rows.
#[test]
fn rules_of_complete_variables_give_the_same_bits() {
    watched(|| {
        let plan = Plan { parts: Parts { table: true, ..Parts::default() }, ..Plan::new(31, 16) };
        assert_all_train_equally(plan, Adafactor::default());
        assert_all_train_equally(plan, Lamb { weight_decay: 0.1, ..Lamb::default() });
        // The gradient of the bias before a norm is rounding, and its steps have the size of others.
        let all = Plan { parts: ALL, clip: true, micro: Micro::Halves, ..plan };
        assert_trains_equally(all, Adafactor::default(), worlds(), false);
        assert_trains_equally(all, Lamb::default(), worlds(), false);
    });
}

#[test]
fn clipping_by_the_global_norm_gives_the_same_bits() {
    watched(|| {
        for parts in [Parts { table: true, ..Parts::default() }, ALL] {
            assert_all_train_equally(Plan { clip: true, parts, ..Plan::new(13, 6) }, Sgd);
        }
    });
}

#[test]
fn micro_batches_give_the_same_bits() {
    watched(|| {
        let plan = Plan { parts: Parts { table: true, ..Parts::default() }, ..Plan::new(31, 16) };
        assert_all_train_equally(Plan { micro: Micro::Halves, ..plan }, Adam::default());
        assert_all_train_equally(Plan { micro: Micro::Uneven, clip: true, ..plan }, Adam::default());
        assert_all_train_equally(Plan { micro: Micro::Uneven, dtype: DType::F64, ..Plan::new(21, 16) }, Sgd);
        // Moments of a micro-batch over all replicas, and rows of masks, are those of another cut on one device.
        assert_trains_equally(
            Plan { micro: Micro::Halves, parts: ALL, clip: true, ..plan },
            Adam::default(),
            worlds(),
            false,
        );
    });
}

#[test]
fn doubles_give_the_same_bits_and_the_weights_of_one_device_to_twelve_digits() {
    watched(|| {
        let plan = Plan { dtype: DType::F64, ..Plan::new(31, 16) };
        assert_all_train_equally(plan, Sgd);
        assert_all_train_equally(Plan { parts: ALL, ..plan }, Momentum::default());
        assert_all_train_equally(Plan { parts: ALL, clip: true, ..plan }, Adam::default());
    });
}

/// Checks gradients of more than 64 KiB, of which each worker sums a range.
#[test]
fn large_gradients_give_the_same_bits() {
    watched(|| {
        for (parts, clip) in [(Parts::default(), false), (ALL, true)] {
            let plan = Plan { width: 3001, parts, clip, ..Plan::new(5, 4) };
            assert_trains_equally(plan, Adam::default(), [(2, 1), (2, 2), (3, 1), (2, 3), (5, 1)], false);
        }
    });
}

/// Checks weights without elements: a table without rows, rows without columns, and an empty vector.
#[test]
fn weights_without_elements_are_trained_and_shared_like_others() {
    watched(|| {
        for (workers, replicas) in [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)] {
            for sharded in [false, true] {
                let weights = crate::multi_worker::on_threads(workers, replicas, |strategy| {
                    let model = strategy.replicate(|vb| {
                        let ones = candle_nn::Init::Const(1.);
                        distribute::Ok([
                            vb.get_with_hints(3, "w", ones)?,
                            vb.get_with_hints(0, "none", ones)?,
                            vb.get_with_hints((3, 0), "columns", ones)?,
                            vb.get_with_hints((0, 3), "rows", ones)?,
                        ])
                    })?;
                    let optimizer = sharded_if(sharded, distribute::Adam::new(&model.variables, 0.1)?)?;
                    for _ in 0..3 {
                        strategy.run(&model, |ctx, all| {
                            let mut loss = all[0].sqr()?.sum_all()?;
                            for empty in &all[1..] {
                                loss = (loss + empty.sqr()?.sum_all()?)?;
                            }
                            optimizer.minimize(ctx, loss, 1)
                        })?;
                    }
                    let columns = Tensor::zeros((3, 0), DType::F32, &Device::Cpu)?;
                    model.variables.set("columns", &columns)?;
                    let variable = strategy.scope(|| distribute::Variable::new("own", columns))?;
                    variable.assign_add(Tensor::zeros((3, 0), DType::F32, &Device::Cpu)?)?;
                    Ok(model.variables.get("w")?.to_vec1::<f32>()?)
                });
                let weights = weights.unwrap();
                assert!(weights.iter().all(|w| *w == weights[0]), "{weights:?}");
                assert!(weights[0].iter().all(|w| *w < 0.8), "{weights:?}");
            }
        }
    });
}
