//! Deliberate differences from TensorFlow's variables. See `differences.rs`.

use super::case::{Case, Inputs};
use super::differences::{Difference, Found, op, outcome};
use super::tensors::{tensor, to_json};
use distribute::HostTensor;
use distribute::tensor::DType;
use serde_json::{Value, json};

/// The writes of a case, and the properties of the variable that they change.
struct Program<'a> {
    sync: &'a str,
    aggregation: &'a str,
    initial: &'a Value,
    steps: Vec<Step<'a>>,
}

struct Step<'a> {
    context: &'a str,
    method: &'a str,
    /// The form of the value: `tensor`, `python`, `mirrored` or `per_replica`, or `slices` for a scatter.
    form: &'a str,
    value: &'a Value,
}

/// Returns the writes of a case, or `None` if it does not write to a variable of a mirrored strategy.
fn program<'a>(inputs: &Inputs<'a>) -> Result<Option<Program<'a>>, String> {
    if !matches!(op(inputs), "variable_program" | "scatter")
        || inputs.optional("strategy").and_then(Value::as_str) != Some("mirrored")
    {
        return Ok(None);
    }
    let spec = inputs.object("variable")?;
    let steps = match inputs.optional("steps").and_then(Value::as_array) {
        Some(steps) => steps.iter().map(step).collect::<Result<_, _>>()?,
        None => {
            let (context, method) = (inputs.text("context")?, inputs.text("method")?);
            vec![Step { context, method, form: "slices", value: inputs.get("deltas")? }]
        }
    };
    let (sync, aggregation, initial) = (spec.text("sync")?, spec.text("aggregation")?, spec.get("initial")?);
    Ok(Some(Program { sync, aggregation, initial, steps }))
}

fn step(step: &Value) -> Result<Step<'_>, String> {
    let fields = Inputs::new(step.as_object().ok_or("a step is no object")?);
    let value = fields.get("value")?.as_object().and_then(|value| value.iter().next());
    let (form, value) = value.ok_or("a step has no value")?;
    Ok(Step { context: fields.text("context")?, method: fields.text("method")?, form, value })
}

/// WR-3: TensorFlow lets each replica write its own copy of an ON_WRITE variable without aggregation, and the copies
/// drift apart. This crate refuses such writes with any number of replicas.
pub fn no_writes_without_aggregation(case: &Case, inputs: &Inputs<'_>) -> Found {
    let Some(program) = program(inputs)? else { return Ok(None) };
    let on_write = matches!(program.sync, "AUTO" | "ON_WRITE") && program.aggregation == "NONE";
    let written = program.steps.iter().any(|step| step.context == "replica");
    let differs = on_write && written && outcome(case).is_some();
    Ok(differs.then(|| Difference::error("WR-3", "ValueError")))
}

/// WR-4: TensorFlow cannot sum the same plain number over several replicas. This crate can, like `all_reduce`.
pub fn plain_numbers_are_summed(case: &Case, inputs: &Inputs<'_>) -> Found {
    let Some(program) = program(inputs)? else { return Ok(None) };
    let on_write = matches!(program.sync, "AUTO" | "ON_WRITE") && program.aggregation == "SUM";
    let [step] = &program.steps[..] else { return Ok(None) };
    let plain = step.context == "replica" && step.form == "python";
    if !on_write || !plain || case.replicas < 2 || outcome(case).is_some() {
        return Ok(None);
    }
    let sum = step.value.as_f64().ok_or("a plain number is none")? * case.replicas as f64;
    let after = written(program.initial, step.method, &HostTensor::scalar(sum))?;
    Ok(Some(Difference::outcome("WR-4", everywhere(&after, case.replicas, to_json(&after)))))
}

/// T4: TensorFlow writes all copies of an ON_READ variable without aggregation, and then fails to return the new value.
/// This crate writes them, and only a read fails.
pub fn writes_give_nothing_to_read(case: &Case, inputs: &Inputs<'_>) -> Found {
    let Some(program) = program(inputs)? else { return Ok(None) };
    let [step] = &program.steps[..] else { return Ok(None) };
    let none = program.sync == "ON_READ" && program.aggregation == "NONE";
    if !none || step.context != "cross" || outcome(case).is_some() || !case.quirk {
        return Ok(None);
    }
    let value = match step.form {
        "mirrored" => step.value.get(0).ok_or("a mirrored value has no copies")?,
        _ => step.value,
    };
    let after = written(program.initial, step.method, &tensor(value)?)?;
    let unreadable = json!({"error": "ValueError"});
    Ok(Some(Difference::outcome("variables T4", everywhere(&after, case.replicas, unreadable))))
}

/// T5: TensorFlow divides a value that is assigned to an integer ON_READ SUM variable by the number of replicas, and
/// loses the remainder. This crate adds the remainder to the first copies, so that a read returns the assigned value.
pub fn the_remainder_is_kept(case: &Case, inputs: &Inputs<'_>) -> Found {
    let Some(program) = program(inputs)? else { return Ok(None) };
    let [step] = &program.steps[..] else { return Ok(None) };
    let sum = program.sync == "ON_READ" && program.aggregation == "SUM";
    let initial = tensor(program.initial)?;
    if !sum || (step.context, step.method) != ("cross", "assign") || !initial.dims().is_empty() {
        return Ok(None);
    }
    let integer = matches!(initial.dtype(), DType::I32 | DType::I64);
    let whole = step.value.get("data").and_then(|data| data.get(0)).and_then(Value::as_i64);
    let (true, Some(whole), n) = (integer, whole, case.replicas as i64) else { return Ok(None) };
    let share = |i: i64| whole / n + if i < (whole % n).abs() { whole.signum() } else { 0 };
    let scalar = |x: i64| HostTensor::scalar(x).cast(initial.dtype()).map(|x| to_json(&x));
    let copies =
        (0..n).map(|i| scalar(share(i))).collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
    let read = scalar(whole).map_err(|e| e.to_string())?;
    let ours = json!({"components": copies, "cross_read": read, "replica_reads": copies});
    Ok((outcome(case) != ours.as_object()).then(|| Difference::outcome("variables T5", ours)))
}

/// UPD-2, WR-2: outside the replicas, TensorFlow writes each component of a per-replica value to one copy, and the
/// copies drift apart. This crate refuses such values.
pub fn copies_have_no_separate_values(case: &Case, inputs: &Inputs<'_>) -> Found {
    if outcome(case).is_none() {
        return Ok(None);
    }
    if op(inputs) == "update" && inputs.object("arg")?.optional("per_replica").is_some() {
        return Ok(Some(Difference::error("UPD-2", "ValueError")));
    }
    let Some(program) = program(inputs)? else { return Ok(None) };
    let own = |step: &Step<'_>| step.context == "cross" && step.form == "per_replica";
    Ok(program.steps.iter().any(own).then(|| Difference::error("WR-2", "ValueError")))
}

/// WR-4, ONR-3: if only the first replica counts, each of TensorFlow's workers takes its own: the copies of an ON_WRITE
/// variable drift apart, and workers read different values. In this crate, the value of worker 0 counts on all of them.
pub fn the_first_replica_is_that_of_worker_0(case: &Case, inputs: &Inputs<'_>) -> Found {
    if case.area != "multi_worker" || op(inputs) != "variable" {
        return Ok(None);
    }
    let theirs = outcome(case).and_then(|theirs| theirs.get("per_worker")?.as_array());
    let (Some(theirs), "ONLY_FIRST_REPLICA") = (theirs, inputs.text("aggregation")?) else { return Ok(None) };
    // Replicas write their own copies of an ON_READ variable: only what is read is one value.
    let (rule, equal): (_, &[&str]) = match inputs.text("sync")? {
        "ON_READ" => ("ONR-3", &["cross_read"]),
        _ => ("WR-4", &["cross_read", "local"]),
    };
    let of_first = |worker: &Value| {
        let mut ours = worker.clone();
        equal.iter().for_each(|field| ours[*field] = theirs[0][*field].clone());
        ours
    };
    let ours: Vec<_> = theirs.iter().map(of_first).collect();
    Ok((ours != *theirs).then(|| Difference::outcome(rule, json!({"per_worker": ours}))))
}

/// Returns the visible state of a variable whose copies are all `copy`.
fn everywhere(copy: &HostTensor, replicas: usize, cross_read: Value) -> Value {
    let copies = vec![to_json(copy); replicas];
    json!({"components": copies, "cross_read": cross_read, "replica_reads": copies})
}

/// Returns the variable after a write, computed in `f64`.
fn written(initial: &Value, method: &str, value: &HostTensor) -> Result<HostTensor, String> {
    let initial = tensor(initial)?;
    let write = |(old, new): (f64, f64)| match method {
        "assign" => Ok(new),
        "assign_add" => Ok(old + new),
        "assign_sub" => Ok(old - new),
        other => Err(format!("unknown method {other:?}")),
    };
    let numbers = |tensor: &HostTensor| tensor.cast(DType::F64).and_then(|t| t.to_vec::<f64>());
    let (old, new) =
        (numbers(&initial).map_err(|e| e.to_string())?, numbers(value).map_err(|e| e.to_string())?);
    let after = old.into_iter().zip(new).map(write).collect::<Result<Vec<_>, _>>()?;
    let after = HostTensor::new(after, initial.dims()).and_then(|after| after.cast(initial.dtype()));
    after.map_err(|e| e.to_string())
}
