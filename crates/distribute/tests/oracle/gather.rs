//! Cases of `Strategy::gather` and `ReplicaContext::all_gather`.

use super::case::{Case, Inputs, Ran};
use super::errors::raise;
use super::tensors::{all_json, each, leaf, leaf_json, leaves};
use distribute::PerReplica;
use serde_json::{Value, json};

/// Runs the cases of gather.json.
pub fn oracle_gather(case: &Case, inputs: &Inputs<'_>) -> Ran {
    let strategy = case.strategy(inputs)?;
    // A negative axis cannot be written in Rust: the type is usize.
    let axis = usize::try_from(inputs.int("axis")?).map_err(|_| raise("ValueError"));
    let outcome = |result| json!({"result": leaf_json(&result)});
    match (inputs.text("op")?, inputs.optional("values"), inputs.optional("value")) {
        ("gather", Some(Value::Array(values)), None) => {
            let values = PerReplica::from_values(each(values, case.replicas, leaf)?);
            Ok(outcome(strategy.gather(values, axis?)?))
        }
        ("gather", None, Some(value)) => {
            let value = leaf(value)?;
            Ok(outcome(strategy.gather(value, axis?)?))
        }
        ("gather_in_replica", None, Some(value)) => {
            let (value, axis) = (leaf(value)?, axis?);
            strategy.run((), |_, ()| strategy.gather(value.clone(), axis))?;
            Ok(json!({}))
        }
        ("all_gather", Some(Value::Array(values)), None) => {
            inputs.ignore("in_function");
            let values = PerReplica::from_values(each(values, case.replicas, leaves)?);
            let axis = axis?;
            let gathered = strategy.run(values, |ctx, value| ctx.all_gather(value, axis))?;
            Ok(json!({"per_replica": all_json(&gathered)}))
        }
        (other, ..) => Err(format!("unknown op {other:?}, or not one of value and values").into()),
    }
}
