//! Cases of distributed datasets, of rebatching and of sharding. A case runs twice: under this crate's rule, with the
//! outcome that `even.rs` computes, and under `SplitRule::TensorFlow`, with TensorFlow's outcome.

use super::case::{Case, Inputs, Ran, Stop};
use super::errors::Kind;
use super::even;
use super::files;
use super::tensors::leaves_json;
use distribute::data::plan::recut::worker_sizes;
use distribute::data::{
    AutoShardPolicy, Dataset, DistributeOptions, Distribution, InputContext, Layout, SplitRule, split,
};
use distribute::input::DistributedDataset;
use distribute::tensor::{Leaf, Tree};
use distribute::{HostTensor, InputOptions, Nest};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Runs the cases of batching.json.
pub fn oracle_batching(case: &Case, inputs: &Inputs<'_>) -> Ran {
    match inputs.text("op")? {
        "distribute_dataset" => both(case, inputs, |rule| distribute_dataset(case, inputs, rule)),
        "distribute_struct" => both(case, inputs, |rule| distribute_struct(case, inputs, rule)),
        "datasets_from_function" => both(case, inputs, |rule| datasets_from_function(case, inputs, rule)),
        "auto_shard" => both(case, inputs, |rule| auto_shard(case, inputs, rule)),
        "split_batches" => both(case, inputs, |rule| split_batches(inputs, rule)),
        "batch_sizes_for_worker" => batch_sizes_for_worker(inputs),
        "rebatch" => rebatch(inputs),
        "per_replica_batch_size" => per_replica_batch_size(inputs),
        other => Err(format!("unknown op {other:?}").into()),
    }
}

/// The outcome of a run, and the error that ended it.
struct Seen {
    outcome: Value,
    error: Option<distribute::Error>,
}

impl Seen {
    fn steps(steps: impl IntoIterator<Item = distribute::Result<Value>>) -> Self {
        let mut seen = Vec::new();
        let mut error = None;
        for step in steps {
            match step {
                Ok(step) => seen.push(step),
                Err(other) => error = Some(other),
            }
        }
        Seen { outcome: json!({"steps": seen}), error }
    }

    fn refused(error: impl Into<distribute::Error>) -> Self {
        Seen { outcome: json!({}), error: Some(error.into()) }
    }
}

/// Runs a case under both rules. Checks the outcome of this crate's rule, and returns the outcome of TensorFlow's.
fn both(case: &Case, inputs: &Inputs<'_>, run: impl Fn(SplitRule) -> Result<Seen, Stop>) -> Ran {
    let want = even::outcome(case.replicas, inputs)?;
    let want = want.ok_or_else(|| "our rule says nothing of this".to_string())?;
    let ours = run(SplitRule::Even)?;
    let kind = |class: &Value| class.as_str().and_then(Kind::of_type);
    let as_wanted = match &ours.error {
        None => want.get("error").is_none(),
        Some(error) => Kind::of_error(error) == want.get("error").and_then(kind),
    };
    let field = if want.get("batches").is_some() { "batches" } else { "steps" };
    if !as_wanted || want.get(field).is_some_and(|want| ours.outcome.get(field) != Some(want)) {
        let why = ours.error.map(|error| format!(" and the error {error}")).unwrap_or_default();
        return Err(format!("under our own rule: got {}{why}, want {want}", ours.outcome).into());
    }
    let theirs = run(SplitRule::TensorFlow)?;
    match theirs.error {
        Some(error) => Err(error.into()),
        None => Ok(theirs.outcome),
    }
}

pub fn policy(name: &str) -> Result<AutoShardPolicy, String> {
    Ok(match name {
        "AUTO" => AutoShardPolicy::Auto,
        "OFF" => AutoShardPolicy::Off,
        "FILE" => AutoShardPolicy::File,
        "DATA" => AutoShardPolicy::Data,
        "HINT" => AutoShardPolicy::Hint,
        other => return Err(format!("unknown policy {other:?}")),
    })
}

/// Returns the elements of the replicas in each of the first `limit` steps. Unbatched elements stay unbatched.
fn seen<T: Nest + Clone>(
    dataset: distribute::Result<DistributedDataset<T>>,
    limit: usize,
    show: impl Fn(&Tree<Leaf>) -> Value,
) -> Seen {
    let dataset = match dataset {
        Ok(dataset) => dataset,
        Err(error) => return Seen::refused(error),
    };
    let step = |step: distribute::Result<distribute::PerReplica<T>>| {
        Ok(step?.into_iter().map(|piece| show(&piece.into_tree())).collect::<Value>())
    };
    Seen::steps(dataset.iter().take(limit).map(step))
}

/// Returns the ids of a batch, or the id of an unbatched element.
fn ids(piece: &Tree<Leaf>) -> Value {
    match leaves_json(piece) {
        Value::Object(tensor) if tensor["shape"] == json!([]) => tensor["data"][0].clone(),
        tensor => tensor["data"].clone(),
    }
}

fn distribute_dataset(case: &Case, inputs: &Inputs<'_>, rule: SplitRule) -> Result<Seen, Stop> {
    let strategy = case.strategy(inputs)?;
    let policy =
        inputs.optional("policy").and_then(Value::as_str).map_or(Ok(AutoShardPolicy::Auto), policy)?;
    let options = InputOptions { auto_shard_policy: policy, split_rule: rule, ..Default::default() };
    let (range, drop) = (Dataset::range(inputs.int("n")?), inputs.flag("drop_remainder")?);
    let repeat = inputs.optional("repeat").and_then(Value::as_str);
    let limit = if repeat.is_some() { inputs.count("steps")? } else { usize::MAX };
    let range = match repeat {
        Some("before_batch") => range.repeat_forever(),
        _ => range,
    };
    if inputs.get("global_batch")?.is_null() {
        return Ok(seen(strategy.distribute_dataset_with(range, options), limit, ids));
    }
    let batches = batched(range, inputs.count("global_batch")?, drop);
    let batches = match repeat {
        Some("after_batch") => batches.repeat_forever(),
        Some("before_batch") | None => batches,
        Some(other) => return Err(format!("unknown repeat {other:?}").into()),
    };
    Ok(seen(strategy.distribute_dataset_with(batches, options), limit, ids))
}

pub fn batched(data: Dataset<i64>, size: usize, drop_remainder: bool) -> Dataset<HostTensor> {
    if drop_remainder { data.batch_exact(size) } else { data.batch(size) }
}

fn distribute_struct(case: &Case, inputs: &Inputs<'_>, rule: SplitRule) -> Result<Seen, Stop> {
    let strategy = case.strategy(inputs)?;
    let (n, width) = (inputs.count("n")?, inputs.count("width")?);
    let x = HostTensor::new((0..(n * width) as i32).collect::<Vec<_>>(), [n, width])?;
    let y = HostTensor::vector((0..n as i32).map(|i| 10 * i).collect());
    let leaf = |tensor| Tree::Leaf(Leaf::Host(tensor));
    let element = [("x".to_string(), leaf(x)), ("y".to_string(), Tree::Tuple(vec![leaf(y)]))];
    let rows = Dataset::from_slices(Tree::Dict(BTreeMap::from(element)))?;
    let options = InputOptions { split_rule: rule, ..Default::default() };
    let batches = rows.batch(inputs.count("global_batch")?);
    Ok(seen(strategy.distribute_dataset_with(batches, options), usize::MAX, leaves_json))
}

fn datasets_from_function(case: &Case, inputs: &Inputs<'_>, rule: SplitRule) -> Result<Seen, Stop> {
    let strategy = case.strategy(inputs)?;
    let (n, batch, drop) = (inputs.int("n")?, inputs.count("batch")?, inputs.flag("drop_remainder")?);
    let kind = inputs.text("dataset_fn")?.to_string();
    let options = InputOptions { split_rule: rule, ..Default::default() };
    let contexts = Arc::new(Mutex::new(Vec::new()));
    let calls = contexts.clone();
    let make = move |context: InputContext| {
        calls.lock().unwrap().push(json!({
            "num_input_pipelines": context.num_input_pipelines,
            "input_pipeline_id": context.input_pipeline_id,
            "num_replicas_in_sync": context.num_replicas_in_sync,
        }));
        let range = Dataset::range(n);
        Ok(match kind.as_str() {
            "per_replica" => batched(range, batch, drop).typed::<Tree<Leaf>>(),
            "global" => batched(range, context.get_per_replica_batch_size(batch)?, drop).typed(),
            "batch_then_shard" => batched(range, batch, drop)
                .shard(context.num_input_pipelines, context.input_pipeline_id)
                .typed(),
            "unbatched" => range.typed(),
            other => return Err(distribute::Error::other(format!("unknown dataset_fn {other:?}"))),
        })
    };
    let mut seen = seen(strategy.distribute_datasets_from_function_with(options, make), usize::MAX, ids);
    seen.outcome["contexts"] = json!(*contexts.lock().unwrap());
    Ok(seen)
}

fn split_batches(inputs: &Inputs<'_>, rule: SplitRule) -> Result<Seen, Stop> {
    let mut next = 0;
    let mut batches = Vec::new();
    for length in inputs.list("batch_lengths")? {
        let length = length.as_i64().ok_or("a length is no integer".to_string())?;
        let batch = HostTensor::vector((next..next + length).collect::<Vec<i64>>());
        next += length;
        for piece in split(batch, inputs.count("num_replicas")?, rule).map_err(distribute::Error::from)? {
            batches.push(json!(piece.to_vec::<i64>()?));
        }
    }
    Ok(Seen { outcome: json!({"batches": batches}), error: None })
}

fn batch_sizes_for_worker(inputs: &Inputs<'_>) -> Ran {
    let (batch, workers) = (inputs.count("global_batch")?, inputs.count("num_workers")?);
    let replicas = inputs.count("replicas_per_worker")?;
    let sizes: Vec<_> = (0..workers).map(|worker| worker_sizes(batch, workers, replicas, worker)).collect();
    Ok(json!({"per_worker": sizes}))
}

fn rebatch(inputs: &Inputs<'_>) -> Ran {
    let sizes = inputs.list("sizes")?.iter().map(Value::as_u64).collect::<Option<Vec<_>>>();
    let sizes: Vec<_> = sizes.ok_or("a size is none".to_string())?.into_iter().map(|n| n as usize).collect();
    let range = Dataset::range(inputs.int("n")?);
    let data = range.batch(inputs.count("batch")?);
    let data = if inputs.flag("drop_remainder")? { data.rebatch_exact(&sizes) } else { data.rebatch(&sizes) };
    let batches = data.iter().map(|batch| Ok(batch?.to_vec::<i64>()?));
    Ok(json!({"batches": batches.collect::<distribute::Result<Vec<_>>>()?}))
}

fn per_replica_batch_size(inputs: &Inputs<'_>) -> Ran {
    let context = InputContext {
        num_input_pipelines: inputs.count("num_input_pipelines")?,
        input_pipeline_id: inputs.count("input_pipeline_id")?,
        num_replicas_in_sync: inputs.count("num_replicas_in_sync")?,
    };
    let size = context.get_per_replica_batch_size(inputs.count("global_batch")?);
    Ok(json!({"per_replica_batch_size": size.map_err(distribute::Error::from)?}))
}

fn auto_shard(case: &Case, inputs: &Inputs<'_>, rule: SplitRule) -> Result<Seen, Stop> {
    let layout =
        Layout { workers: inputs.count("num_workers")?, replicas: inputs.count("replicas_per_worker")? };
    let (folder, elements) = files::source(inputs)?;
    let elements = match inputs.optional("hint").and_then(Value::as_str) {
        None => elements,
        Some("before_batch") => elements.shard_hint(),
        Some(other) => return Err(format!("unknown hint {other:?}").into()),
    };
    let data = batched(elements, inputs.count("global_batch")?, inputs.flag("drop_remainder")?);
    let policy = policy(inputs.text("policy")?)?;
    let options = DistributeOptions { policy, rule, prefetch: 1, ..Default::default() };
    let steps = match Distribution::new(&data, layout, options).and_then(|plan| plan.lockstep(0)) {
        Ok(steps) => steps,
        Err(error) => return Ok(Seen::refused(error)),
    };
    let worker = |pieces: Vec<HostTensor>| pieces.iter().map(HostTensor::to_vec::<i64>).collect();
    let step = |step: distribute::data::Result<Vec<Vec<HostTensor>>>| {
        let workers = step?.into_iter().map(worker).collect::<Result<Vec<Vec<Vec<i64>>>, _>>();
        Ok(json!(workers?))
    };
    let mut seen = Seen::steps(steps.map(step));
    drop(folder);
    seen.outcome["worker_batches"] = worker_batches(case, &seen.outcome["steps"], layout.workers);
    Ok(seen)
}

/// Returns the batches of each worker, in order. TensorFlow's case lists what a worker yields alone. This crate adds
/// empty batches in steps for which other workers still have data: they are removed here.
fn worker_batches(case: &Case, steps: &Value, workers: usize) -> Value {
    let steps: Vec<Vec<Vec<Vec<i64>>>> = serde_json::from_value(steps.clone()).unwrap();
    let wanted = |worker: usize| match &case.expect {
        super::case::Expect::Outcome(outcome) => outcome["worker_batches"][worker].as_array().map(Vec::len),
        super::case::Expect::Error(_) => None,
    };
    let of = |worker: usize| {
        let mut mine: Vec<Vec<i64>> = steps.iter().flat_map(|step| step[worker].clone()).collect();
        let alone = wanted(worker).unwrap_or(mine.len());
        while mine.len() > alone && mine.last().is_some_and(Vec::is_empty) {
            mine.pop();
        }
        mine
    };
    json!((0..workers).map(of).collect::<Vec<_>>())
}
