//! Deliberate differences from TensorFlow: the rule, and this crate's behaviour. docs/from-tensorflow/differences.md
//! gives the reasons. A difference is recognised by the form of a case, never by its id. Everything else has to match.

use super::batching_differences as batching;
use super::case::{Case, Expect, Inputs, Tolerance};
use super::coordinator;
use super::partitioners;
use super::resolver_differences as resolvers;
use super::sharded;
use super::tensors::{leaves, leaves_json, nest};
use super::variable_differences as variables;
use distribute::HostTensor;
use distribute::tensor::{DType, Leaf, Tree};
use serde_json::{Map, Value, json};

/// A deliberate difference.
pub struct Difference {
    pub rule: &'static str,
    pub expect: Expect,
    pub tolerance: Option<Tolerance>,
}

impl Difference {
    pub fn outcome(rule: &'static str, outcome: Value) -> Self {
        Self { rule, expect: Expect::Outcome(outcome), tolerance: None }
    }

    pub fn error(rule: &'static str, class: &str) -> Self {
        Self { rule, expect: Expect::Error(class.to_string()), tolerance: None }
    }
}

/// The difference that a function of the table finds in a case.
pub type Found = Result<Option<Difference>, String>;

/// The functions that recognise differences, one for each kind.
const TABLE: [fn(&Case, &Inputs<'_>) -> Found; 33] = [
    never_merged_by_identity,
    the_variable_is_on_each_replica,
    leaf_next_to_container,
    no_graph_mode,
    values_are_always_per_replica,
    gather_checks_the_axis,
    slices_are_not_gathered,
    int32_next_to_other_leaves,
    one_replica_reduces_as_several_do,
    variables::no_writes_without_aggregation,
    variables::plain_numbers_are_summed,
    variables::writes_give_nothing_to_read,
    variables::the_remainder_is_kept,
    variables::copies_have_no_separate_values,
    variables::the_first_replica_is_that_of_worker_0,
    batching::every_batch_is_split_evenly,
    batching::workers_split_evenly,
    batching::batches_are_in_the_order_of_replicas,
    batching::single_elements_are_refused,
    batching::the_last_step_is_not_dropped,
    batching::too_few_files_are_read_by_all,
    batching::a_hint_may_find_few_elements,
    resolvers::tf_config_is_checked_completely,
    resolvers::addresses_are_host_and_port,
    resolvers::empty_overrides_count,
    resolvers::slurms_ranks_are_slurms,
    partitioners::there_is_at_least_one_shard,
    partitioners::zero_parts_are_one,
    sharded::rows_are_in_the_order_of_ids,
    sharded::slices_are_those_of_an_array,
    coordinator::every_function_can_be_scheduled,
    coordinator::workers_have_separate_pipelines,
    coordinator::other_strategies_have_no_coordinator,
];

/// Returns the difference that covers a case, if there is one. Returns an error if two differences cover it.
pub fn difference(case: &Case) -> Found {
    let inputs = Inputs::new(&case.inputs);
    let mut found = TABLE.iter().filter_map(|row| row(case, &inputs).transpose());
    match (found.next().transpose()?, found.next().transpose()?) {
        (Some(one), Some(other)) => Err(format!("both {} and {} claim this case", one.rule, other.rule)),
        (one, _) => Ok(one),
    }
}

pub fn op<'a>(inputs: &Inputs<'a>) -> &'a str {
    inputs.text("op").unwrap_or_default()
}

pub fn outcome(case: &Case) -> Option<&Map<String, Value>> {
    match &case.expect {
        Expect::Outcome(outcome) => outcome.as_object(),
        Expect::Error(_) => None,
    }
}

/// MERGE-6, RUN-12: TensorFlow returns a bare value if all replicas return the same object, and does not wrap the
/// result of a single replica. This crate's result is always per replica.
fn never_merged_by_identity(case: &Case, inputs: &Inputs<'_>) -> Found {
    let Some(result) = outcome(case).and_then(|outcome| outcome.get("result")) else { return Ok(None) };
    if !matches!(op(inputs), "run" | "run_variable" | "regroup") {
        return Ok(None);
    }
    let wrapped = wrap(result, case.replicas);
    // Values that TensorFlow does not wrap have no replicas, so there is no identity to compare.
    let rule = match inputs.optional("strategy").and_then(Value::as_str) {
        Some("one_device" | "default") => "RUN-12",
        _ => "MERGE-6",
    };
    Ok((wrapped != *result).then(|| Difference::outcome(rule, json!({"result": wrapped}))))
}

fn wrap(value: &Value, replicas: usize) -> Value {
    match value {
        Value::Object(object) if object.len() == 1 && object.contains_key("same") => {
            json!({"per_replica": vec![&object["same"]; replicas]})
        }
        Value::Object(object) => {
            object.iter().map(|(key, inner)| (key.clone(), wrap(inner, replicas))).collect()
        }
        Value::Array(items) => items.iter().map(|item| wrap(item, replicas)).collect(),
        other => other.clone(),
    }
}

/// MERGE-5: TensorFlow returns the distributed variable. This crate returns the variable of each replica, which is one
/// that they share.
fn the_variable_is_on_each_replica(case: &Case, _: &Inputs<'_>) -> Found {
    let it = outcome(case).and_then(|outcome| outcome.get("is_the_variable"));
    Ok(it.map(|it| Difference::outcome("MERGE-5", json!({"components_are_the_variable": it}))))
}

/// MERGE-4: TensorFlow wraps complete values if replica 0 returned a leaf and another replica a container. This crate
/// returns an error.
fn leaf_next_to_container(case: &Case, inputs: &Inputs<'_>) -> Found {
    if op(inputs) != "regroup" || outcome(case).is_none() {
        return Ok(None);
    }
    let values =
        inputs.list("values")?.iter().map(|value| nest(value, &|_| Ok(()))).collect::<Result<Vec<_>, _>>()?;
    Ok(Tree::zip(values).is_err().then(|| Difference::error("MERGE-4", "AssertionError")))
}

/// RUN-8: in TensorFlow's graph mode, `fn` is called only while tracing. This crate has no graph mode.
fn no_graph_mode(case: &Case, inputs: &Inputs<'_>) -> Found {
    if op(inputs) != "call_count" || !inputs.flag("traced")? {
        return Ok(None);
    }
    let calls = json!({"calls": inputs.count("steps")? * case.replicas});
    Ok((outcome(case) != calls.as_object()).then(|| Difference::outcome("RUN-8", calls)))
}

/// VFF-3: TensorFlow's one-device and default strategies return the bare value. In this crate, the value is always per
/// replica.
fn values_are_always_per_replica(case: &Case, inputs: &Inputs<'_>) -> Found {
    let Some(outcome) = outcome(case) else { return Ok(None) };
    if op(inputs) != "values_from_function" || outcome.get("is_per_replica") != Some(&json!(false)) {
        return Ok(None);
    }
    let mut ours = outcome.clone();
    ours.insert("is_per_replica".into(), json!(true));
    Ok(Some(Difference::outcome("VFF-3", ours.into())))
}

/// Returns whether the operation gathers values of replicas. Rows of a variable, which may also be gathered, do not
/// count.
fn is_gather(case: &Case, inputs: &Inputs<'_>) -> bool {
    case.area != "sharded" && matches!(op(inputs), "gather" | "all_gather")
}

/// GA-3, GA-4: TensorFlow accepts some negative axes, and any axis with one replica. This crate's axis is always in [0,
/// rank).
fn gather_checks_the_axis(case: &Case, inputs: &Inputs<'_>) -> Found {
    if outcome(case).is_none() || !is_gather(case, inputs) {
        return Ok(None);
    }
    let axis = inputs.int("axis")?;
    let values = inputs.optional("values").and_then(Value::as_array);
    let trees = values.into_iter().flatten().map(leaves).collect::<Result<Vec<_>, _>>()?;
    let dense = || trees.iter().flat_map(Tree::leaves).filter(|leaf| !matches!(leaf, Leaf::Slices(_)));
    let outside = |leaf: &Leaf| usize::try_from(axis).map_or(true, |axis| axis >= leaf.dims().len());
    // A scalar has no axis; all others refuse this axis.
    let rule = if dense().any(|leaf| leaf.dims().is_empty()) { "GA-3" } else { "GA-4" };
    Ok((axis < 0 || dense().any(outside)).then(|| Difference::error(rule, "InvalidArgumentError")))
}

/// SPARSE-4: TensorFlow makes indexed slices dense in some gathers. This crate always refuses them.
fn slices_are_not_gathered(case: &Case, inputs: &Inputs<'_>) -> Found {
    if outcome(case).is_none() || !is_gather(case, inputs) || inputs.int("axis")? < 0 {
        return Ok(None);
    }
    let values = inputs.optional("values").and_then(Value::as_array);
    let trees = values.into_iter().flatten().map(leaves).collect::<Result<Vec<_>, _>>()?;
    let sparse = trees.iter().flat_map(Tree::leaves).any(|leaf| matches!(leaf, Leaf::Slices(_)));
    Ok(sparse.then(|| Difference::error("SPARSE-4", "NotImplementedError")))
}

/// RTO-5: TensorFlow's MirroredStrategy refuses an int32 leaf next to other leaves. This crate reduces each leaf.
fn int32_next_to_other_leaves(case: &Case, inputs: &Inputs<'_>) -> Found {
    if outcome(case).is_some() || op(inputs) != "all_reduce" || !case.quirk {
        return Ok(None);
    }
    let values = inputs.list("values")?.iter().map(leaves).collect::<Result<Vec<_>, _>>()?;
    let int32 = |leaf: &&Leaf| leaf.dtype().is_ok_and(|dtype| dtype == DType::I32);
    let of_first = values.first().map(Tree::leaves).unwrap_or_default();
    if of_first.len() < 2 || !of_first.iter().any(int32) {
        return Ok(None);
    }
    let mean = inputs.text("reduce_op")?.eq_ignore_ascii_case("mean");
    let Ok(each) = Tree::zip(values) else { return Ok(None) };
    let Ok(result) = each.try_map(&mut |leaves| expected_reduction(&leaves, mean)) else { return Ok(None) };
    Ok(Some(Difference {
        rule: "RTO-5",
        expect: Expect::Outcome(json!({"per_replica": vec![leaves_json(&result); case.replicas]})),
        // The sum below is in f64; narrow floats round on the way.
        tolerance: Some(Tolerance { rtol: 2e-2, atol: 2e-2 }),
    }))
}

/// XD-8: TensorFlow returns a single replica's value unchanged. This crate treats one replica like several: a MEAN of
/// integers is a float, and bool and string are refused.
fn one_replica_reduces_as_several_do(case: &Case, inputs: &Inputs<'_>) -> Found {
    let whole = inputs.optional("axis").is_none_or(Value::is_null);
    if case.replicas != 1 || !whole || !matches!(op(inputs), "reduce" | "all_reduce") {
        return Ok(None);
    }
    let Some(outcome) = outcome(case) else { return Ok(None) };
    let Some([value]) = inputs.optional("values").and_then(Value::as_array).map(Vec::as_slice) else {
        return Ok(None);
    };
    let value = leaves(value)?;
    let dtypes = || value.leaves().into_iter().filter_map(|leaf| leaf.dtype().ok());
    if dtypes().any(|dtype| dtype.mean().is_none()) {
        return Ok(Some(Difference::error("XD-8", "InvalidArgumentError")));
    }
    let mean = inputs.text("reduce_op")?.eq_ignore_ascii_case("mean");
    if !mean || dtypes().all(|dtype| dtype.mean() == Some(dtype)) {
        return Ok(None);
    }
    let float = |leaf: &Leaf| match (leaf, leaf.dtype().ok().and_then(DType::mean)) {
        (Leaf::Host(tensor), Some(dtype)) => Ok(Leaf::Host(tensor.cast(dtype).map_err(|e| e.to_string())?)),
        _ => Err(format!("no expectation for {}", leaf.kind())),
    };
    let floats = value.leaves().into_iter().map(float).collect::<Result<Vec<_>, String>>()?;
    let result = value.map(&mut |_| ()).fill(floats).map_err(|e| e.to_string())?;
    let result = leaves_json(&result);
    let ours = if outcome.contains_key("per_replica") {
        json!({"per_replica": [result]})
    } else {
        json!({"result": result})
    };
    Ok(Some(Difference::outcome("XD-8", ours)))
}

/// Returns the sum or mean of dense real tensors of one shape, computed independently of the library.
fn expected_reduction(leaves: &[Leaf], mean: bool) -> Result<Leaf, String> {
    let tensors = leaves.iter().map(|leaf| match leaf {
        Leaf::Host(tensor) => Ok(tensor.clone()),
        other => Err(format!("no expectation for {}", other.kind())),
    });
    let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    let first = &tensors[0];
    if let [only] = &tensors[..] {
        return Ok(Leaf::Host(only.clone()));
    }
    if tensors.iter().any(|t| t.dims() != first.dims() || t.dtype() != first.dtype()) {
        return Err("shapes or dtypes differ".into());
    }
    let mut sum = vec![0f64; first.len()];
    for tensor in &tensors {
        let values = tensor.cast(DType::F64).and_then(|t| t.to_vec::<f64>()).map_err(|e| e.to_string())?;
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    let dtype = if mean { first.dtype().mean().ok_or("no mean")? } else { first.dtype() };
    if mean {
        sum.iter_mut().for_each(|sum| *sum /= tensors.len() as f64);
    }
    let sum = HostTensor::new(sum, first.dims()).and_then(|sum| sum.cast(dtype));
    sum.map(Leaf::Host).map_err(|e| e.to_string())
}
