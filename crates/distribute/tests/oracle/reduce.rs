//! Cases of `Strategy::reduce`.

use super::case::{Case, Inputs, Ran};
use super::tensors::{each, leaf, leaf_json};
use distribute::values::Axes;
use distribute::{PerReplica, ReduceOp};
use serde_json::{Value, json};

/// Runs the cases of reduce.json.
pub fn oracle_reduce(case: &Case, inputs: &Inputs<'_>) -> Ran {
    let strategy = case.strategy(inputs)?;
    let op = inputs.text("reduce_op")?;
    let axes = axes(inputs.get("axis")?)?;
    let outcome = |result| json!({"result": leaf_json(&result)});
    match (inputs.text("op")?, inputs.optional("values"), inputs.optional("value")) {
        ("reduce", Some(Value::Array(values)), None) => {
            let values = PerReplica::from_values(each(values, case.replicas, leaf)?);
            Ok(outcome(strategy.reduce(op.parse::<ReduceOp>()?, values, axes)?))
        }
        ("reduce", None, Some(value)) => {
            let value = leaf(value)?;
            Ok(outcome(strategy.reduce(op.parse::<ReduceOp>()?, value, axes)?))
        }
        ("reduce_in_replica", None, Some(value)) => {
            let (value, op) = (leaf(value)?, op.parse::<ReduceOp>()?);
            strategy.run((), |_, ()| strategy.reduce(op, value.clone(), axes.clone()))?;
            Ok(json!({}))
        }
        (other, ..) => Err(format!("unknown op {other:?}, or not one of value and values").into()),
    }
}

pub fn axes(value: &Value) -> Result<Axes, String> {
    let axis = |value: &Value| value.as_i64().ok_or_else(|| format!("{value} is no axis"));
    match value {
        Value::Null => Ok(None.into()),
        Value::Array(axes) => Ok(axes.iter().map(axis).collect::<Result<Vec<_>, _>>()?.into()),
        one => Ok(axis(one)?.into()),
    }
}
