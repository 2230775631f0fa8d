//! Cases of several workers of one replica each, which are threads of one process. Every worker makes the same calls,
//! and its results are compared with the list of that worker. Datasets run twice, like in `batching.rs`: under this
//! crate's rule, with the outcome that `even.rs` computes, and under TensorFlow's.

use super::batching::{batched, policy};
use super::case::{Case, Inputs, Ran, Stop};
use super::even;
use super::reduce::axes;
use super::tensors::{candle_json, each, leaf, leaf_json, leaves, leaves_json, to_json};
use super::training::{candle, variables, weights};
use super::variables::{assign, builder, components};
use candle_core::Tensor;
use distribute::data::{Dataset, InputContext, SplitRule};
use distribute::input::DistributedDataset;
use distribute::optimizer::rules;
use distribute::tensor::Leaf;
use distribute::{
    HostTensor, InputOptions, MultiWorkerMirroredStrategy, Optimizer, PerReplica, ReduceOp, Result, Strategy,
    Variable,
};
use serde_json::{Value, json};
use std::sync::Mutex;

/// Runs the cases of multi_worker.json.
pub fn oracle_multi_worker(case: &Case, inputs: &Inputs<'_>) -> Ran {
    let all = Workers::of(case, inputs)?;
    match inputs.text("op")? {
        "info" => all.run(info),
        "values_from_function" => all.run(|strategy| {
            let values = strategy.distribute_values_from_function(|context| {
                let pair = [context.replica_id_in_sync_group, context.num_replicas_in_sync];
                Ok(HostTensor::vector(pair.map(|n| n as i32).to_vec()))
            })?;
            Ok(local(&values, to_json))
        }),
        "reduce" => {
            let op: ReduceOp = inputs.text("reduce_op")?.parse()?;
            let (values, axes) = (all.each(inputs, leaf)?, axes(inputs.get("axis")?)?);
            all.run(|strategy| {
                let result = strategy.reduce(op, mine(strategy, &values), axes.clone())?;
                Ok(json!({"result": leaf_json(&result)}))
            })
        }
        "gather" => {
            let (values, axis) = (all.each(inputs, leaf)?, inputs.count("axis")?);
            all.run(|strategy| {
                let result = strategy.gather(mine(strategy, &values), axis)?;
                Ok(json!({"result": leaf_json(&result)}))
            })
        }
        "all_gather" => {
            let (values, axis) = (all.each(inputs, leaves)?, inputs.count("axis")?);
            all.run(|strategy| {
                let results =
                    strategy.run(mine(strategy, &values), |ctx, value| ctx.all_gather(value, axis))?;
                Ok(local(&results, leaves_json))
            })
        }
        "all_reduce" => {
            let op: ReduceOp = inputs.text("reduce_op")?.parse()?;
            let values = all.each(inputs, leaves)?;
            all.run(|strategy| {
                let results =
                    strategy.run(mine(strategy, &values), |ctx, value| ctx.all_reduce(op, value))?;
                Ok(local(&results, leaves_json))
            })
        }
        "dataset" => dataset(inputs, &all),
        "datasets_from_function" => datasets_from_function(inputs, &all),
        "variable" => variable(inputs, &all),
        "train_step" => train(inputs, &all),
        other => Err(format!("unknown op {other:?}").into()),
    }
}

/// The workers of a case, by their number.
struct Workers {
    workers: usize,
    replicas: usize,
}

impl Workers {
    fn of(case: &Case, inputs: &Inputs<'_>) -> std::result::Result<Self, String> {
        let workers = inputs.count("workers")?;
        if workers > 0 && case.replicas == workers {
            Ok(Self { workers, replicas: 1 })
        } else {
            Err(format!("{} replicas on {workers} workers", case.replicas))
        }
    }

    /// Reads the value of each worker.
    fn each<T>(
        &self,
        inputs: &Inputs<'_>,
        read: impl Fn(&Value) -> std::result::Result<T, String>,
    ) -> std::result::Result<Vec<T>, String> {
        each(inputs.list("values")?, self.workers, read)
    }

    fn run(&self, worker: impl Fn(&Strategy) -> Result<Value> + Sync) -> Ran {
        let strategies = MultiWorkerMirroredStrategy::on_threads(self.workers, self.replicas, |s| worker(s));
        Ok(json!({"per_worker": strategies?}))
    }
}

/// Returns the value of this worker, as a per-replica value for its one replica.
fn mine<T: Clone>(strategy: &Strategy, values: &[T]) -> PerReplica<T> {
    PerReplica::from_values(vec![values[strategy.world().worker()].clone()])
}

fn local<T>(values: &PerReplica<T>, show: impl Fn(&T) -> Value) -> Value {
    json!({"local_results": values.iter().map(show).collect::<Vec<_>>()})
}

fn info(strategy: &Strategy) -> Result<Value> {
    let ids = strategy.run((), |ctx, ()| Ok(HostTensor::scalar(ctx.replica_id_in_sync_group() as i32)))?;
    let world = strategy.world();
    Ok(json!({
        "num_replicas_in_sync": strategy.num_replicas_in_sync(),
        "replica_ids": ids.iter().map(to_json).collect::<Vec<_>>(),
        // All tasks of a world are workers.
        "task_type": "worker",
        "task_id": world.worker(),
        "num_workers": world.workers(),
        "should_checkpoint": strategy.is_chief(),
        "should_save_summary": strategy.is_chief(),
    }))
}

/// Returns the ids of this worker's replica, step by step.
fn steps(data: &DistributedDataset<HostTensor>) -> Result<Vec<Vec<i64>>> {
    data.iter().map(|step| Ok(step?.values()[0].to_vec()?)).collect()
}

fn dataset(inputs: &Inputs<'_>, all: &Workers) -> Ran {
    let (n, size) = (inputs.int("n")?, inputs.count("global_batch")?);
    let (drop, policy) = (inputs.flag("drop_remainder")?, policy(inputs.text("policy")?)?);
    let run = |split_rule| {
        let options = InputOptions { auto_shard_policy: policy, split_rule, ..Default::default() };
        all.run(|strategy| {
            let batches = batched(Dataset::range(n), size, drop);
            Ok(json!({"steps": steps(&strategy.distribute_dataset_with(batches, options)?)?}))
        })
    };
    let (ours, want) = (run(SplitRule::Even)?, even::of_workers(inputs)?);
    if ours == want {
        run(SplitRule::TensorFlow)
    } else {
        Err(format!("under our own rule: got {ours}, want {want}").into())
    }
}

fn datasets_from_function(inputs: &Inputs<'_>, all: &Workers) -> Ran {
    let (n, size) = (inputs.int("n")?, inputs.count("global_batch")?);
    all.run(|strategy| {
        let contexts = std::sync::Arc::new(Mutex::new(Vec::new()));
        let calls = contexts.clone();
        let make = move |context: InputContext| {
            let (pipelines, id) = (context.num_input_pipelines, context.input_pipeline_id);
            calls.lock().unwrap().push(json!({
                "num_input_pipelines": pipelines,
                "input_pipeline_id": id,
                "num_replicas_in_sync": context.num_replicas_in_sync,
            }));
            let batches = Dataset::range(n).batch(context.get_per_replica_batch_size(size)?);
            Ok(batches.shard(pipelines, id))
        };
        let steps = steps(&strategy.distribute_datasets_from_function(make)?)?;
        let contexts = contexts.lock().unwrap();
        assert_eq!(contexts.len(), 1, "dataset_fn is called once");
        Ok(json!({"context": contexts[0], "steps": steps}))
    })
}

fn variable(inputs: &Inputs<'_>, all: &Workers) -> Ran {
    let initial = each(inputs.list("initial")?, all.workers, super::tensors::tensor)?;
    let (values, method) = (all.each(inputs, leaf)?, inputs.text("method")?);
    let spec = (inputs.text("sync")?, inputs.text("aggregation")?);
    // What cannot be read is a mistake of the file, not an outcome.
    drop(builder(spec, initial[0].clone())?);
    all.run(|strategy| {
        let initial = initial[strategy.world().worker()].clone();
        let made = |stop| match stop {
            Stop::Library(error) => error,
            Stop::Runner(why) => distribute::Error::other(why),
        };
        let variable: Variable = strategy.scope(|| builder(spec, initial).map_err(made)?.create())?;
        let before = components(&variable)?;
        strategy.run(mine(strategy, &values), |_, value: Leaf| assign(&variable, method, value))?;
        let cross_read = strategy.scope(|| variable.read::<Leaf>())?;
        let local = components(&variable)?;
        Ok(json!({"initial_local": before, "local": local, "cross_read": leaf_json(&cross_read)}))
    })
}

fn train(inputs: &Inputs<'_>, all: &Workers) -> Ran {
    let read = |name: &str| candle(inputs.get(name)?);
    let (w, x, y) = (read("w")?, read("x")?, read("y")?);
    let (global_batch, lr) = (inputs.count("global_batch")?, inputs.float("lr")?);
    let x_w = |x: &Tensor, w: &Tensor| x.matmul(&w.unsqueeze(1)?)?.squeeze(1);
    all.run(|strategy| {
        let model = variables(strategy, std::slice::from_ref(&w))?;
        let optimizer = Optimizer::with_rule(rules::Sgd, &model.variables, lr)?;
        let rows = Dataset::from_slices((x.clone(), y.clone()))?;
        let mut losses = Vec::new();
        for batch in &strategy.distribute_dataset(rows.batch(global_batch))? {
            let loss = strategy.run((&model, batch?), |ctx, (w, (x, y))| {
                let rows = x.dim(0)?;
                // The oracle divides by the global batch in a partial one too, minimize by the examples there are.
                let present = ctx.all_reduce(ReduceOp::Sum, rows as f64)?;
                if rows == 0 {
                    return optimizer.skip(ctx);
                }
                let mean = (x_w(&x, &w[0])? - &y)?.sqr()?.mean_all()?;
                optimizer.minimize(ctx, (mean * (present / global_batch as f64))?, rows)
            })?;
            losses.push(candle_json(&loss.values()[0]));
        }
        Ok(json!({"losses": losses, "w": weights(&model)?[0]}))
    })
}
