//! The expected outcomes of batching.json under this crate's rule, computed on lists of ids without the library. Each
//! of the N replicas gets b/N rows of every batch of b rows, rounded up for the first b mod N replicas, in the order of
//! ids (DESIGN, section 5). If workers read separate batches, a batch lasts for as many steps as there are workers.
//! Each step takes the worker's share of a global batch. The rest at the end is spread over the worker's replicas.
//! There are no steps without rows.

use super::case::Inputs;
use super::tensors::to_json;
use distribute::HostTensor;
use serde_json::{Value, json};

type Ids = Vec<i64>;
/// The ids of each replica in a step, `[replica]`.
type Step = Vec<Ids>;

/// Returns the outcome of a case, `{"error": class}` if it is refused, or `None` for operations that the rule does not
/// cover.
pub fn outcome(replicas: usize, inputs: &Inputs<'_>) -> Result<Option<Value>, String> {
    Ok(Some(match inputs.text("op")? {
        "distribute_dataset" => match inputs.get("global_batch")? {
            Value::Null => json!({"error": "ValueError"}),
            _ => {
                json!({"steps": batches(inputs)?.iter().map(|b| batches_of(b, replicas)).collect::<Vec<_>>()})
            }
        },
        "distribute_struct" => structs(replicas, inputs)?,
        "datasets_from_function" => from_function(replicas, inputs)?,
        "split_batches" => json!({"batches": split_batches(inputs)?}),
        "auto_shard" => auto_shard(inputs)?,
        _ => return Ok(None),
    }))
}

/// Splits a batch as evenly as possible, the larger parts first.
fn batches_of(batch: &[i64], n: usize) -> Step {
    let mut rest = batch;
    let size = |k| batch.len() / n + usize::from(k < batch.len() % n);
    (0..n)
        .map(|k| {
            let (piece, after) = rest.split_at(size(k));
            rest = after;
            piece.to_vec()
        })
        .collect()
}

fn cut(ids: &[i64], size: usize, drop_remainder: bool) -> Vec<Ids> {
    ids.chunks(size).filter(|batch| !drop_remainder || batch.len() == size).map(<[i64]>::to_vec).collect()
}

fn range(inputs: &Inputs<'_>) -> Result<Ids, String> {
    Ok((0..inputs.int("n")?).collect())
}

/// Returns the global batches of a range, which is repeated if the case says so.
fn batches(inputs: &Inputs<'_>) -> Result<Vec<Ids>, String> {
    let (ids, size, drop) = (range(inputs)?, inputs.count("global_batch")?, inputs.flag("drop_remainder")?);
    Ok(match inputs.optional("repeat").and_then(Value::as_str) {
        None => cut(&ids, size, drop),
        Some("before_batch") => {
            let all: Ids = ids.into_iter().cycle().take(inputs.count("steps")? * size).collect();
            cut(&all, size, drop)
        }
        Some("after_batch") => {
            cut(&ids, size, drop).into_iter().cycle().take(inputs.count("steps")?).collect()
        }
        Some(other) => return Err(format!("unknown repeat {other:?}")),
    })
}

/// Returns the steps of a dataset of structures: for each id, `x` is a row of numbers and `y` a tuple with ten times
/// the id.
fn structs(replicas: usize, inputs: &Inputs<'_>) -> Result<Value, String> {
    let (size, width) = (inputs.count("global_batch")?, inputs.count("width")?);
    let tensor = |values: Vec<i32>, dims: &[usize]| {
        HostTensor::new(values, dims).map(|tensor| to_json(&tensor)).map_err(|e| e.to_string())
    };
    let piece = |ids: &Ids| -> Result<Value, String> {
        let x = ids.iter().flat_map(|id| (0..width).map(|k| *id as i32 * width as i32 + k as i32)).collect();
        let y = ids.iter().map(|id| *id as i32 * 10).collect();
        let (x, y) = (tensor(x, &[ids.len(), width])?, tensor(y, &[ids.len()])?);
        Ok(json!({"dict": {"x": x, "y": {"tuple": [y]}}}))
    };
    let step = |batch: &Ids| batches_of(batch, replicas).iter().map(piece).collect::<Result<Vec<_>, _>>();
    let steps = cut(&range(inputs)?, size, false).iter().map(step).collect::<Result<Vec<_>, _>>()?;
    Ok(json!({"steps": steps}))
}

/// Returns the steps of datasets that a function creates: in each, a replica gets the next batch, until none is left.
/// Replicas without one get an empty batch. A scalar cannot be empty, so that is an error.
fn from_function(replicas: usize, inputs: &Inputs<'_>) -> Result<Value, String> {
    let (ids, batch, drop) = (range(inputs)?, inputs.count("batch")?, inputs.flag("drop_remainder")?);
    let size = match inputs.text("dataset_fn")? {
        "unbatched" => {
            let all: Vec<_> = ids.chunks_exact(replicas).collect();
            return Ok(match ids.len() % replicas {
                0 => json!({"steps": all}),
                _ => json!({"steps": all, "error": "ValueError"}),
            });
        }
        "global" if batch % replicas > 0 => return Ok(json!({"error": "ValueError"})),
        "global" => batch / replicas,
        "per_replica" | "batch_then_shard" => batch,
        other => return Err(format!("unknown dataset_fn {other:?}")),
    };
    let mut steps: Vec<Step> = cut(&ids, size, drop).chunks(replicas).map(<[Ids]>::to_vec).collect();
    steps.iter_mut().for_each(|step| step.resize(replicas, Ids::new()));
    Ok(json!({"steps": steps}))
}

fn split_batches(inputs: &Inputs<'_>) -> Result<Vec<Ids>, String> {
    let n = inputs.count("num_replicas")?;
    let mut next = 0;
    let mut all = Vec::new();
    for length in inputs.list("batch_lengths")? {
        let length = length.as_i64().ok_or("a length is no integer")?;
        all.extend(batches_of(&(next..next + length).collect::<Ids>(), n));
        next += length;
    }
    Ok(all)
}

/// The source of a dataset that is sharded over workers.
pub enum Read {
    /// The ids that every worker reads.
    Together(Ids),
    /// The ids that each worker reads separately, `[worker]`.
    Apart(Vec<Ids>),
}

/// Returns how workers read the source: each its own files, if there are enough and the policy allows it, and otherwise
/// all the data (AS-2, AS-3, AS-6, AS-8).
pub fn read(inputs: &Inputs<'_>) -> Result<Option<Read>, String> {
    let workers = inputs.count("num_workers")?;
    let files: Option<Vec<Ids>> = match inputs.text("source")? {
        "range" => None,
        _ => Some(inputs.list("files")?.iter().map(ids_of).collect::<Result<_, _>>()?),
    };
    let all = match &files {
        Some(files) => files.concat(),
        None => range(inputs)?,
    };
    let every = |w: usize| all.iter().copied().skip(w).step_by(workers).collect();
    let own = |files: &[Ids]| {
        let of = |w: usize| files.iter().skip(w).step_by(workers).flatten().copied().collect();
        Read::Apart((0..workers).map(of).collect())
    };
    Ok(Some(match (inputs.text("policy")?, files) {
        ("FILE" | "AUTO", Some(files)) if files.len() >= workers => own(&files),
        ("FILE", Some(_)) => return Ok(None),
        ("FILE", None) if workers > 1 => return Ok(None),
        ("DATA" | "AUTO", _) => Read::Together(all),
        ("HINT", None) if inputs.optional("hint").is_some() => Read::Apart((0..workers).map(every).collect()),
        ("OFF" | "FILE" | "HINT", _) => Read::Apart(vec![all; workers]),
        (other, _) => return Err(format!("unknown policy {other:?}")),
    }))
}

/// Returns the outcome of `auto_shard` for a range over workers of one replica each, by worker.
pub fn of_workers(inputs: &Inputs<'_>) -> Result<Value, String> {
    let mut fields = serde_json::Map::new();
    for name in ["n", "global_batch", "drop_remainder", "policy"] {
        fields.insert(name.into(), inputs.get(name)?.clone());
    }
    let workers = inputs.count("workers")?;
    fields.extend([
        ("num_workers".to_string(), json!(workers)),
        ("replicas_per_worker".into(), json!(1)),
        ("source".into(), json!("range")),
    ]);
    let together = auto_shard(&Inputs::new(&fields))?;
    let steps = together["steps"].as_array().ok_or("a range is never refused")?;
    let of = |worker: usize| json!({"steps": steps.iter().map(|step| &step[worker][0]).collect::<Vec<_>>()});
    Ok(json!({"per_worker": (0..workers).map(of).collect::<Vec<_>>()}))
}

fn ids_of(file: &Value) -> Result<Ids, String> {
    serde_json::from_value(file.clone()).map_err(|e| e.to_string())
}

fn auto_shard(inputs: &Inputs<'_>) -> Result<Value, String> {
    let (workers, replicas) = (inputs.count("num_workers")?, inputs.count("replicas_per_worker")?);
    let (size, drop) = (inputs.count("global_batch")?, inputs.flag("drop_remainder")?);
    let class = if inputs.text("source")? == "range" { "NotFoundError" } else { "InvalidArgumentError" };
    let steps: Vec<Vec<Step>> = match read(inputs)? {
        None => return Ok(json!({"error": class})),
        Some(Read::Together(all)) => cut(&all, size, drop)
            .iter()
            .map(|batch| {
                batches_of(batch, workers * replicas).chunks(replicas).map(<[Ids]>::to_vec).collect()
            })
            .collect(),
        Some(Read::Apart(own)) => {
            let own: Vec<Vec<Step>> = own
                .iter()
                .enumerate()
                .map(|(w, ids)| {
                    let batches = cut(ids, size, drop);
                    batches
                        .iter()
                        .flat_map(|batch| partitions_of(batch, size, workers, replicas, w))
                        .collect()
                })
                .collect();
            let longest = own.iter().map(Vec::len).max().unwrap_or(0);
            let nothing = vec![Ids::new(); replicas];
            let step = |s: usize| own.iter().map(|steps| steps.get(s).unwrap_or(&nothing).clone()).collect();
            (0..longest).map(step).collect()
        }
    };
    Ok(json!({"steps": steps}))
}

/// Returns the steps of a batch that worker `w` reads separately.
fn partitions_of(batch: &[i64], full: usize, workers: usize, replicas: usize, w: usize) -> Vec<Step> {
    let n = workers * replicas;
    let share = |of: usize| -> usize {
        (of * replicas..(of + 1) * replicas).map(|k| full / n + usize::from(k < full % n)).sum()
    };
    let mut rest = batch;
    let mut steps = Vec::new();
    for turn in (w..).map(|turn| turn % workers) {
        if rest.is_empty() {
            break;
        }
        let (mine, after) = rest.split_at(share(turn).min(rest.len()));
        if !mine.is_empty() {
            steps.push(batches_of(mine, replicas));
        }
        rest = after;
    }
    steps
}
