//! Cases of `Strategy::distribute_values_from_function`.

use super::arithmetic::times;
use super::case::{Case, Inputs, Ran};
use super::errors::raise;
use super::tensors::{all_json, leaf_json, tensor};
use distribute::strategy::ValueContext;
use distribute::tensor::{Leaf, Tree};
use distribute::{HostTensor, ReduceOp};
use serde_json::json;
use std::collections::BTreeMap;

type Function<'a> = Box<dyn Fn(ValueContext) -> distribute::Result<Tree<Leaf>> + 'a>;

/// Runs the cases of values_from_function.json.
pub fn oracle_values_from_function(case: &Case, inputs: &Inputs<'_>) -> Ran {
    let strategy = case.strategy(inputs)?;
    match inputs.text("op")? {
        "values_from_function" => {
            let function = function(inputs)?;
            let mut calls = 0;
            let values = strategy.distribute_values_from_function(|ctx| {
                calls += 1;
                function(ctx)
            })?;
            // The type says so: it is never the bare value.
            let outcome = |results| json!({"calls": calls, "is_per_replica": true, "local_results": results});
            Ok(outcome(all_json(&strategy.local_results(values)?)))
        }
        "values_then_run_reduce" => {
            let array = tensor(inputs.get("array")?)?;
            let values = strategy.distribute_values_from_function(|ctx| {
                Ok(Leaf::Host(array.row(ctx.replica_id_in_sync_group)?))
            })?;
            let doubled = strategy.run(&values, |_, x| times(x, 2))?;
            let sum = strategy.reduce(ReduceOp::Sum, &values, None)?;
            let mean = strategy.reduce(ReduceOp::Mean, &doubled, None)?;
            let doubled: Vec<_> = strategy.local_results(doubled)?.iter().map(leaf_json).collect();
            Ok(json!({"doubled": doubled, "sum": leaf_json(&sum), "mean_doubled": leaf_json(&mean)}))
        }
        other => Err(format!("unknown op {other:?}").into()),
    }
}

fn function<'a>(inputs: &Inputs<'a>) -> Result<Function<'a>, String> {
    let leaf = |tensor: HostTensor| Ok(Tree::Leaf(Leaf::Host(tensor)));
    let int = |value: i64| Tree::Leaf(Leaf::Host(HostTensor::scalar(value as i32)));
    let id = |ctx: ValueContext| ctx.replica_id_in_sync_group;
    let n = |ctx: ValueContext| ctx.num_replicas_in_sync;
    Ok(match inputs.text("fn")? {
        "const" | "const_identity" => {
            let value = tensor(inputs.get("value")?)?;
            Box::new(move |_| leaf(value.clone()))
        }
        "array_by_replica_id" => {
            let array = tensor(inputs.get("array")?)?;
            Box::new(move |ctx| {
                if id(ctx) < array.dims()[0] { leaf(array.row(id(ctx))?) } else { Err(raise("IndexError")) }
            })
        }
        "strided_slice" => {
            let array = tensor(inputs.get("array")?)?;
            Box::new(move |ctx| {
                let rows: Vec<usize> = (id(ctx)..array.dims()[0]).step_by(n(ctx)).collect();
                leaf(array.take_rows(&rows)?)
            })
        }
        "num_replicas" => Box::new(move |ctx| Ok(int(n(ctx) as i64))),
        "replica_id" => Box::new(move |ctx| Ok(int(id(ctx) as i64))),
        "id_times" => {
            let k = inputs.int("k")?;
            Box::new(move |ctx| Ok(int(id(ctx) as i64 * k)))
        }
        "id_over_n" => {
            inputs.ignore("k");
            Box::new(move |ctx| leaf(HostTensor::scalar(id(ctx) as f64 / n(ctx) as f64)))
        }
        "ones_by_id" => {
            let k = inputs.count("k")?;
            Box::new(move |ctx| leaf(HostTensor::new(vec![1f32; (id(ctx) + 1) * k], [id(ctx) + 1, k])?))
        }
        "nest" => {
            let k = inputs.int("k")?;
            Box::new(move |ctx| {
                let pair = vec![int(id(ctx) as i64 * k), Tree::Tuple(vec![int(n(ctx) as i64)])];
                let items = [("a".to_string(), int(id(ctx) as i64)), ("b".to_string(), Tree::List(pair))];
                Ok(Tree::Dict(BTreeMap::from(items)))
            })
        }
        other => return Err(format!("unknown fn {other:?}")),
    })
}
