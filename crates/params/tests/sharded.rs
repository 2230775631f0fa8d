//! The oracle cases of sharded variables that tables, partitions and placement decide.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use distribute_optim::{Sgd, Step};
use distribute_params::{
    FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, Partitioner, Placement, PlacementPolicy,
    Push, Result, RowPartition, Table, partition,
};
use distribute_tensor::{DType, HostTensor, Write};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What needs more than tables.
const ABOVE_TABLES: [&str; 5] =
    ["slice", "embedding_lookup_sparse", "safe_embedding_lookup_sparse", "construct", "scatter_not_div"];

#[test]
fn oracle_sharded() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracle/sharded.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    let (mut ran, mut left, mut failed) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    let mut differences = 0;
    for case in &cases {
        let (id, inputs) = (case["id"].as_str().unwrap(), &case["inputs"]);
        let op = inputs["op"].as_str().unwrap().to_string();
        if ABOVE_TABLES.contains(&op.as_str()) || inputs.get("max_norm").is_some() {
            *left.entry(op).or_insert(0) += 1;
            continue;
        }
        *ran.entry(op.clone()).or_insert(0) += 1;
        match (run(&op, inputs), case.get("expect")) {
            (Ok(outcome), Some(expect)) => {
                // SV-6: TensorFlow gives rows in the order of shards. Ours come in that of the indices.
                if matches!(op.as_str(), "gather" | "sparse_read") {
                    let (whole, rows) = (tensor(&inputs["table"]), ids(&inputs["indices"]));
                    let rows: Vec<usize> = rows.iter().map(|row| *row as usize).collect();
                    let cut =
                        RowPartition::div(whole.dims()[0], inputs["num_shards"].as_u64().unwrap() as usize);
                    let mut by_shard = rows.clone();
                    by_shard.sort_by_key(|row| cut.place(*row).shard);
                    differences += i32::from(by_shard != rows);
                    let (ours, theirs) =
                        (whole.take_rows(&rows).unwrap(), whole.take_rows(&by_shard).unwrap());
                    if !same(&outcome["result"], &value(&ours)) || !same(&value(&theirs), &expect["result"]) {
                        failed.push(format!("{id}: {outcome}"));
                    }
                } else if expect.as_object().unwrap().iter().any(|(name, want)| !same(&outcome[name], want)) {
                    failed.push(format!("{id}: got {outcome}, want {expect}"));
                }
            }
            (Err(_), None) => {}
            (Ok(outcome), None) => failed.push(format!("{id}: got {outcome}, want {}", case["expect_error"])),
            (Err(error), Some(_)) => failed.push(format!("{id}: {error}")),
        }
    }
    println!("sharded: {ran:?} ran, {left:?} are above tables; difference SV-6: {differences} cases");
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
    assert_eq!(ran.values().sum::<i32>() + left.values().sum::<i32>(), cases.len() as i32);
    assert_eq!((ran.values().sum::<i32>(), differences), (113, 6), "{ran:?}");
}

/// A variable on servers, as a strategy would have it.
struct Sharded {
    partition: RowPartition,
    shards: Vec<Table>,
    shape: Vec<usize>,
}

impl Sharded {
    fn new(whole: &HostTensor, shards: usize) -> Self {
        let partition = RowPartition::div(whole.dims()[0], shards);
        let shard = |(i, range): (usize, std::ops::Range<usize>)| {
            Table::new(format!("v/part_{i}"), whole.narrow(0, range.start, range.len()).unwrap()).unwrap()
        };
        let shards = partition.ranges().enumerate().map(shard).collect();
        Self { partition, shards, shape: whole.dims().to_vec() }
    }

    /// The rows of ids, in their order.
    fn gather(&self, ids: &[i64]) -> Result<HostTensor> {
        let split = self.partition.split("gather", ids)?;
        let mut order = Vec::new();
        let mut rows = Vec::new();
        for (i, shard) in self.shards.iter().enumerate() {
            rows.push(shard.read_rows(split.of(i))?);
            order.extend_from_slice(split.positions(i));
        }
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(i, position)| back[*position] = i);
        Ok(HostTensor::concat(&rows.iter().collect::<Vec<_>>(), 0)?.take_rows(&back)?)
    }

    fn outcome(&self) -> Value {
        let shards: Vec<_> = self.shards.iter().map(|shard| shard.read().unwrap().value).collect();
        let whole = HostTensor::concat(&shards.iter().collect::<Vec<_>>(), 0).unwrap();
        assert_eq!(whole.dims(), self.shape);
        json!({"shards": shards.iter().map(value).collect::<Vec<_>>(), "result": value(&whole)})
    }
}

fn run(op: &str, inputs: &Value) -> Result<Value> {
    let sharded = || Sharded::new(&tensor(&inputs["table"]), inputs["num_shards"].as_u64().unwrap() as usize);
    let how = |method: &str| match method.rsplit('_').next().unwrap() {
        "assign" | "update" => Write::Assign,
        "add" => Write::Add,
        "sub" => Write::Sub,
        "mul" => Write::Mul,
        "div" => Write::Div,
        "min" => Write::Min,
        "max" => Write::Max,
        other => panic!("unknown method {other:?}"),
    };
    Ok(match op {
        "embedding_lookup" => {
            let ids = tensor(&inputs["ids"]);
            let (sharded, flat) = (sharded(), self::ids(&inputs["ids"]["data"]));
            let shape: Vec<usize> = ids.dims().iter().chain(&sharded.shape[1..]).copied().collect();
            json!({"result": value(&sharded.gather(&flat)?.reshape(shape)?)})
        }
        "gather" | "sparse_read" => json!({"result": value(&sharded().gather(&ids(&inputs["indices"]))?)}),
        "embedding_lookup_grad" => {
            // The gradient of the sum of w * rows is w, pushed to the rows: -1 times it, with a rate of 1, to zeros.
            let (table, w) = (tensor(&inputs["table"]), tensor(&inputs["w"]));
            let flat = ids(&inputs["ids"]["data"]);
            let row: usize = table.dims()[1..].iter().product();
            let found = sharded().gather(&flat)?;
            let products = found.as_slice::<f32>().unwrap().iter().zip(w.as_slice::<f32>().unwrap());
            let loss: f32 = products.map(|(a, b)| a * b).sum();
            let zeros = HostTensor::zeros(DType::F32, table.dims())?;
            let target = Sharded::new(&zeros, inputs["num_shards"].as_u64().unwrap() as usize);
            let split = target.partition.split("push", &flat)?;
            for (i, shard) in target.shards.iter().enumerate() {
                shard.set_rule(Arc::new(Sgd))?;
                let mine = split.take(i, w.as_slice::<f32>().unwrap(), row);
                let dims: Vec<usize> =
                    [split.of(i).len()].iter().chain(&table.dims()[1..]).copied().collect();
                shard.push_rows(Push::at(Step::after(0, -1.)), split.of(i), &HostTensor::new(mine, dims)?)?;
            }
            let gradient = target.outcome()["result"].clone();
            json!({"loss": value(&HostTensor::scalar(loss)), "gradient": gradient, "all_sparse": true})
        }
        "assign" => {
            let (sharded, new) = (sharded(), tensor(&inputs["value"]));
            for (shard, range) in sharded.shards.iter().zip(sharded.partition.ranges()) {
                shard.write(
                    how(inputs["method"].as_str().unwrap()),
                    &new.narrow(0, range.start, range.len())?,
                )?;
            }
            sharded.outcome()
        }
        "scatter" => {
            let (sharded, values) = (sharded(), tensor(&inputs["values"]));
            let split = sharded.partition.split("scatter", &ids(&inputs["indices"]))?;
            for (i, shard) in sharded.shards.iter().enumerate() {
                let mine = values.take_rows(split.positions(i))?;
                shard.write_rows(how(inputs["method"].as_str().unwrap()), split.of(i), &mine)?;
            }
            sharded.outcome()
        }
        "ps_create" => created(inputs)?,
        "ps_create_bad_partitioner" => {
            let shape: Vec<usize> = ids(&inputs["shape"]).iter().map(|n| *n as usize).collect();
            let answer = ids(&inputs["partitions"]).iter().map(|n| *n as usize).collect();
            partition(Some(&Answers(answer)), &shape, DType::F32)?;
            json!({})
        }
        other => panic!("unknown op {other:?}"),
    })
}

/// Answers what it was made with.
#[derive(Debug)]
struct Answers(Vec<usize>);

impl Partitioner for Answers {
    fn partitions(&self, _: &[usize], _: DType, _: usize) -> Result<Vec<usize>> {
        Ok(self.0.clone())
    }
}

/// PLACE-1, SHARD-1 to SHARD-4, COLO-4.
fn created(inputs: &Value) -> Result<Value> {
    let number = |name: &str| inputs["partitioner"]["args"][name].as_u64().map(|n| n as usize);
    let partitioner: Option<Box<dyn Partitioner>> = match inputs["partitioner"]["name"].as_str() {
        None => None,
        Some("FixedShardsPartitioner") => {
            Some(Box::new(FixedShardsPartitioner::new(number("num_shards").unwrap())?))
        }
        Some("MinSizePartitioner") => Some(Box::new(MinSizePartitioner::new(
            number("min_shard_bytes").unwrap(),
            number("max_shards").unwrap(),
        )?)),
        Some("MaxSizePartitioner") => {
            Some(Box::new(MaxSizePartitioner::new(number("max_shard_bytes").unwrap())?))
        }
        Some(other) => panic!("unknown partitioner {other:?}"),
    };
    let servers = inputs["num_ps"].as_u64().unwrap() as usize;
    let mut placement = Placement::new(servers, PlacementPolicy::RoundRobin)?;
    let variables = inputs["variables"].as_array().unwrap();
    let mut outcomes = Vec::new();
    for variable in variables {
        let name = variable["name"].as_str().unwrap();
        let shape: Vec<usize> = ids(&variable["shape"]).iter().map(|n| *n as usize).collect();
        let dtype: DType = variable["dtype"].as_str().unwrap().parse()?;
        let cut = match variable["colocate_with"].as_u64() {
            Some(other) => {
                placement.colocate(
                    name,
                    &shape,
                    dtype,
                    variables[other as usize]["name"].as_str().unwrap(),
                )?;
                None
            }
            None => {
                let cut = partition(partitioner.as_deref(), &shape, dtype)?;
                placement.place(name, &shape, dtype, cut)?;
                cut
            }
        };
        let shard = |placed: &distribute_params::Placed| {
            let whole = shape.first().map(|rows| 0..*rows);
            let rows = placed.rows.clone().or(whole).map(|rows| [rows.start, rows.end]);
            json!({"name": format!("{}:0", placed.name), "rows": rows, "job": "ps", "task": placed.server})
        };
        let shards: Vec<_> = placement.of(name).unwrap().iter().map(shard).collect();
        let count: usize = shape.iter().product();
        let numbers = HostTensor::new((0..count as i64).collect::<Vec<_>>(), shape)?.cast(dtype)?;
        let all = if numbers.rank() == 0 {
            Table::new(name, numbers)?.read()?.value
        } else {
            let sharded = Sharded::new(&numbers, cut.map_or(1, |cut| cut.shards()));
            sharded.gather(&(0..numbers.dims()[0] as i64).collect::<Vec<_>>())?
        };
        outcomes.push(json!({"sharded": cut.is_some(), "shards": shards, "value": value(&all)}));
    }
    Ok(json!({"variables": outcomes}))
}

fn ids(list: &Value) -> Vec<i64> {
    list.as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect()
}

fn tensor(value: &Value) -> HostTensor {
    let shape: Vec<usize> = ids(&value["shape"]).iter().map(|n| *n as usize).collect();
    let dtype: DType = value["dtype"].as_str().unwrap().parse().unwrap();
    let data: Vec<f64> = value["data"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    HostTensor::new(data, shape).unwrap().cast(dtype).unwrap()
}

fn value(tensor: &HostTensor) -> Value {
    let wide = tensor.cast(DType::F64).unwrap();
    json!({"dtype": tensor.dtype().name(), "shape": tensor.dims(), "data": wide.as_slice::<f64>().unwrap()})
}

/// Equal, but for integers among floats.
fn same(got: &Value, want: &Value) -> bool {
    match (got, want) {
        (Value::Number(got), Value::Number(want)) => got.as_f64() == want.as_f64(),
        (Value::Array(got), Value::Array(want)) => {
            got.len() == want.len() && got.iter().zip(want).all(|(got, want)| same(got, want))
        }
        (Value::Object(got), Value::Object(want)) => {
            want.iter().all(|(name, want)| got.get(name).is_some_and(|got| same(got, want)))
        }
        (got, want) => got == want,
    }
}
