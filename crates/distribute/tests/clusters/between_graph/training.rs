//! Training by several workers.

use crate::between_graph::support::{PATIENCE, all, worker};
use candle_core::{Device, Module, Tensor};
use distribute::checkpoint::CheckpointManager;
use distribute::optimizer::Adagrad;
use distribute::optimizer::rules::{self, Rule};
use distribute::variables::VariableAggregation;
use distribute::{LocalCluster, nn, prelude::*};
use distribute_testing::watched;

struct Net {
    words: nn::Embedding,
    out: nn::Linear,
}

const WORDS: usize = 20;

fn model(strategy: &Strategy) -> distribute::Result<Replicated<Net>> {
    strategy.replicate(|vb| {
        distribute::Ok(Net {
            words: nn::embedding(WORDS, 4, vb.pp("words"))?,
            out: nn::linear(4, 1, vb.pp("out"))?,
        })
    })
}

/// Returns the loss of the given number of examples of a step. The target of each word is its id modulo 3.
fn loss(net: &Net, step: usize, examples: usize) -> distribute::Result<Tensor> {
    let ids: Vec<u32> = (0..examples).map(|i| ((i * 7 + step * 3) % WORDS) as u32).collect();
    let targets: Vec<f32> = ids.iter().map(|id| (id % 3) as f32).collect();
    let out = net.out.forward(&net.words.forward(&Tensor::new(ids, &Device::Cpu)?)?)?.squeeze(1)?;
    Ok((out - Tensor::new(targets, &Device::Cpu)?)?.sqr()?.mean_all()?)
}

fn step<R: Rule>(
    strategy: &Strategy,
    model: &Replicated<Net>,
    optimizer: &Optimizer<R>,
    step: usize,
) -> distribute::Result<f32> {
    let examples = 8 / strategy.num_replicas_in_sync();
    let losses = strategy.run(model, |ctx, net| {
        let number = step + 100 * ctx.replica_id_in_sync_group();
        Ok(optimizer.minimize(ctx, loss(net, number, examples)?, examples)?.to_scalar::<f32>()?)
    })?;
    Ok(losses.into_values()[0])
}

fn values(model: &Replicated<Net>) -> Vec<Vec<f32>> {
    let values = |name: &String| model.variables.get(name).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    model.variables.names().iter().map(values).collect()
}

// PSV1-4
#[test]
fn psv1_4_replicas_of_a_worker_make_one_update_as_mirrored_replicas_do() {
    watched(|| {
        let cluster = LocalCluster::new(2, 2).unwrap();
        let servers = worker(&cluster, 0, 2);
        let mirrored = MirroredStrategy::cpus(2).unwrap();
        let train = |strategy: &Strategy| {
            let model = model(strategy).unwrap();
            let optimizer = Adagrad::new(&model.variables, 0.1).unwrap();
            let losses: Vec<_> =
                (0..10).map(|number| step(strategy, &model, &optimizer, number).unwrap().to_bits()).collect();
            (losses, values(&model))
        };
        assert_eq!(train(&servers), train(&mirrored));
    });
}

// PSV1-4
#[test]
fn psv1_4_updates_of_workers_add_up_without_waiting() {
    watched(|| {
        const TOTAL: i64 = 400;
        let all = all(2, 2, |strategy| {
            let model = model(&strategy)?;
            let optimizer = Adagrad::new(&model.variables, 0.3)?;
            let (steps, mut last) = (strategy.global_step()?, f32::NAN);
            while steps.read::<i64>()? < TOTAL {
                last = step(&strategy, &model, &optimizer, strategy.steps() as usize)?;
                steps.assign_add(1i64)?;
            }
            let made = strategy.steps();
            strategy.finish(PATIENCE)?;
            let counted = steps.read::<i64>()?;
            Ok((made, counted, last, strategy.is_chief().then(|| values(&model))))
        });
        let (made, counted): (u64, i64) = (all.iter().map(|worker| worker.0).sum(), all[0].1);
        assert_eq!(made as i64, counted, "each step of each worker is counted once");
        assert!((TOTAL..=TOTAL + 2).contains(&counted), "{counted}");
        assert!(all.iter().all(|worker| worker.2 < 0.05), "{all:?}");
    });
}

#[test]
fn a_worker_that_pushes_by_another_rule_is_refused_and_both_rules_are_named() {
    watched(|| {
        let cluster = LocalCluster::new(2, 2).unwrap();
        let (one, other) = (worker(&cluster, 0, 1), worker(&cluster, 1, 1));
        let (first, second) = (model(&one).unwrap(), model(&other).unwrap());
        let optimizer = Adagrad::new(&first.variables, 0.1).unwrap();
        step(&one, &first, &optimizer, 0).unwrap();
        let before = values(&first);
        let slower = rules::Adagrad { epsilon: 0.5, ..Default::default() };
        let refused = [
            step(&other, &second, &Optimizer::with_rule(slower, &second.variables, 0.1).unwrap(), 1),
            step(&other, &second, &Sgd::new(&second.variables, 0.1).unwrap(), 1),
        ];
        for (refused, found) in refused.into_iter().zip(["epsilon: 0.5", "Sgd"]) {
            let text = refused.unwrap_err().to_string();
            for part in ["is already updated by Adagrad", "epsilon: 1e-7", "cannot be updated by ", found] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        assert_eq!(values(&first), before, "nothing was pushed");
        step(&one, &first, &optimizer, 1).unwrap();
    });
}

// INV-63
#[test]
fn a_restarted_worker_continues_with_the_variables_on_the_servers() {
    watched(|| {
        let cluster = LocalCluster::new(2, 2).unwrap();
        let chief = worker(&cluster, 0, 1);
        let made = model(&chief).unwrap();
        let optimizer = Adagrad::new(&made.variables, 0.1).unwrap();
        step(&chief, &made, &optimizer, 0).unwrap();
        for life in 0..3 {
            let other = worker(&cluster, 1, 1);
            let found = model(&other).unwrap();
            assert_eq!(values(&found), values(&made), "life {life}");
            let optimizer = Adagrad::new(&found.variables, 0.1).unwrap();
            let before = values(&found);
            step(&other, &found, &optimizer, life).unwrap();
            assert!(values(&made) != before, "life {life}: its step is in the weights of all");
        }
    });
}

// PSV1-11
#[test]
fn psv1_11_the_chief_saves_the_shared_variables_and_a_new_job_restores_them() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let manager = CheckpointManager::new(folder.path()).unwrap();
        let cluster = LocalCluster::new(2, 2).unwrap();
        let [chief, other] = [0, 1].map(|number| worker(&cluster, number, 1));
        let models = [&chief, &other].map(|strategy| model(strategy).unwrap());
        let optimizers = [&models[0], &models[1]].map(|model| Adagrad::new(&model.variables, 0.1).unwrap());
        for (strategy, (model, optimizer)) in [&chief, &other].into_iter().zip(models.iter().zip(&optimizers))
        {
            step(strategy, model, optimizer, 0).unwrap();
            let training = Checkpoint::new().part("model", &model.variables).part("optimizer", optimizer);
            let saved = training.save_to(&manager);
            // The other worker gets an error.
            if strategy.is_chief() {
                saved.unwrap();
            } else {
                assert!(saved.unwrap_err().to_string().contains("is_chief"), "refused");
            }
        }
        let next = LocalCluster::new(2, 3).unwrap();
        let chief = worker(&next, 0, 1);
        let restored = model(&chief).unwrap();
        let optimizer = Adagrad::new(&restored.variables, 0.1).unwrap();
        let training = Checkpoint::new().part("model", &restored.variables).part("optimizer", &optimizer);
        assert!(training.restore_latest(&manager).unwrap().is_some());
        let mirrored = OneDeviceStrategy::new("cpu:0").unwrap();
        let alone = model(&mirrored).unwrap();
        let optimizer = Adagrad::new(&alone.variables, 0.1).unwrap();
        step(&mirrored, &alone, &optimizer, 0).unwrap();
        assert_eq!(values(&restored), values(&alone), "what the chief saved, before the other's step");
    });
}

// PSV1-4
#[test]
fn psv1_4_a_write_of_replicas_is_aggregated_within_the_worker() {
    watched(|| {
        let cluster = LocalCluster::new(2, 1).unwrap();
        let strategies = [0, 1].map(|number| worker(&cluster, number, 2));
        for (worker, strategy) in strategies.iter().enumerate() {
            let sum = strategy
                .scope(|| {
                    Variable::builder("sum", 0i64).aggregation(VariableAggregation::Sum).get_or_create()
                })
                .unwrap();
            strategy.run((), |ctx, ()| sum.assign_add(1 + ctx.replica_id_in_sync_group() as i64)).unwrap();
            assert_eq!(sum.read::<i64>().unwrap(), 3 * (worker as i64 + 1));
        }
    });
}
