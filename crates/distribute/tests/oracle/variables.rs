//! Cases of variables: their values after writes in each context, `update`, `update_non_slot` and `reduce_to`.

use super::arithmetic::{add, times};
use super::case::{Case, Inputs, Ran, Stop};
use super::errors::Kind;
use super::tensors::{each, leaf, leaf_json, tensor};
use candle_core::{Device, Tensor};
use distribute::strategy::{Destinations, DeviceName};
use distribute::tensor::{IndexedSlices, Leaf};
use distribute::values::{Distributed, Mirrored, Reducible};
use distribute::variables::{VariableAggregation, VariableBuilder, VariableSynchronization};
use distribute::{HostTensor, PerReplica, ReduceOp, Strategy, Variable};
use serde_json::{Value, json};

/// Runs the cases of variables.json.
pub fn oracle_variables(case: &Case, inputs: &Inputs<'_>) -> Ran {
    let strategy = case.strategy(inputs)?;
    match inputs.text("op")? {
        "variable_program" => {
            let steps = inputs.list("steps")?;
            let variable = create(&strategy, &inputs.object("variable")?)?;
            for step in steps {
                let step = Inputs::new(step.as_object().ok_or_else(|| format!("{step} is no step"))?);
                let (context, method) = (step.text("context")?, step.text("method")?);
                let value = argument(&step.object("value")?, variable.dtype())?;
                step.finish()?;
                match value {
                    Argument::Plain(value) => write(&strategy, &variable, context, method, value),
                    Argument::Mirrored(value) => write(&strategy, &variable, context, method, value),
                    Argument::PerReplica(value) => write(&strategy, &variable, context, method, value),
                    Argument::Variable(_) => return Err(format!("no value for {method}").into()),
                }?;
            }
            seen(&strategy, &variable)
        }
        "scatter" => scatter(case, inputs, &strategy),
        "update" => update(inputs, &strategy),
        "reduce_to" | "batch_reduce_to" => reduce_to(case, inputs, &strategy),
        "update_pattern" => update_pattern(case, inputs, &strategy),
        "update_non_slot" => update_non_slot(inputs, &strategy),
        "created_in_scope" => {
            let inside = strategy.scope(|| Variable::new("inside", 1f32))?;
            let outside = Variable::new("outside", 1f32)?;
            let created = |variable| strategy.variable_created_in_scope(variable);
            Ok(json!({"inside": created(&inside), "outside": created(&outside)}))
        }
        "value_container" => value_container(&strategy),
        "component_names" => {
            let variable = strategy.scope(|| Variable::new("w", 1f32))?;
            // TensorFlow's names of tensors say which output of an operation they are.
            let names: Vec<_> = variable.copy_names().iter().map(|name| format!("{name}:0")).collect();
            let short = |device: DeviceName| device.to_string().rsplit('/').next().map(str::to_string);
            let devices: Vec<_> = variable.devices().into_iter().map(short).collect();
            Ok(json!({"names": names, "devices": devices}))
        }
        other => Err(format!("unknown op {other:?}").into()),
    }
}

/// Creates the variable that `spec` describes in the strategy's scope.
fn create(strategy: &Strategy, spec: &Inputs<'_>) -> Result<Variable, Stop> {
    let initial = tensor(spec.get("initial")?)?;
    let builder = builder((spec.text("sync")?, spec.text("aggregation")?), initial)?;
    spec.finish()?;
    Ok(strategy.scope(|| builder.create())?)
}

/// Returns a builder of a variable with the given synchronization, aggregation and initial value.
pub fn builder((sync, aggregation): (&str, &str), initial: HostTensor) -> Result<VariableBuilder, Stop> {
    let synchronization = match sync {
        "AUTO" => VariableSynchronization::Auto,
        "NONE" => VariableSynchronization::None,
        "ON_WRITE" => VariableSynchronization::OnWrite,
        "ON_READ" => VariableSynchronization::OnRead,
        other => return Err(format!("unknown sync {other:?}").into()),
    };
    let aggregation = match aggregation {
        "NONE" => VariableAggregation::None,
        "SUM" => VariableAggregation::Sum,
        "MEAN" => VariableAggregation::Mean,
        "ONLY_FIRST_REPLICA" => VariableAggregation::OnlyFirstReplica,
        other => return Err(format!("unknown aggregation {other:?}").into()),
    };
    Ok(Variable::builder("v", initial).synchronization(synchronization).aggregation(aggregation))
}

enum Argument {
    Plain(Leaf),
    Mirrored(Mirrored<Leaf>),
    PerReplica(PerReplica<Leaf>),
    /// Another variable, with the given initial value.
    Variable(HostTensor),
}

/// Reads the argument of a write or an update. A plain number becomes a scalar of the variable's dtype.
fn argument(value: &Inputs<'_>, dtype: distribute::tensor::DType) -> Result<Argument, Stop> {
    let all = |list: &Value| {
        let list = list.as_array().ok_or_else(|| format!("{list} is no list"))?;
        list.iter().map(leaf).collect::<Result<Vec<_>, String>>()
    };
    let argument = if let Some(plain) = value.optional("tensor") {
        Argument::Plain(leaf(plain)?)
    } else if value.optional("python").is_some() {
        Argument::Plain(Leaf::Host(HostTensor::scalar(value.float("python")?).cast(dtype)?))
    } else if let Some(list) = value.optional("per_replica") {
        Argument::PerReplica(PerReplica::from_values(all(list)?))
    } else if let Some(list) = value.optional("mirrored") {
        Argument::Mirrored(Mirrored::from_copies(all(list)?).ok_or_else(|| "no copies".to_string())?)
    } else {
        Argument::Variable(tensor(value.get("variable")?)?)
    };
    value.finish()?;
    Ok(argument)
}

/// Writes to a variable, in replica, cross-replica or update context.
fn write<V: Distributed<Local = Leaf> + Reducible>(
    strategy: &Strategy,
    variable: &Variable,
    context: &str,
    method: &str,
    value: V,
) -> Result<(), Stop> {
    match context {
        "replica" => drop(strategy.run(value, |_, value| assign(variable, method, value))?),
        "cross" => strategy.scope(|| assign(variable, method, value))?,
        "update" => {
            drop(strategy.update(variable, value, |variable, value| assign(variable, method, value))?)
        }
        other => return Err(format!("unknown context {other:?}").into()),
    }
    Ok(())
}

pub fn assign<V: Reducible>(variable: &Variable, method: &str, value: V) -> distribute::Result<()> {
    match method {
        "assign" => variable.assign(value),
        "assign_add" => variable.assign_add(value),
        "assign_sub" => variable.assign_sub(value),
        other => Err(distribute::Error::other(format!("unknown method {other:?}"))),
    }
}

/// Returns the visible state of a variable: its copies, its value in the scope, and its value in each replica.
fn seen(strategy: &Strategy, variable: &Variable) -> Ran {
    let cross_read = match strategy.scope(|| variable.read::<Leaf>()) {
        Ok(value) => leaf_json(&value),
        Err(error) => match Kind::of_error(&error) {
            Some(kind) => json!({"error": kind.class()}),
            None => return Err(error.into()),
        },
    };
    let replica_reads = strategy.run((), |_, ()| variable.read::<Leaf>())?;
    Ok(json!({
        "components": components(variable)?,
        "cross_read": cross_read,
        "replica_reads": replica_reads.iter().map(leaf_json).collect::<Vec<_>>(),
    }))
}

pub fn components(variable: &Variable) -> distribute::Result<Vec<Value>> {
    Ok(variable.copies::<Leaf>()?.iter().map(leaf_json).collect())
}

fn scatter(case: &Case, inputs: &Inputs<'_>, strategy: &Strategy) -> Ran {
    let variable = create(strategy, &inputs.object("variable")?)?;
    let (method, deltas) = (inputs.text("method")?, inputs.list("deltas")?);
    let slices = |value: &Value| match leaf(value)? {
        Leaf::Slices(slices) => Ok(slices),
        other => Err(format!("{} instead of slices", other.kind())),
    };
    let scatter = |rows: IndexedSlices| match method {
        "scatter_add" => variable.scatter_add(rows),
        "scatter_sub" => variable.scatter_sub(rows),
        "scatter_mul" => variable.scatter_mul(rows),
        "scatter_div" => variable.scatter_div(rows),
        "scatter_min" => variable.scatter_min(rows),
        "scatter_max" => variable.scatter_max(rows),
        "scatter_update" => variable.scatter_update(rows),
        other => Err(distribute::Error::other(format!("unknown method {other:?}"))),
    };
    match inputs.text("context")? {
        "replica" => {
            let deltas = PerReplica::from_values(each(deltas, case.replicas, slices)?);
            drop(strategy.run(deltas, |_, rows| scatter(rows))?);
        }
        "cross" => {
            let rows = each(deltas, 1, slices)?.remove(0);
            strategy.scope(|| scatter(rows))?;
        }
        other => return Err(format!("unknown context {other:?}").into()),
    }
    seen(strategy, &variable)
}

fn update(inputs: &Inputs<'_>, strategy: &Strategy) -> Ran {
    let variable = create(strategy, &inputs.object("variable")?)?;
    let function = inputs.text("fn")?;
    // Results can be accessed together and individually, so this flag has no effect.
    inputs.flag("group")?;
    let mut calls = 0;
    let mut apply = |variable: &Variable, x: Leaf| {
        calls += 1;
        match function {
            "assign_add" => variable.assign_add(&x)?,
            "assign" => variable.assign(&x)?,
            "axpy" => variable.assign(add(&times(&variable.read()?, 2)?, &x)?)?,
            "read_only" => return add(&variable.read()?, &x),
            other => return Err(distribute::Error::other(format!("unknown fn {other:?}"))),
        }
        Ok(x)
    };
    let results = match argument(&inputs.object("arg")?, variable.dtype())? {
        Argument::Plain(x) => strategy.update(&variable, x, apply)?,
        Argument::Mirrored(x) => strategy.update(&variable, x, apply)?,
        Argument::PerReplica(x) => strategy.update(&variable, x, apply)?,
        Argument::Variable(initial) => {
            let other = strategy.scope(|| Variable::new("other", initial))?;
            strategy.update(&variable, &other, |variable, other| apply(variable, other.read()?))?
        }
    };
    let results: Vec<_> = results.copies().into_iter().map(leaf_json).collect();
    Ok(json!({"calls": calls, "components": components(&variable)?, "result": results}))
}

fn reduce_to(case: &Case, inputs: &Inputs<'_>, strategy: &Strategy) -> Ran {
    let op: ReduceOp = inputs.text("reduce_op")?.parse()?;
    let values = each(inputs.list("values")?, case.replicas, leaf)?;
    let doubled = values.iter().map(|value| times(value, 2)).collect::<distribute::Result<_>>()?;
    let (values, doubled) = (PerReplica::from_values(values), PerReplica::from_values(doubled));
    let variable = strategy.scope(|| Variable::new("v", 0f32))?;
    let devices = strategy.extended().worker_devices();
    let destination = inputs.text("destination")?;
    let to = |value: &PerReplica<Leaf>| match (destination, devices) {
        ("variable", _) => Ok(Destinations::from(&variable)),
        ("value", _) => Ok(Destinations::from(value)),
        ("device", [first, ..]) => Ok(Destinations::from(*first)),
        ("device1", [.., last]) => Ok(Destinations::from(*last)),
        (other, _) => Err(format!("unknown destination {other:?}")),
    };
    // A type of its own for one device would change with their number: ours is always mirrored, over one device too.
    let outcome = |result: Mirrored<Leaf>| {
        let copies: Vec<_> = result.copies().into_iter().map(leaf_json).collect();
        json!({"is_mirrored": copies.len() > 1, "result": copies})
    };
    match inputs.text("op")? {
        "reduce_to" => Ok(outcome(strategy.reduce_to(op, &values, to(&values)?)?)),
        _ => {
            let pairs = [(&values, to(&values)?), (&doubled, to(&doubled)?)];
            let results = strategy.batch_reduce_to(op, pairs)?;
            Ok(json!({"results": results.into_iter().map(outcome).collect::<Vec<_>>()}))
        }
    }
}

fn update_pattern(case: &Case, inputs: &Inputs<'_>, strategy: &Strategy) -> Ran {
    let (op, rate): (ReduceOp, _) =
        (inputs.text("reduce_op")?.parse()?, inputs.float("learning_rate")? as f32);
    let initial = tensor(inputs.get("initial")?)?;
    let variable = strategy.scope(|| Variable::new("v", initial))?;
    let scaled = |gradient: Leaf| -> distribute::Result<HostTensor> {
        let gradient = gradient.to_host()?;
        let scaled = gradient.to_vec::<f32>()?.into_iter().map(|g| rate * g).collect::<Vec<_>>();
        Ok(HostTensor::new(scaled, gradient.dims())?)
    };
    for gradients in inputs.list("gradients")? {
        let gradients = gradients.as_array().ok_or_else(|| format!("{gradients} is no list"))?;
        let gradients = PerReplica::from_values(each(gradients, case.replicas, leaf)?);
        strategy.run(gradients, |ctx, gradient| {
            ctx.merge_call(gradient, |strategy, gradients| {
                let total = strategy.reduce_to(op, gradients, &variable)?;
                strategy.update(&variable, total, |variable, total| variable.assign_sub(scaled(total)?))?;
                Ok(())
            })
        })?;
    }
    Ok(json!({"components": components(&variable)?}))
}

fn update_non_slot(inputs: &Inputs<'_>, strategy: &Strategy) -> Ran {
    let (increment, times) = (inputs.int("increment")? as i32, inputs.count("times")?);
    let (variable, counter) = strategy
        .scope(|| Ok((Variable::new("v", 1f32)?, Variable::new("counter", HostTensor::scalar(0i32))?)))?;
    let devices = strategy.non_slot_devices(&[&variable])?;
    let mut calls = 0;
    for _ in 0..times {
        strategy.update_non_slot(&devices, (), |()| {
            calls += 1;
            counter.assign_add(HostTensor::scalar(increment))
        })?;
    }
    Ok(json!({"calls": calls, "num_devices": devices.len(), "components": components(&counter)?}))
}

fn value_container(strategy: &Strategy) -> Ran {
    let tensor = || Tensor::new(1f32, &Device::Cpu).map_err(distribute::Error::from);
    let variable = strategy.scope(|| Variable::new("v", tensor()?))?;
    let is_copy_of = |tensor: &Tensor| strategy.value_container(tensor) == Some(variable.clone());
    let copies = strategy.run((), |_, ()| variable.as_tensor())?;
    Ok(json!({
        "component_in_container": copies.iter().all(&is_copy_of),
        // The type of a variable makes it its own container, so the argument is a tensor.
        "variable_itself": is_copy_of(&strategy.scope(|| variable.as_tensor())?),
        "plain_tensor_itself": strategy.value_container(&tensor()?).is_none(),
    }))
}
