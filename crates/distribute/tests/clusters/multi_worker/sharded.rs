//! Optimizers whose state is sharded over workers: bit-identical to optimizers with the complete state, with less
//! memory.

use crate::multi_worker::on_workers;
use crate::multi_worker::training::{ALL, Micro, Parts, Plan, assert_trains_equally, sharded_if};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, Linear, Module, VarBuilder, linear};
use distribute::checkpoint::{Checkpointed, Reader};
use distribute::cluster::Fault;
use distribute::nn::{Embedding, embedding};
use distribute::optimizer::rules::{self, Float, Formula, Rule, SlotSpec, Step};
use distribute::optimizer::{Adagrad, Gradients, Transform};
use distribute::tensor::IndexedSlices;
use distribute::{Error, Result, prelude::*};
use distribute_testing::watched;
use std::path::Path;
use std::sync::Arc;

/// Numbers of workers, and of replicas per worker.
pub(super) const WORLDS: [(usize, usize); 8] =
    [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2), (3, 2), (4, 2)];

/// Returns a plan with variables of several blocks, which have several assignees. The ranges of the table end inside
/// rows.
pub(super) fn large() -> Plan {
    let parts = Parts { table: true, ..Parts::default() };
    Plan { parts, width: 2500, words: 3300, sharded: true, ..Plan::new(11, 8) }
}

fn assert_all_train_equally<R: Rule + Clone + 'static>(plan: Plan, rule: R) {
    watched(move || assert_trains_equally(plan, rule, WORLDS, false));
}

// INV-40
#[test]
fn every_rule_is_bit_identical_with_sharded_and_complete_state() {
    assert_all_train_equally(large(), rules::Sgd);
    assert_all_train_equally(large(), rules::Momentum::default());
    assert_all_train_equally(large(), rules::Momentum { nesterov: true, ..Default::default() });
    assert_all_train_equally(large(), rules::Adam::default());
    assert_all_train_equally(large(), rules::Adam { lazy: true, ..Default::default() });
    assert_all_train_equally(large(), rules::AdamW::default());
    assert_all_train_equally(large(), rules::Adagrad::default());
    assert_all_train_equally(large(), rules::RmsProp::default());
    assert_all_train_equally(large(), rules::Ftrl::default());
    assert_all_train_equally(large(), rules::NAdam { lazy: true, ..Default::default() });
    assert_all_train_equally(large(), rules::Lion::default());
    assert_all_train_equally(large(), rules::RowAdagrad::default());
    assert_all_train_equally(large(), rules::Adafactor::default());
    assert_all_train_equally(large(), rules::Lamb { weight_decay: 0.1, ..Default::default() });
    let averaged = rules::Averaged { rule: Arc::new(rules::Adam::default()), momentum: 0.9 };
    assert_all_train_equally(large(), averaged);
    let averaged = rules::Averaged { rule: Arc::new(rules::RowAdagrad::default()), momentum: 0.9 };
    assert_all_train_equally(Plan { clip: true, ..large() }, averaged);
}

#[test]
fn doubles_micro_batches_and_every_part_of_a_model_give_the_same_bits() {
    assert_all_train_equally(Plan { dtype: DType::F64, ..large() }, rules::Adam::default());
    assert_all_train_equally(Plan { micro: Micro::Uneven, ..large() }, rules::Adagrad::default());
    assert_all_train_equally(
        Plan { parts: ALL, width: 2500, sharded: true, ..Plan::new(13, 9) },
        rules::Momentum::default(),
    );
    // All variables are smaller than a block.
    assert_all_train_equally(Plan { parts: ALL, sharded: true, ..Plan::new(13, 9) }, rules::Adam::default());
}

/// Checks transforms that depend on norms: these must be the norms of complete gradients, whatever the partition.
#[test]
fn clipping_by_norms_and_decay_give_the_same_bits() {
    for dtype in [DType::F32, DType::F64] {
        assert_all_train_equally(Plan { clip: true, dtype, ..large() }, rules::Adam::default());
        assert_all_train_equally(Plan { decay: true, dtype, ..large() }, rules::Sgd);
    }
    assert_all_train_equally(Plan { clip: true, decay: true, parts: ALL, ..large() }, rules::Ftrl::default());
}

/// Checks workers without rows, and a last batch in which some replicas have none.
#[test]
fn workers_without_data_change_nothing() {
    for rows in [1, 2, 9, 10] {
        assert_all_train_equally(
            Plan { parts: ALL, width: 1100, sharded: true, ..Plan::new(rows, 8) },
            rules::Adam::default(),
        );
    }
}

/// A model of a table, of which only some rows get gradients, and a layer.
struct Model {
    table: Embedding,
    out: Linear,
}

const WORDS: usize = 1700;
const WIDTH: usize = 5;

impl Model {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        Ok(Self { table: embedding(WORDS, WIDTH, vb.pp("table"))?, out: linear(WIDTH, 1300, vb.pp("out"))? })
    }

    fn loss(&self, step: usize, replica: usize) -> Result<Tensor> {
        let ids: Vec<u32> = (0..4).map(|i| ((step * 401 + replica * 97 + i * 611) % WORDS) as u32).collect();
        let x = self.table.forward(&Tensor::from_vec(ids, 4, &Device::Cpu)?)?;
        Ok(self.out.forward(&x)?.tanh()?.sqr()?.mean_all()?)
    }
}

fn model(strategy: &Strategy) -> Result<Replicated<Model>> {
    strategy.replicate_seeded(3, |vb: VarBuilder| Model::new(vb))
}

/// Trains the steps with the given numbers.
fn train<R: Rule>(
    strategy: &Strategy,
    model: &Replicated<Model>,
    optimizer: &Optimizer<R>,
    steps: std::ops::Range<usize>,
) -> Result<()> {
    for step in steps {
        strategy.run(model, |ctx, model| {
            let loss = model.loss(step, ctx.replica_id_in_sync_group())?;
            optimizer.minimize(ctx, loss, 4)
        })?;
    }
    Ok(())
}

fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(tensor.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
}

fn weights(model: &Replicated<Model>) -> Result<Vec<Vec<u32>>> {
    model.variables.names().iter().map(|name| bits(&model.variables.get(name)?)).collect()
}

/// Returns the bits of all weights and slots.
fn state<R: Rule>(model: &Replicated<Model>, optimizer: &Optimizer<R>) -> Result<Vec<Vec<u32>>> {
    let mut all = weights(model)?;
    for name in optimizer.variable_names() {
        for slot in optimizer.slot_names() {
            all.push(bits(&optimizer.slot(name, slot)?)?);
        }
    }
    Ok(all)
}

#[test]
fn each_worker_keeps_its_partition_of_the_slots() {
    let elements = WORDS * WIDTH + 1300 * WIDTH + 1300;
    for workers in 1..=4 {
        let bytes = on_workers(workers, 2, move |strategy| {
            let model = model(strategy)?;
            let optimizer = Adam::new(&model.variables, 0.01)?;
            assert_eq!(optimizer.state_bytes()?, 8 * elements);
            let optimizer = optimizer.shard_state()?;
            train(strategy, &model, &optimizer, 0..2)?;
            optimizer.state_bytes()
        });
        assert_eq!(bytes.iter().sum::<usize>(), 8 * elements);
        // Of each of three variables, a block of 2048 elements more or less.
        let even = 8 * elements / workers;
        assert!(
            bytes.iter().all(|bytes| bytes.abs_diff(even) <= 3 * 8 * 2048),
            "{bytes:?}, not about {even}"
        );
    }
}

fn checkpoint<'a, R: Rule>(model: &'a Replicated<Model>, optimizer: &'a Optimizer<R>) -> Checkpoint<'a> {
    Checkpoint::new().part("model", &model.variables).part("optimizer", optimizer)
}

/// Returns the tensors and the metadata of a checkpoint as text.
pub(super) fn contents(path: &Path) -> String {
    let reader = Reader::open(path).unwrap();
    let names: Vec<_> = reader.names().map(String::from).collect();
    let tensors: Vec<_> = names.iter().map(|name| (name, bits_of(&reader, name))).collect();
    format!("{tensors:?} {:?}", reader.all_metadata())
}

fn bits_of(reader: &Reader, name: &str) -> Vec<u32> {
    reader.tensor(name).unwrap().to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

// INV-40
#[test]
fn a_checkpoint_of_any_number_of_workers_is_restored_by_any_other_sharded_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let at = |workers: usize, sharded: bool| folder.path().join(format!("{workers}-{sharded}"));
    for workers in 1..=4 {
        for sharded in [false, true] {
            let path = at(workers, sharded);
            on_workers(workers, 1, move |strategy| {
                let model = model(strategy)?;
                let optimizer = sharded_if(sharded, Adam::new(&model.variables, 0.01)?)?;
                train(strategy, &model, &optimizer, 0..3)?;
                checkpoint(&model, &optimizer).save(&path)
            });
        }
        assert_eq!(contents(&at(workers, true)), contents(&at(workers, false)), "{workers} workers");
    }
    for (from, to) in [(2, 1), (2, 3), (3, 2), (4, 4), (1, 4), (3, 4)] {
        let went_on = [false, true].map(|sharded| {
            let path = at(from, true);
            let saved = Reader::open(&path).unwrap();
            let table = bits_of(&saved, "optimizer/v/table.weight");
            let mut states = on_workers(to, 2, move |strategy| {
                let model = model(strategy)?;
                let optimizer = sharded_if(sharded, Adam::new(&model.variables, 0.5)?)?;
                checkpoint(&model, &optimizer).restore(&path)?;
                assert_eq!((optimizer.finished_steps(), optimizer.learning_rate()), (3, 0.01));
                assert_eq!(bits(&optimizer.slot("table.weight", "v")?)?, table);
                train(strategy, &model, &optimizer, 3..5)?;
                state(&model, &optimizer)
            });
            states.dedup();
            assert_eq!(states.len(), 1, "all workers have the same state");
            states
        });
        assert_eq!(went_on[0], went_on[1], "from {from} to {to} workers");
    }
}

#[test]
fn slots_that_do_not_fit_are_refused_on_all_workers_and_nothing_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    on_workers(3, 1, move |strategy| {
        let other = strategy.replicate_seeded(3, |vb: VarBuilder| {
            Ok::<_, candle_core::Error>((
                embedding(WORDS, WIDTH, vb.pp("table"))?,
                linear(WIDTH, 7, vb.pp("out"))?,
            ))
        })?;
        let optimizer = Adam::new(&other.variables, 0.01)?.shard_state()?;
        Checkpoint::new().part("optimizer", &optimizer).save(&path)?;
        let model = model(strategy)?;
        let mine = Adam::new(&model.variables, 0.01)?.shard_state()?;
        train(strategy, &model, &mine, 0..1)?;
        let before = state(&model, &mine)?;
        let error = Checkpoint::new().part("optimizer", &mine).restore(&path).unwrap_err();
        assert!(error.to_string().contains("optimizer/m/out.bias in "), "{error}");
        assert_eq!((state(&model, &mine)?, mine.finished_steps()), (before, 1));
        Ok(())
    });
}

/// A momentum rule whose update fails in one step, on the worker with the given number.
#[derive(Clone)]
struct Fails {
    in_step: Option<u64>,
    only_computes: bool,
}

/// Prints the same text on all workers, because the workers compare it.
impl std::fmt::Debug for Fails {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fails")
    }
}

impl Formula for Fails {
    type Slots<T: Copy> = [T; 1];

    fn label(&self) -> &'static str {
        "fails"
    }

    fn layout(&self) -> [SlotSpec; 1] {
        [SlotSpec::zeros("m")]
    }

    fn only_computes(&self) -> bool {
        self.only_computes
    }

    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 1]) -> (F, [F; 1]) {
        assert!(self.in_step != Some(at.number()), "out of numbers");
        let rate = F::from_f64(at.learning_rate());
        move |var, grad, [m]| {
            let m = F::from_f64(0.5) * m + grad;
            (var - rate * m, [m])
        }
    }
}

// INV-40
#[test]
fn a_step_that_fails_between_update_and_exchange_keeps_weights_and_fails_until_state_is_restored() {
    let undisturbed = |workers| {
        on_workers(workers, 2, |strategy| {
            let model = model(strategy)?;
            let rule = Fails { in_step: None, only_computes: true };
            let optimizer = Optimizer::with_rule(rule, &model.variables, 0.1)?;
            train(strategy, &model, &optimizer, 0..4)?;
            weights(&model)
        })
        .remove(0)
    };
    for workers in [2, 3] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let texts = on_workers(workers, 2, move |strategy| {
            let model = model(strategy)?;
            let in_step = (strategy.world().worker() == 1).then_some(3);
            let rule = Fails { in_step, only_computes: true };
            let broken = Optimizer::with_rule(rule.clone(), &model.variables, 0.1)?.shard_state()?;
            train(strategy, &model, &broken, 0..2)?;
            checkpoint(&model, &broken).save(&path)?;
            let before = weights(&model)?;
            let error = train(strategy, &model, &broken, 2..3).unwrap_err();
            let own = strategy.world().worker() == 1;
            if own {
                assert!(matches!(error.root_cause(), Error::Panicked { .. }), "{error}");
            } else {
                let blame = error.blame().expect("a blame");
                assert_eq!((blame.fault, &blame.culprits[..]), (Fault::Failed, &[2, 3][..]), "{error}");
            }
            for part in ["step 3 of this optimizer", "no weight has changed", "restore the last checkpoint"] {
                assert!(error.to_string().contains(part), "{error}");
            }
            assert!(weights(&model)? == before && broken.finished_steps() == 2);

            let again = train(strategy, &model, &broken, 2..3).unwrap_err();
            let saved = checkpoint(&model, &broken).save(path.with_extension("again")).unwrap_err();
            let slot = broken.slot("out.weight", "m").unwrap_err();
            let mut texts = Vec::new();
            for error in [again, saved, slot] {
                let cause = error.root_cause();
                let is_incomplete = matches!(cause, Error::IncompleteState { step: 3, .. } | Error::Other(_));
                assert!(is_incomplete, "{error}");
                texts.push(cause.to_string());
            }
            assert!(weights(&model)? == before);

            // The rule is mended, and the state restored.
            let rule = Fails { in_step: None, ..rule };
            let mended = Optimizer::with_rule(rule, &model.variables, 0.1)?.shard_state()?;
            checkpoint(&model, &broken).restore(&path)?;
            assert_eq!(broken.slot("out.bias", "m")?.dims(), [1300]);
            checkpoint(&model, &mended).restore(&path)?;
            train(strategy, &model, &mended, 2..4)?;
            Ok((texts, weights(&model)?))
        });
        let expected = undisturbed(workers);
        for (of_worker, weights) in &texts {
            assert!(*weights == expected, "{workers} workers");
            assert_eq!(*of_worker, texts[0].0);
            let all = (0..workers).map(|worker| format!("worker {worker}")).collect::<Vec<_>>().join(", ");
            assert!(
                of_worker[0].contains(&format!(
                    "step 3 of this optimizer, whose state is sharded, has ended on {all} "
                ))
            );
            assert!(of_worker[1].starts_with("Checkpoint::save: step 3 "), "{}", of_worker[1]);
        }
    }
}

#[test]
fn an_impossible_partition_is_refused() {
    watched(|| {
        on_workers(2, 1, |strategy| {
            let model = model(strategy)?;
            let each = || Transform::each(|_, gradient| Ok(gradient));
            let free = Fails { in_step: None, only_computes: false };
            let bound = Fails { only_computes: true, ..free.clone() };
            let of = |rule: &Fails| Optimizer::with_rule(rule.clone(), &model.variables, 0.1);
            let refused = |result: Result<Optimizer<Fails>>, parts: &[&str]| {
                let error = result.expect_err("refused");
                assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
                assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
            };
            let each_text = ["Transform::each needs complete gradients", "before_reduce"];
            refused(of(&bound)?.after_reduce(each())?.shard_state(), &each_text);
            refused(of(&bound)?.shard_state()?.after_reduce(each()), &each_text);
            let rule_text = ["rule fails may do more than compute", "only_computes"];
            refused(of(&free)?.shard_state(), &rule_text);
            refused(
                of(&bound)?.with_rule_for(|name| name == "out.bias", free.clone())?.shard_state(),
                &rule_text,
            );
            refused(of(&bound)?.shard_state()?.with_rule_for(|name| name == "out.bias", free), &rule_text);

            let optimizer = of(&bound)?.before_reduce(each())?.after_reduce(each())?;
            train(strategy, &model, &optimizer, 0..1)?;
            refused(optimizer.shard_state(), &["already made steps", "when the optimizer is created"]);
            Ok(())
        });
    });
}

/// Checks that a training that has lost a worker must be restored from a checkpoint.
#[test]
fn no_worker_has_the_complete_state_of_a_lost_one() {
    on_workers(2, 1, |strategy| {
        let model = model(strategy)?;
        let whole = Adam::new(&model.variables, 0.01)?;
        assert!(whole.rewind().is_ok());
        let error = whole.shard_state()?.rewind().unwrap_err();
        assert!(error.to_string().contains("of a failed worker is lost"), "{error}");
        Ok(())
    });
}

#[test]
fn workers_that_differ_in_sharding_state_are_an_error() {
    let errors = crate::multi_worker::errors(2, 1, |strategy| {
        let model = model(strategy)?;
        let sharded = strategy.world().worker() == 1;
        let optimizer = sharded_if(sharded, Sgd::new(&model.variables, 0.1)?)?;
        train(strategy, &model, &optimizer, 0..1)
    });
    for error in errors {
        let blame = error.blame().expect("a blame");
        assert_eq!(blame.fault, Fault::Mismatch);
        assert!(blame.to_string().contains("minimize (sgd 1, sharded)"), "{blame}");
    }
}

#[test]
fn frozen_variables_and_groups_are_the_same_as_with_complete_state() {
    let trained = [false, true].map(|sharded| {
        on_workers(3, 1, move |strategy| {
            let model = model(strategy)?;
            let mut optimizer = sharded_if(sharded, AdamW::new(&model.variables, 0.01)?)?;
            optimizer = optimizer
                .with_rule_for(
                    |name| name == "out.bias",
                    rules::AdamW { weight_decay: 0., ..Default::default() },
                )?
                .rate_factor(|name| name == "out.weight", 0.5)?
                .freeze(|name| name == "table.weight")?;
            train(strategy, &model, &optimizer, 0..3)?;
            state(&model, &optimizer)
        })
    });
    assert!(trained[0] == trained[1]);
}

/// Checks a variable with gradients by row and dense ones in turn, and gradients of the program, which are not in
/// buckets.
#[test]
fn a_table_may_have_rows_in_one_step_and_all_elements_in_another() {
    let trained = |sharded: bool, workers: usize| {
        on_workers(workers, 1, move |strategy| {
            let table = strategy
                .replicate(|vb: VarBuilder| vb.get_with_hints((WORDS, WIDTH), "table", Init::Const(1.)))?;
            let optimizer = sharded_if(sharded, Adagrad::new(&table.variables, 0.1)?)?;
            for step in 0..6 {
                strategy.run((), |ctx, ()| {
                    let (replica, mut gradients) =
                        (ctx.replica_id_in_sync_group(), Gradients::new(&optimizer));
                    if step % 3 == 0 || (step % 3 == 1 && replica == 0) {
                        let rows = [(replica + step) as i64, 409, 819 + replica as i64, 1699];
                        let values = vec![0.3 * (replica + 1) as f32; rows.len() * WIDTH];
                        let values = HostTensor::new(values, [rows.len(), WIDTH])?;
                        let rows = HostTensor::vector(rows.to_vec());
                        gradients.insert("table", IndexedSlices::new(values, rows, None)?)?;
                    } else if step != 5 || replica != 0 {
                        let value = 0.01 * (replica + step) as f32;
                        gradients.insert("table", Tensor::full(value, (WORDS, WIDTH), &Device::Cpu)?)?;
                    }
                    optimizer.apply_gradients(ctx, gradients, ReduceOp::Sum)
                })?;
            }
            let slot = optimizer.slot("table", optimizer.slot_names().next().unwrap_or_default())?;
            Ok((bits(&table.variables.get("table")?)?, bits(&slot)?))
        })
    };
    for workers in [2, 3, 4] {
        assert!(trained(true, workers) == trained(false, workers), "{workers} workers");
    }
}
