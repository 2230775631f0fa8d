//! Tables of ids: looked up and trained like tables of rows, saved on some servers and restored on another number of
//! servers.

use crate::parameter_servers::support::servers;
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::nn::{self, DynamicEmbedding, loss};
use distribute::optimizer::Transform;
use distribute::optimizer::rules::{Adagrad, Adam, Ftrl, Rule, Sgd};
use distribute::parameter_server::{DynamicOptions, DynamicState};
use distribute::{
    Checkpoint, Error, HostTensor, LocalCluster, OneDeviceStrategy, Optimizer, ParameterServerStrategy,
    Replicated, Result, Strategy,
};
use distribute_testing::watched;
use std::path::Path;

/// The ids of the model. A table of rows uses their positions instead.
const IDS: [i64; 9] = [-1, i64::MIN, 0, 7, i64::MAX - 1, -5_000_000_000, 1 << 40, 3, -3];

/// A lookup of words in an embedding, and a layer after it.
struct Net<E> {
    words: E,
    out: nn::Linear,
}

impl<E: Module> Net<E> {
    fn loss(&self, ids: impl Fn(usize) -> i64, examples: usize, step: usize) -> Result<Tensor> {
        let ids: Vec<i64> = (0..examples * 2).map(|i| ids((i * i + 3 * step + i) % 7)).collect();
        let ids = Tensor::from_vec(ids, (examples, 2), &Device::Cpu)?;
        let rows = self.words.forward(&ids)?.sum(1)?;
        let labels: Vec<u32> = (0..examples).map(|i| ((i + step) % 3) as u32).collect();
        Ok(loss::cross_entropy(&self.out.forward(&rows)?, &Tensor::new(labels, &Device::Cpu)?)?)
    }
}

fn dynamic(options: DynamicOptions) -> impl Fn(VarBuilder) -> candle_core::Result<Net<DynamicEmbedding>> {
    move |vb| {
        let words = nn::dynamic_embedding(4, options, vb.pp("words"))?;
        Ok(Net { words, out: nn::linear(4, 3, vb.pp("out"))? })
    }
}

fn train<E: Module + Sync, R: Rule>(
    strategy: &Strategy,
    model: &Replicated<Net<E>>,
    optimizer: &Optimizer<R>,
    ids: impl Fn(usize) -> i64 + Copy + Send + Sync,
    steps: std::ops::Range<usize>,
) -> Vec<f32> {
    let losses = steps.map(|step| {
        let run = strategy.run(model, |ctx, net| {
            let examples = [5, 3][ctx.replica_id_in_sync_group() % 2];
            let loss = optimizer.minimize(ctx, net.loss(ids, examples, step)?, examples)?;
            Ok(loss.to_dtype(DType::F32)?.to_scalar::<f32>()?)
        });
        run.unwrap_or_else(|error| panic!("{}", error.root_cause())).into_values()
    });
    losses.flatten().collect()
}

fn rows(model: &Replicated<Net<DynamicEmbedding>>) -> DynamicState {
    model.variables.variable("words.weight").unwrap().dynamic_rows().unwrap()
}

/// Returns the values and slots of the ids, in the order of a table of rows.
fn of_ids(model: &Replicated<Net<DynamicEmbedding>>) -> Vec<Vec<f32>> {
    let state = rows(model);
    let at: Vec<usize> = (0..7).map(|i| state.ids.binary_search(&IDS[i]).unwrap()).collect();
    let parts = std::iter::once(state.values).chain(state.slots.into_iter().map(|(_, slot)| slot));
    parts.map(|all| all.take_rows(&at).unwrap().into_vec().unwrap()).collect()
}

// INV-56
#[test]
fn rows_of_ids_are_trained_bit_identically_to_a_table() {
    fn check<R: Rule + Clone>(rule: &R, replicas: usize) {
        for count in [1, 2, 3] {
            let devices = ["cpu:0", "cpu:1"];
            let strategy = ParameterServerStrategy::builder()
                .cluster_resolver(LocalCluster::new(1, count).unwrap().resolver())
                .devices(devices.into_iter().take(replicas))
                .build()
                .unwrap();
            let model = strategy.replicate_seeded(7, dynamic(DynamicOptions::default())).unwrap();
            let optimizer = Optimizer::with_rule(rule.clone(), &model.variables, 0.05).unwrap();
            let first = model.variables.variable("words.weight").unwrap().gather(&IDS).unwrap();

            let one: Strategy = match replicas {
                1 => OneDeviceStrategy::new("cpu:0").unwrap(),
                count => distribute::MirroredStrategy::cpus(count).unwrap(),
            };
            let dense = |vb: VarBuilder| {
                let words = nn::embedding(IDS.len(), 4, vb.pp("words"))?;
                candle_core::Result::Ok(Net { words, out: nn::linear(4, 3, vb.pp("out"))? })
            };
            let table = one.replicate_seeded(7, dense).unwrap();
            table.variables.set("words.weight", &first.to_candle(&Device::Cpu).unwrap()).unwrap();
            let other = Optimizer::with_rule(rule.clone(), &table.variables, 0.05).unwrap();

            let losses = train(&strategy, &model, &optimizer, |i| IDS[i], 0..5);
            assert_eq!(losses, train(&one, &table, &other, |i| i as i64, 0..5), "{} {count}", rule.name());
            let slots = other.slot_names().map(|slot| other.slot("words.weight", slot).unwrap());
            let all = std::iter::once(table.variables.get("words.weight").unwrap()).chain(slots);
            let expected: Vec<Vec<f32>> = all
                .map(|all| all.narrow(0, 0, 7).unwrap().flatten_all().unwrap().to_vec1().unwrap())
                .collect();
            assert_eq!(of_ids(&model), expected, "{} on {count} servers", rule.name());
            assert_eq!(rows(&model).ids.len(), 7);
        }
    }
    watched(|| {
        check(&Sgd, 1);
        check(&Adam::lazy(), 1);
        check(&Adagrad::default(), 1);
        check(&Ftrl { l1: 0.01, ..Ftrl::default() }, 1);
        check(&Adam::lazy(), 2);
    });
}

struct Training {
    strategy: Strategy,
    model: Replicated<Net<DynamicEmbedding>>,
    optimizer: Optimizer<Adam>,
}

impl Training {
    fn on(count: usize, seed: u64) -> Self {
        let strategy: Strategy = servers(count, 1).into();
        let model = strategy.replicate_seeded(seed, dynamic(DynamicOptions::default())).unwrap();
        let optimizer = Optimizer::with_rule(Adam::lazy(), &model.variables, 0.05).unwrap();
        Self { strategy, model, optimizer }
    }

    fn train(&self, steps: std::ops::Range<usize>) -> Vec<f32> {
        train(&self.strategy, &self.model, &self.optimizer, |i| IDS[i], steps)
    }

    fn restore(&self, path: &Path, optimizer_first: bool) {
        let (model, optimizer) = (&self.model.variables, &self.optimizer);
        let checkpoint = if optimizer_first {
            Checkpoint::new().part("optimizer", optimizer).part("model", model)
        } else {
            Checkpoint::new().part("model", model).part("optimizer", optimizer)
        };
        checkpoint.restore(path).unwrap();
    }
}

// CKPT-4
#[test]
fn ckpt_4_ids_saved_on_some_servers_are_restored_on_any_others() {
    const COUNTS: [usize; 5] = [1, 2, 3, 5, 8];
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = |count: usize| folder.path().join(format!("of_{count}"));
        let mut expected = None;
        for count in COUNTS {
            let training = Training::on(count, 7);
            training.train(0..2);
            let (model, optimizer) = (&training.model.variables, &training.optimizer);
            Checkpoint::new().part("model", model).part("optimizer", optimizer).save(path(count)).unwrap();
            assert_eq!(*expected.get_or_insert(rows(&training.model)), rows(&training.model));
        }
        let expected = expected.unwrap();
        for to in COUNTS {
            for from in COUNTS {
                // The model has other values and other ids: rows that are not restored, or not removed, differ.
                let training = Training::on(to, 8);
                if from % 2 == 0 {
                    train(
                        &training.strategy,
                        &training.model,
                        &training.optimizer,
                        |i| IDS[i] / 2 + 11,
                        0..2,
                    );
                }
                training.restore(&path(from), from == 3);
                assert_eq!(rows(&training.model), expected, "from {from} to {to}");
            }
        }
        // First values are of the seed, so these are of ids that have rows.
        let (one, other) = (Training::on(2, 7), Training::on(5, 7));
        [&one, &other].into_iter().for_each(|training| training.restore(&path(3), false));
        assert_eq!(one.train(2..5), other.train(2..5));
        assert_eq!(rows(&one.model), rows(&other.model));
    });
}

#[test]
fn a_checkpoint_of_other_rows_is_refused_and_changes_nothing() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let training = Training::on(2, 7);
        training.train(0..1);
        let before = rows(&training.model);
        let wide = training
            .strategy
            .replicate(|vb: VarBuilder| nn::dynamic_embedding(5, DynamicOptions::default(), vb.pp("words")));
        let wide = wide.unwrap();
        Checkpoint::new().part("wide", &wide.variables).save(&path).unwrap();
        let error = Checkpoint::new().part("wide", &training.model.variables).restore(&path).unwrap_err();
        assert!(error.to_string().contains("out.weight"), "{error}");
        let variable = training.model.variables.variable("words.weight").unwrap();
        let other = wide.variables.variable("words.weight").unwrap();
        Checkpoint::new().part("w", &variable).save(folder.path().join("narrow")).unwrap();
        let error = Checkpoint::new().part("w", &other).restore(folder.path().join("narrow")).unwrap_err();
        assert!(error.to_string().contains("a row for each id"), "{error}");
        assert_eq!(rows(&training.model), before);
    });
}

#[test]
fn ids_get_rows_after_enough_lookups_and_lose_them_without_lookups() {
    watched(|| {
        let strategy = servers(2, 1);
        let options = DynamicOptions { admit_after: 2, max_age: Some(8), ..DynamicOptions::default() };
        let build =
            move |vb: VarBuilder| nn::dynamic_embedding_init(3, Init::Const(1.), options, vb.pp("words"));
        let model = strategy.replicate(build).unwrap();
        let optimizer = distribute::Sgd::new(&model.variables, 1.).unwrap();
        let variable = model.variables.variable("words.weight").unwrap();
        let step = |ids: &[i64]| {
            let ids = Tensor::new(ids, &Device::Cpu).unwrap();
            let run = strategy
                .run(&model, |ctx, words| optimizer.minimize(ctx, words.forward(&ids)?.sum_all()?, 1));
            run.unwrap();
        };
        step(&[-4, 9]);
        assert!(variable.dynamic_rows().unwrap().ids.is_empty());
        step(&[-4]);
        let state = variable.dynamic_rows().unwrap();
        assert_eq!((state.ids, state.used), (vec![-4], vec![2]));
        assert_eq!(variable.gather(&[9, -4]).unwrap().into_vec::<f32>().unwrap(), [1., 1., 1., 0., 0., 0.]);
        (0..12).for_each(|id| step(&[100 + id, 100 + id / 2]));
        assert!(!variable.dynamic_rows().unwrap().ids.contains(&-4));
    });
}

#[test]
fn a_table_of_ids_has_no_complete_value_and_operations_that_need_one_fail() {
    watched(|| {
        let strategy = servers(2, 1);
        let model = strategy.replicate(dynamic(DynamicOptions::default())).unwrap();
        let variable = model.variables.variable("words.weight").unwrap();
        assert!(variable.is_dynamic() && variable.is_sharded() && variable.shards().len() == 2);
        assert_eq!(model.variables.elements(), 15);
        let refused = |error: Error| {
            assert!(matches!(error.root_cause(), Error::NotSupported { .. }), "{error}");
        };
        refused(model.variables.get("words.weight").unwrap_err());
        refused(variable.read::<HostTensor>().unwrap_err());
        let one = Tensor::zeros((1, 4), DType::F32, &Device::Cpu).unwrap();
        refused(model.variables.set("words.weight", &one).unwrap_err());
        refused(variable.deep_copy().unwrap_err());
        let optimizer = || distribute::Sgd::new(&model.variables, 0.1).unwrap();
        refused(optimizer().after_reduce(Transform::each(|_, gradient| Ok(gradient))).unwrap_err());
        refused(optimizer().before_reduce(Transform::each(|_, gradient| Ok(gradient))).unwrap_err());
        let adagrad = distribute::optimizer::Adagrad::new(&model.variables, 0.1).unwrap();
        refused(adagrad.slot("words.weight", "accum").unwrap_err());
        // A rule that moves rows without a gradient is refused for a table of any id.
        let adam = distribute::Adam::new(&model.variables, 0.1).unwrap();
        let run = strategy.run(&model, |ctx, net| adam.minimize(ctx, net.loss(|i| i as i64, 2, 0)?, 2));
        let text = run.unwrap_err().to_string();
        assert!(text.contains("words.weight"), "{text}");
        // Outside of minimize candle would get a gradient of all rows.
        let rows = strategy.run(&model, |_, net| {
            let ids = Tensor::new(&[5i64], &Device::Cpu)?;
            Ok(net.words.forward(&ids)?.sum_all()?.backward().map(drop)?)
        });
        let text = rows.unwrap_err().to_string();
        assert!(text.contains("minimize"), "{text}");
        let last = strategy.run(&model, |_, net| {
            Ok(net.words.forward(&Tensor::new(&[i64::MAX], &Device::Cpu)?).map(drop)?)
        });
        let text = last.unwrap_err().to_string();
        assert!(text.contains("has no row"), "{text}");
    });
}

#[test]
fn ids_are_for_parameter_servers_and_a_path_is_for_one_table() {
    watched(|| {
        let one = OneDeviceStrategy::new("cpu:0").unwrap();
        let text = one.replicate(dynamic(DynamicOptions::default())).unwrap_err().to_string();
        assert!(text.contains("ParameterServerStrategy"), "{text}");
        let twice = |vb: VarBuilder| {
            let first = nn::dynamic_embedding(4, DynamicOptions::default(), vb.pp("a"))?;
            let more = DynamicOptions { admit_after: 2, ..DynamicOptions::default() };
            candle_core::Result::Ok((first, nn::dynamic_embedding(4, more, vb.pp("a"))?))
        };
        let text = servers(1, 1).replicate(twice).unwrap_err().to_string();
        assert!(text.contains("a separate path"), "{text}");
        let rows = |vb: VarBuilder| {
            let first = nn::dynamic_embedding(4, DynamicOptions::default(), vb.pp("a"))?;
            candle_core::Result::Ok((first, nn::embedding(1, 4, vb.pp("a"))?))
        };
        let text = servers(1, 1).replicate(rows).unwrap_err().to_string();
        assert!(text.contains("a separate path"), "{text}");
    });
}
