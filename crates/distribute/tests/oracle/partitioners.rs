//! Cases of partitioners: the number of shards of a variable, and the rows of each.

use super::case::{Case, Inputs, Ran, Stop};
use super::differences::{Difference, Found, op, outcome};
use distribute::parameter_server::{
    FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, Partitioner,
};
use distribute_ps_tables::RowPartition;
use serde_json::{Value, json};

impl From<distribute_ps_tables::Error> for Stop {
    fn from(error: distribute_ps_tables::Error) -> Self {
        Stop::Library(error.into())
    }
}

/// Runs the cases of partitioners.json.
pub fn oracle_partitioners(_: &Case, inputs: &Inputs<'_>) -> Ran {
    match inputs.text("op")? {
        "partition" => {
            let shape = inputs.list("shape")?.iter().map(size).collect::<Result<Vec<_>, _>>()?;
            let dtype = inputs.text("dtype")?.parse()?;
            let axis = inputs.count("axis")?;
            let partitions = partitioner(inputs)?.partitions(&shape, dtype, axis)?;
            Ok(json!({"partitions": partitions}))
        }
        "row_ranges" => {
            let partition = RowPartition::div(inputs.count("rows")?, inputs.count("shards")?);
            let ranges: Vec<_> = partition.ranges().map(|range| json!([range.start, range.end])).collect();
            Ok(json!({"row_ranges": ranges}))
        }
        other => Err(format!("unknown op {other:?}").into()),
    }
}

fn partitioner(inputs: &Inputs<'_>) -> Result<Box<dyn Partitioner>, Stop> {
    // Negative numbers have no representation here, so they are refused like 0.
    let number = |args: &Inputs<'_>, name: &str| match args.optional(name).filter(|value| !value.is_null()) {
        Some(value) => {
            value.as_i64().map(|n| Some(n.max(0) as usize)).ok_or_else(|| format!("{name} is no integer"))
        }
        None => Ok(None),
    };
    let args = inputs.object("args")?;
    let made: Box<dyn Partitioner> = match inputs.text("partitioner")? {
        "FixedShardsPartitioner" => {
            let shards = number(&args, "num_shards")?.ok_or("no num_shards")?;
            Box::new(FixedShardsPartitioner::new(shards)?)
        }
        "MinSizePartitioner" => {
            let bytes = number(&args, "min_shard_bytes")?.unwrap_or(256 << 10);
            let made = MinSizePartitioner::new(bytes, number(&args, "max_shards")?.unwrap_or(1))?;
            Box::new(match number(&args, "bytes_per_string")? {
                Some(bytes) => made.bytes_per_string(bytes)?,
                None => made,
            })
        }
        "MaxSizePartitioner" => {
            let made =
                MaxSizePartitioner::new(number(&args, "max_shard_bytes")?.ok_or("no max_shard_bytes")?)?;
            let made = match number(&args, "bytes_per_string")? {
                Some(bytes) => made.bytes_per_string(bytes)?,
                None => made,
            };
            Box::new(match args.optional("max_shards").and_then(Value::as_i64) {
                Some(shards) => made.max_shards(usize::try_from(shards).map_err(|_| negative(shards))?),
                None => made,
            })
        }
        other => return Err(format!("unknown partitioner {other:?}").into()),
    };
    args.finish()?;
    Ok(made)
}

/// Returns the error for a number that a `usize` cannot hold.
fn negative(number: i64) -> Stop {
    distribute::Error::InvalidArgument { operation: "max_shards", reason: format!("{number} is negative") }
        .into()
}

fn size(value: &Value) -> Result<usize, String> {
    value.as_u64().map(|n| n as usize).ok_or_else(|| format!("{value} is no size"))
}

/// PART-2: TensorFlow accepts any number of shards, and fails when a variable is created. This crate refuses a number
/// below 1 at once.
pub fn there_is_at_least_one_shard(case: &Case, inputs: &Inputs<'_>) -> Found {
    if op(inputs) != "partition" || inputs.text("partitioner")? != "FixedShardsPartitioner" {
        return Ok(None);
    }
    let shards = inputs.object("args")?.int("num_shards")?;
    Ok((outcome(case).is_some() && shards < 1).then(|| Difference::error("PART-2", "ValueError")))
}

/// PART-4: TensorFlow divides by the size of an axis that is 0. This crate makes one shard of an empty variable.
pub fn zero_parts_are_one(case: &Case, inputs: &Inputs<'_>) -> Found {
    if op(inputs) != "partition" || inputs.text("partitioner")? != "MaxSizePartitioner" {
        return Ok(None);
    }
    let shape = inputs.list("shape")?;
    let nothing = case.quirk && outcome(case).is_none() && shape.iter().any(|size| size.as_u64() == Some(0));
    Ok(nothing.then(|| Difference::outcome("PART-4", json!({"partitions": vec![1; shape.len()]}))))
}
