//! Deliberate differences from TensorFlow in the partition of datasets. See `differences.rs`. The expected outcome
//! under this crate's rule is in `even.rs`, and was checked when the case ran. Under `SplitRule::TensorFlow` the case
//! must have TensorFlow's outcome, except for the differences here.

use super::case::{Case, Expect, Inputs};
use super::differences::{Difference, Found, op, outcome};
use super::errors::Kind;
use super::even::{self, Read};
use serde_json::{Value, json};

/// Returns this crate's outcome of a case of this area, if it differs from TensorFlow's.
fn ours(case: &Case, inputs: &Inputs<'_>) -> Result<Option<Value>, String> {
    if case.area != "batching" {
        return Ok(None);
    }
    let Some(ours) = even::outcome(case.replicas, inputs)? else { return Ok(None) };
    let error = ours.get("error").and_then(Value::as_str).and_then(Kind::of_type);
    let same = match &case.expect {
        Expect::Outcome(theirs) => {
            let agree = |field| ours.get(field) == theirs.get(field);
            error.is_none() && agree("steps") && agree("batches")
        }
        Expect::Error(class) => error.is_some() && error == Kind::of_type(class),
    };
    Ok((!same).then_some(ours))
}

/// Returns a difference by `rule` whose outcome under `SplitRule::TensorFlow` is TensorFlow's.
fn theirs(case: &Case, rule: &'static str) -> Difference {
    Difference { rule, expect: case.expect.clone(), tolerance: None }
}

/// DIST-4, DIST-5: TensorFlow splits in two ways, depending on source and policy. One gives the last replicas fewer
/// rows, and the other splits across batches. This crate splits every batch evenly.
pub fn every_batch_is_split_evenly(case: &Case, inputs: &Inputs<'_>) -> Found {
    if ours(case, inputs)?.is_none() || outcome(case).is_none() {
        return Ok(None);
    }
    let parted = matches!(op(inputs), "distribute_dataset" | "distribute_struct" | "split_batches");
    let over_workers = op(inputs) == "auto_shard" && !only_the_order_differs(inputs)?;
    if !parted && !over_workers || is_unbatched(inputs) {
        return Ok(None);
    }
    // For a dataset without any batch, TensorFlow still makes pieces of size 0, in some cases without end.
    let nothing = outcome(case).is_some_and(|theirs| !theirs.values().any(has_ids));
    let steps = json!({"steps": []});
    Ok(Some(if nothing { Difference::outcome("DIST-4", steps) } else { theirs(case, "DIST-4") }))
}

fn has_ids(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(has_ids),
        other => other.is_number(),
    }
}

/// DIST-4, over workers. TensorFlow's parts of size 0 may also create a step in which no worker has a row. Under
/// `SplitRule::TensorFlow` this crate has such steps after batches, but not for an empty dataset.
pub fn workers_split_evenly(case: &Case, inputs: &Inputs<'_>) -> Found {
    if case.area != "multi_worker" || op(inputs) != "dataset" {
        return Ok(None);
    }
    let of_workers = outcome(case).and_then(|theirs| theirs.get("per_worker")?.as_array());
    let Some(of_workers) = of_workers else { return Ok(None) };
    let ours = even::of_workers(inputs)?;
    let nothing = !of_workers.iter().any(|worker| has_ids(&worker["steps"]));
    Ok((Expect::Outcome(ours.clone()) != case.expect)
        .then(|| if nothing { Difference::outcome("DIST-4", ours) } else { theirs(case, "DIST-4") }))
}

/// AS-6: TensorFlow deals the parts of a batch to workers in turn, so that neighbours are on different workers. This
/// crate gives part k to global replica k.
pub fn batches_are_in_the_order_of_replicas(case: &Case, inputs: &Inputs<'_>) -> Found {
    let differs = op(inputs) == "auto_shard" && outcome(case).is_some() && ours(case, inputs)?.is_some();
    Ok((differs && only_the_order_differs(inputs)?).then(|| theirs(case, "AS-6")))
}

/// Returns whether all workers see the same batches, and rounding up everywhere gives the same parts as an even split.
fn only_the_order_differs(inputs: &Inputs<'_>) -> Result<bool, String> {
    let n = inputs.count("num_workers")? * inputs.count("replicas_per_worker")?;
    let Some(Read::Together(ids)) = even::read(inputs)? else { return Ok(false) };
    let size = inputs.count("global_batch")?;
    let drop = inputs.flag("drop_remainder")?;
    let mut batches = ids.chunks(size).filter(|batch| !drop || batch.len() == size).map(<[i64]>::len);
    let up = |b: usize, k: usize| b.div_ceil(n).min(b.saturating_sub(k * b.div_ceil(n)));
    Ok(batches.all(|b| (0..n).all(|k| up(b, k) == b / n + usize::from(k < b % n))))
}

fn is_unbatched(inputs: &Inputs<'_>) -> bool {
    op(inputs) == "distribute_dataset" && inputs.optional("global_batch").is_some_and(Value::is_null)
}

/// DIST-9: TensorFlow gives single elements to one replica, and fails with an index out of range for several. This
/// crate refuses unbatched elements for any number of replicas. Under `SplitRule::TensorFlow` one replica gets the
/// elements.
pub fn single_elements_are_refused(case: &Case, inputs: &Inputs<'_>) -> Found {
    if !is_unbatched(inputs) {
        return Ok(None);
    }
    Ok(Some(match case.expect {
        Expect::Outcome(_) => theirs(case, "DIST-9"),
        Expect::Error(_) => Difference::error("DIST-9", "ValueError"),
    }))
}

/// ITER-2, ITER-3: TensorFlow drops a last step that lacks an element for some replica, if all shapes are static. This
/// crate gives empty batches to such replicas. Scalars cannot be empty, which is an error.
pub fn the_last_step_is_not_dropped(case: &Case, inputs: &Inputs<'_>) -> Found {
    if op(inputs) != "datasets_from_function" || ours(case, inputs)?.is_none() {
        return Ok(None);
    }
    let rule = if inputs.text("dataset_fn")? == "unbatched" { "ITER-2" } else { "ITER-3" };
    Ok(Some(theirs(case, rule)))
}

/// AS-5: AUTO with fewer files than workers fails in TensorFlow when the first batch is read. This crate falls back to
/// DATA.
pub fn too_few_files_are_read_by_all(case: &Case, inputs: &Inputs<'_>) -> Found {
    let auto = op(inputs) == "auto_shard" && inputs.text("policy")? == "AUTO" && outcome(case).is_none();
    Ok((auto && ours(case, inputs)?.is_some()).then(|| theirs(case, "AS-5")))
}

/// AS-12: TensorFlow fails if a hint matches fewer elements than workers. This crate cannot know that before all
/// elements are read, and gives empty batches to workers without elements, under either rule.
pub fn a_hint_may_find_few_elements(case: &Case, inputs: &Inputs<'_>) -> Found {
    let hint = op(inputs) == "auto_shard" && inputs.text("policy")? == "HINT" && outcome(case).is_none();
    if !hint {
        return Ok(None);
    }
    Ok(ours(case, inputs)?.map(|ours| Difference::outcome("AS-12", ours)))
}
