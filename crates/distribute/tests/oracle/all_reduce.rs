//! Cases of `ReplicaContext::all_reduce`, and of gradients through it and through `all_gather`.

use super::arithmetic::times;
use super::case::{Case, Inputs, Ran};
use super::tensors::{all_json, candle_json, each, leaves, tensor};
use candle_core::{Device, Tensor, Var};
use distribute::{PerReplica, ReduceOp, ReplicaContext, Strategy};
use serde_json::{Value, json};

/// Runs the cases of all_reduce.json.
pub fn oracle_all_reduce(case: &Case, inputs: &Inputs<'_>) -> Ran {
    let strategy = case.strategy(inputs)?;
    inputs.ignore("in_function");
    match inputs.text("op")? {
        "all_reduce" => {
            let values = PerReplica::from_values(each(inputs.list("values")?, case.replicas, leaves)?);
            let op: ReduceOp = inputs.text("reduce_op")?.parse()?;
            let reduced = strategy.run(values, |ctx, value| ctx.all_reduce(op, value))?;
            Ok(json!({"per_replica": all_json(&reduced)}))
        }
        "all_reduce_chain" => {
            let values = PerReplica::from_values(each(inputs.list("values")?, case.replicas, leaves)?);
            let ops = (inputs.text("reduce_op")?, inputs.text("reduce_op2")?);
            let (op, op2): (ReduceOp, ReduceOp) = (ops.0.parse()?, ops.1.parse()?);
            let results = strategy.run(values, |ctx, value| {
                let first = ctx.all_reduce(op, value)?;
                let scaled =
                    first.clone().try_map(&mut |leaf| times(&leaf, ctx.replica_id_in_sync_group() + 1))?;
                Ok((first, ctx.all_reduce(op2, scaled)?))
            })?;
            let (first, second) = results.unzip();
            Ok(json!({"first": all_json(&first), "second": all_json(&second)}))
        }
        "all_reduce_grad" => {
            let op: ReduceOp = inputs.text("reduce_op")?.parse()?;
            gradient(case, inputs, &strategy, |ctx, x| ctx.all_reduce(op, x))
        }
        "all_gather_grad" => {
            let axis = inputs.count("axis")?;
            gradient(case, inputs, &strategy, |ctx, x| ctx.all_gather(x, axis))
        }
        "replica_context_in_scope" => {
            let has = strategy.scope(|| Ok(distribute::context::get_replica_context().is_some()))?;
            Ok(json!({"replica_context": if has { json!("a replica context") } else { Value::Null }}))
        }
        other => Err(format!("unknown op {other:?}").into()),
    }
}

fn gradient(
    case: &Case,
    inputs: &Inputs<'_>,
    strategy: &Strategy,
    collective: impl Fn(&ReplicaContext, Tensor) -> distribute::Result<Tensor> + Sync,
) -> Ran {
    let power = inputs.int("power")?;
    let candle = |name: &str| -> Result<Vec<Tensor>, String> {
        let read = |value: &Value| tensor(value)?.to_candle(&Device::Cpu).map_err(|e| e.to_string());
        each(inputs.list(name)?, case.replicas, read)
    };
    let arguments = candle("x")?.into_iter().zip(candle("w")?).collect();
    let results = strategy.run(PerReplica::from_values(arguments), |ctx, (x, w)| {
        let x = Var::from_tensor(&x)?;
        let y = collective(ctx, x.as_tensor().clone())?;
        let mut raised = y.clone();
        for _ in 1..power {
            raised = (raised * &y)?;
        }
        let loss = (w * raised)?.sum_all()?;
        let gradients = loss.backward()?;
        let gradient = gradients.get(&x).ok_or_else(|| distribute::Error::other("x has no gradient"))?;
        Ok((y.detach(), loss.detach(), gradient.clone()))
    })?;
    let (y, loss, gradient) = results.unzip3();
    let all = |tensors: &PerReplica<Tensor>| tensors.iter().map(candle_json).collect::<Value>();
    Ok(json!({"y": all(&y), "loss": all(&loss), "grad": all(&gradient)}))
}
