//! Cases of variables that are sharded over parameter servers: the servers of the shards, reads and writes.

use super::case::{Case, Inputs, Ran, Stop};
use super::differences::{Difference, Found, op, outcome};
use super::tensors::{tensor, to_json};
use candle_core::{Device, Module, Tensor};
use distribute::nn::{self, BagMode};
use distribute::optimizer::{Gradient, Transform};
use distribute::parameter_server::{
    FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, PartitionStrategy, Partitioner,
};
use distribute::tensor::{DType, Index, IndexedSlices};
use distribute::{Error, HostTensor, LocalCluster, ParameterServerStrategy, Result, Sgd, Variable, lookup};
use distribute_ps_tables::RowPartition;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// Runs the cases of sharded.json.
pub fn oracle_sharded(_: &Case, inputs: &Inputs<'_>) -> Ran {
    match inputs.text("op")? {
        "embedding_lookup" => {
            let max_norm = inputs.optional("max_norm").and_then(Value::as_f64);
            let ids = tensor(inputs.get("ids")?)?;
            let options = lookup::Lookup { max_norm, ..Default::default() };
            result(&lookup::embedding_lookup(&table(inputs)?, &ids, options)?)
        }
        "gather" | "sparse_read" => result(&table(inputs)?.gather(&ids(inputs.list("indices")?)?)?),
        "slice" => {
            let indices = inputs.list("slice")?.iter().map(index).collect::<Result<Vec<_>, String>>()?;
            result(&table(inputs)?.slice(&indices)?)
        }
        "embedding_lookup_grad" => gradient(inputs),
        "embedding_lookup_sparse" => {
            let table = table(inputs)?;
            result(&lookup::embedding_lookup_sparse(
                &table,
                &bags(inputs)?,
                combiner(inputs)?,
                Default::default(),
            )?)
        }
        "safe_embedding_lookup_sparse" => {
            let (table, default) = (table(inputs)?, inputs.get("default_id")?.as_i64());
            let (bags, combiner) = (bags(inputs)?, combiner(inputs)?);
            result(&lookup::safe_embedding_lookup_sparse(
                &table,
                &bags,
                combiner,
                default,
                Default::default(),
            )?)
        }
        "assign" => {
            let (table, value) = (table(inputs)?, tensor(inputs.get("value")?)?);
            match inputs.text("method")? {
                "assign" => table.assign(value)?,
                "assign_add" => table.assign_add(value)?,
                "assign_sub" => table.assign_sub(value)?,
                other => return Err(format!("unknown method {other:?}").into()),
            }
            written(&table)
        }
        "scatter" => {
            let (table, values) = (table(inputs)?, tensor(inputs.get("values")?)?);
            let rows = IndexedSlices::new(values, HostTensor::vector(ids(inputs.list("indices")?)?), None)?;
            match inputs.text("method")? {
                "scatter_add" => table.scatter_add(rows)?,
                "scatter_sub" => table.scatter_sub(rows)?,
                "scatter_mul" => table.scatter_mul(rows)?,
                "scatter_div" => table.scatter_div(rows)?,
                "scatter_min" => table.scatter_min(rows)?,
                "scatter_max" => table.scatter_max(rows)?,
                "scatter_update" => table.scatter_update(rows)?,
                other => return Err(format!("unknown method {other:?}").into()),
            }
            written(&table)
        }
        "scatter_not_div" => {
            let rows: Vec<usize> = sizes(inputs.list("shard_rows")?)?;
            let whole = joined(&rows.iter().map(|rows| (vec![*rows, 1], DType::F32)).collect::<Vec<_>>())?;
            let update = IndexedSlices::new(
                HostTensor::new(vec![1f32], [1, 1])?,
                HostTensor::vector(vec![0i64]),
                None,
            )?;
            whole.scatter_update(update)?;
            written(&whole)
        }
        "construct" => {
            let (rows, others) = (sizes(inputs.list("shard_rows")?)?, inputs.list("other_dims")?);
            let dtypes = inputs.get("dtypes")?.as_array();
            let mut parts = Vec::new();
            for (i, rows) in rows.into_iter().enumerate() {
                let other = sizes(others[i].as_array().ok_or("other_dims is no list of lists")?)?;
                let dtype =
                    dtypes.map_or(Some("float32"), |all| all[i].as_str()).ok_or("a dtype is no text")?;
                parts.push(([vec![rows], other].concat(), dtype.parse()?));
            }
            let whole = joined(&parts)?;
            Ok(
                json!({"shape": whole.dims(), "dtype": whole.dtype().name(), "num_shards": whole.shards().len()}),
            )
        }
        "ps_create" => created(inputs),
        "ps_create_bad_partitioner" => {
            let strategy = strategy(inputs.count("num_ps")?, Answers(sizes(inputs.list("partitions")?)?))?;
            let zeros = HostTensor::zeros(DType::F32, sizes(inputs.list("shape")?)?)?;
            strategy.scope(|| Variable::new("v", zeros))?;
            Ok(json!({}))
        }
        other => Err(format!("unknown op {other:?}").into()),
    }
}

fn strategy(servers: usize, partitioner: impl Partitioner) -> Result<ParameterServerStrategy> {
    ParameterServerStrategy::new(LocalCluster::new(1, servers)?.resolver(), partitioner)
}

/// Creates the table of a case, in the number of shards that the case asks for.
fn table(inputs: &Inputs<'_>) -> Result<Variable, Stop> {
    let (whole, shards) = (tensor(inputs.get("table")?)?, inputs.count("num_shards")?);
    let strategy = strategy(2, FixedShardsPartitioner::new(shards)?)?;
    let table = strategy.scope(|| Variable::new("table", whole))?;
    if table.shards().len() != shards.min(table.dims()[0]) || table.is_sharded() != (table.shards().len() > 1)
    {
        return Err(format!("{shards} shards are {:?}", table.shards()).into());
    }
    Ok(table)
}

fn result(value: &HostTensor) -> Ran {
    Ok(json!({"result": to_json(value)}))
}

/// Returns the value of each shard, and the complete value.
fn written(table: &Variable) -> Ran {
    let shard = |shard: distribute::variables::Shard| {
        let rows: Vec<i64> = shard.rows.map(|row| row as i64).collect();
        Ok(to_json(&table.gather(&rows)?))
    };
    let shards = table.shards().into_iter().map(shard).collect::<Result<Vec<_>>>()?;
    Ok(json!({"shards": shards, "result": to_json(&table.read()?)}))
}

/// Creates variables of the given shapes and dtypes, and joins them into a sharded one.
fn joined(parts: &[(Vec<usize>, DType)]) -> Result<Variable, Stop> {
    let strategy =
        ParameterServerStrategy::builder().cluster_resolver(LocalCluster::new(1, 2)?.resolver()).build()?;
    let part =
        |(dims, dtype): &(Vec<usize>, DType)| Variable::new("part", HostTensor::zeros(*dtype, dims.clone())?);
    let parts = strategy.scope(|| parts.iter().map(part).collect::<Result<Vec<_>>>())?;
    Ok(Variable::of_shards("whole", &parts, PartitionStrategy::Div)?)
}

/// Returns the gradient of `sum(w * rows)`, where `rows` are those of a lookup, as an optimizer receives it.
fn gradient(inputs: &Inputs<'_>) -> Ran {
    let (table, w) = (tensor(inputs.get("table")?)?, tensor(inputs.get("w")?)?);
    let (height, shape) = (table.dims()[0], table.dims().to_vec());
    let width: usize = shape[1..].iter().product();
    let strategy = strategy(2, FixedShardsPartitioner::new(inputs.count("num_shards")?)?)?;
    let model = strategy.replicate(move |vb| nn::embedding(height, width, vb))?;
    model.variables.set("weight", &table.reshape([height, width])?.to_candle(&Device::Cpu)?)?;
    let seen: Arc<Mutex<Vec<Gradient>>> = Arc::default();
    let (see, ids) = (seen.clone(), tensor(inputs.get("ids")?)?.cast(DType::I64)?.to_candle(&Device::Cpu)?);
    let optimizer = Sgd::new(&model.variables, 1.)?.after_reduce(Transform::each(move |_, gradient| {
        see.lock().unwrap().push(match &gradient {
            Gradient::Dense(dense) => Gradient::Dense(dense.clone()),
            Gradient::Rows(rows) => Gradient::Rows(rows.clone()),
        });
        Ok(gradient)
    }))?;
    let losses = strategy.run(&model, |ctx, model| {
        let rows = model.forward(&ids)?;
        let w: Tensor = w.to_candle(&Device::Cpu)?.reshape(rows.shape())?;
        optimizer.minimize(ctx, (rows * w)?.sum_all()?, 1)
    })?;
    let loss = losses.values()[0].to_scalar::<f32>().map_err(Error::from)?;
    let mut whole = HostTensor::zeros(DType::F32, [height, width])?;
    let seen = seen.lock().unwrap();
    let all_sparse = seen.iter().all(|gradient| matches!(gradient, Gradient::Rows(_)));
    for gradient in seen.iter() {
        match gradient {
            Gradient::Rows(rows) => whole.write_rows(distribute::tensor::Write::Add, rows)?,
            Gradient::Dense(dense) => whole = HostTensor::from_candle(dense)?,
        }
    }
    // What was seen is what was applied.
    let after = HostTensor::from_candle(&model.variables.get("weight")?)?;
    let mut expected = table.reshape([height, width])?;
    expected.write(distribute::tensor::Write::Sub, &whole)?;
    if after != expected {
        return Err(format!("the table is {after} after the step, not {expected}").into());
    }
    let gradient = to_json(&whole.reshape(shape)?);
    Ok(json!({"loss": to_json(&HostTensor::scalar(loss)), "gradient": gradient, "all_sparse": all_sparse}))
}

fn bags(inputs: &Inputs<'_>) -> Result<lookup::Bags, String> {
    let each = |lists: &Vec<Value>| {
        lists.iter().map(|list| list.as_array().cloned().ok_or("no list")).collect::<Result<Vec<_>, _>>()
    };
    let all = each(inputs.list("ids")?)?.iter().map(|list| ids(list)).collect::<Result<_, _>>()?;
    let weights = match inputs.get("weights")?.as_array() {
        None => None,
        Some(lists) => {
            let number = |x: &Value| x.as_f64().ok_or("a weight is no number");
            let weights = each(lists)?;
            Some(weights.iter().map(|list| list.iter().map(number).collect()).collect::<Result<_, _>>()?)
        }
    };
    Ok(lookup::Bags { ids: all, weights })
}

fn combiner(inputs: &Inputs<'_>) -> Result<BagMode, String> {
    match inputs.text("combiner")? {
        "sum" => Ok(BagMode::Sum),
        "mean" => Ok(BagMode::Mean),
        "sqrtn" => Ok(BagMode::SqrtN),
        other => Err(format!("unknown combiner {other:?}")),
    }
}

fn index(value: &Value) -> Result<Index, String> {
    match value {
        Value::String(text) if text == "ellipsis" => return Ok(Index::Ellipsis),
        Value::String(text) if text == "newaxis" => return Ok(Index::NewAxis),
        _ => {}
    }
    let fields = Inputs::new(value.as_object().ok_or("an index is no object")?);
    let (at, slice) = (fields.optional("index"), fields.optional("slice").and_then(Value::as_array));
    fields.finish()?;
    match (at, slice.map(Vec::as_slice)) {
        (Some(at), None) => at.as_i64().map(Index::At).ok_or_else(|| format!("{at} is no index")),
        (None, Some([start, stop, step])) => {
            Ok(Index::slice(start.as_i64(), stop.as_i64(), step.as_i64().unwrap_or(1)))
        }
        _ => Err(format!("unknown index {value}")),
    }
}

/// Creates variables with the case's partitioner, and returns the server of each shard (PLACE-1, SHARD-1 to SHARD-4,
/// COLO-4).
fn created(inputs: &Inputs<'_>) -> Ran {
    let servers = inputs.count("num_ps")?;
    let builder =
        ParameterServerStrategy::builder().cluster_resolver(LocalCluster::new(1, servers)?.resolver());
    let strategy = match inputs.get("partitioner")?.as_object() {
        None => builder,
        Some(partitioner) => {
            let fields = Inputs::new(partitioner);
            let (name, args) = (fields.text("name")?, fields.object("args")?);
            let builder = match name {
                "FixedShardsPartitioner" => {
                    builder.partitioner(FixedShardsPartitioner::new(args.count("num_shards")?)?)
                }
                "MinSizePartitioner" => builder.partitioner(MinSizePartitioner::new(
                    args.count("min_shard_bytes")?,
                    args.count("max_shards")?,
                )?),
                "MaxSizePartitioner" => {
                    builder.partitioner(MaxSizePartitioner::new(args.count("max_shard_bytes")?)?)
                }
                other => return Err(format!("unknown partitioner {other:?}").into()),
            };
            args.finish()?;
            fields.finish()?;
            builder
        }
    };
    let strategy = strategy.build()?;
    let (mut variables, mut outcomes): (Vec<Variable>, Vec<Value>) = Default::default();
    for spec in inputs.list("variables")? {
        let spec = Inputs::new(spec.as_object().ok_or("a variable is no object")?);
        let (name, shape) = (spec.text("name")?, sizes(spec.list("shape")?)?);
        let count: usize = shape.iter().product();
        let numbers = HostTensor::new((0..count as i64).collect::<Vec<_>>(), shape)?
            .cast(spec.text("dtype")?.parse()?)?;
        let create = || Variable::new(name, numbers);
        let beside = spec.get("colocate_with")?.as_u64();
        let variable = strategy.scope(|| match beside {
            Some(other) => strategy.colocate_vars_with(&variables[other as usize], create),
            None => create(),
        })?;
        spec.finish()?;
        let shard = |shard: distribute::variables::Shard| {
            let rows = (!variable.dims().is_empty()).then_some([shard.rows.start, shard.rows.end]);
            let (job, task) =
                if shard.device.server.is_some() { ("ps", shard.device.server) } else { ("", None) };
            json!({"name": format!("{}:0", shard.name), "rows": rows, "job": job, "task": task})
        };
        let shards: Vec<_> = variable.shards().into_iter().map(shard).collect();
        let value = to_json(&variable.read::<HostTensor>()?);
        outcomes.push(json!({"sharded": variable.is_sharded(), "shards": shards, "value": value}));
        variables.push(variable);
    }
    Ok(json!({"variables": outcomes}))
}

/// A partitioner that returns a fixed answer.
#[derive(Debug)]
struct Answers(Vec<usize>);

impl Partitioner for Answers {
    fn partitions(&self, _: &[usize], _: DType, _: usize) -> distribute_ps_tables::Result<Vec<usize>> {
        Ok(self.0.clone())
    }
}

fn ids(list: &[Value]) -> Result<Vec<i64>, String> {
    list.iter().map(|id| id.as_i64().ok_or_else(|| format!("{id} is no id"))).collect()
}

fn sizes(list: &[Value]) -> Result<Vec<usize>, String> {
    Ok(ids(list)?.into_iter().map(|size| size.max(0) as usize).collect())
}

/// SV-6: TensorFlow returns rows in the order of shards, this crate in the order of the ids.
pub fn rows_are_in_the_order_of_ids(case: &Case, inputs: &Inputs<'_>) -> Found {
    let gathers = case.area == "sharded" && matches!(op(inputs), "gather" | "sparse_read");
    if outcome(case).is_none() || !gathers {
        return Ok(None);
    }
    let (whole, rows) = (tensor(inputs.get("table")?)?, sizes(inputs.list("indices")?)?);
    let cut = RowPartition::div(whole.dims()[0], inputs.count("num_shards")?);
    let mut by_shard = rows.clone();
    by_shard.sort_by_key(|row| cut.location(*row).shard);
    let ours = whole.take_rows(&rows).map_err(|e| e.to_string())?;
    Ok((by_shard != rows).then(|| Difference::outcome("SV-6", json!({"result": to_json(&ours)}))))
}

/// SV-2: some slices of TensorFlow's sharded variables differ from those of an array. This crate's never do.
pub fn slices_are_those_of_an_array(case: &Case, inputs: &Inputs<'_>) -> Found {
    let array = case.array_result.as_ref().filter(|_| op(inputs) == "slice" && case.quirk);
    Ok(array.map(|array| Difference::outcome("SV-2", json!({"result": array}))))
}
