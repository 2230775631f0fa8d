//! Cases of a coordinator and its workers. Each is a script of steps, whose log is compared.

use super::case::{Case, Expect, Inputs, Ran, Stop};
use super::differences::{Difference, Found, op};
use super::errors::Kind;
use distribute::parameter_server::FixedShardsPartitioner;
use distribute::remote::{Batches, PerWorker, RemoteValue, WorkerContext, current_worker_index};
use distribute::tensor::{DType, IndexedSlices};
use distribute::{
    ClusterCoordinator, Dataset, Error, HostTensor, LocalCluster, ParameterServerStrategy, Result, Variable,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The time limit of a step. [`compare_case`](super::verdict::compare_case) limits the case.
const MINUTE: Duration = Duration::from_secs(60);

/// The interval at which a waiting thread checks its condition.
const LOOK: Duration = Duration::from_millis(2);

/// The result of a function, in one of the forms that scripts use.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Form {
    Nothing,
    Int(i64),
    Float(f64),
    /// The elements of one tensor.
    Numbers(Vec<i64>),
    List(Vec<Form>),
    Tuple(Vec<Form>),
    Dict(BTreeMap<String, Form>),
}

impl Form {
    fn json(&self) -> Value {
        let list = |all: &[Form]| all.iter().map(Form::json).collect::<Vec<_>>();
        match self {
            Form::Nothing => json!({"none": true}),
            Form::Int(x) => json!(x),
            Form::Float(x) => json!(x),
            Form::Numbers(all) => json!(all),
            Form::List(all) => json!({"list": list(all)}),
            Form::Tuple(all) => json!({"tuple": list(all)}),
            Form::Dict(all) => {
                let all: Map<_, _> = all.iter().map(|(key, form)| (key.clone(), form.json())).collect();
                json!({"dict": all})
            }
        }
    }
}

/// The gates of all scripts of this process: which are open, and at which a thread waits.
#[derive(Default)]
struct Gates {
    open: BTreeSet<(u64, i64)>,
    reached: BTreeSet<(u64, i64)>,
}

static GATES: Mutex<Gates> = Mutex::new(Gates { open: BTreeSet::new(), reached: BTreeSet::new() });
static MOVED: Condvar = Condvar::new();

fn at_gates(mut is_done: impl FnMut(&mut Gates) -> bool) {
    let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
    while !is_done(&mut gates) {
        gates = MOVED.wait_timeout(gates, LOOK).unwrap_or_else(PoisonError::into_inner).0;
    }
    MOVED.notify_all();
}

/// The variables of a script.
pub struct Vars {
    pub a: Variable,
    pub b: Variable,
    pub table: Variable,
}

impl Vars {
    fn new(strategy: &ParameterServerStrategy) -> Result<Self> {
        strategy.scope(|| {
            let (a, b) = (Variable::new("a", 0i64)?, Variable::new("b", 0i64)?);
            Ok(Self { a, b, table: Variable::new("table", HostTensor::zeros(DType::F32, [6])?)? })
        })
    }
}

/// The functions that the workers run. The module gives them the names that scripts use.
mod functions {
    use super::*;

    #[distribute::remote]
    pub fn make_vars(worker: &WorkerContext) -> Result<Vars> {
        Vars::new(worker.strategy())
    }

    #[distribute::remote]
    pub fn value(_worker: &WorkerContext, x: Form) -> Result<Form> {
        Ok(x)
    }

    #[distribute::remote]
    pub fn add(_worker: &WorkerContext, x: i64, y: i64) -> Result<Form> {
        Ok(Form::Int(x + y))
    }

    #[distribute::remote]
    pub fn nest(_worker: &WorkerContext, x: i64) -> Result<Form> {
        let y = Form::List(vec![Form::Int(2 * x), Form::Tuple(vec![Form::Int(x + 1)])]);
        Ok(Form::Dict([("x".to_owned(), Form::Int(x)), ("y".to_owned(), y)].into()))
    }

    #[distribute::remote]
    pub fn no_result(_worker: &WorkerContext, _x: i64) -> Result<Form> {
        Ok(Form::Nothing)
    }

    #[distribute::remote]
    pub fn plus_one(_worker: &WorkerContext, x: i64) -> Result<Form> {
        Ok(Form::Int(x + 1))
    }

    #[distribute::remote]
    pub fn gate(worker: &WorkerContext, script: u64, i: i64) -> Result<Form> {
        at_gates(|gates| {
            gates.reached.insert((script, i));
            gates.open.contains(&(script, i)) || worker.is_cancelled()
        });
        if worker.is_cancelled() {
            return Err(Error::other(format!("gate {i} was left")));
        }
        Ok(Form::Int(i))
    }

    #[distribute::remote]
    pub fn fail_invalid_argument(_worker: &WorkerContext, x: i64) -> Result<Form> {
        HostTensor::new(vec![x], [2])?;
        Ok(Form::Nothing)
    }

    #[distribute::remote]
    pub fn fail_int_division(_worker: &WorkerContext, x: i64) -> Result<Form> {
        let reason = || format!("{x} is divided by 0");
        let quotient =
            x.checked_div(0).ok_or_else(|| Error::InvalidArgument { operation: "div", reason: reason() })?;
        Ok(Form::Int(quotient))
    }

    #[distribute::remote]
    pub fn fail_out_of_range(_worker: &WorkerContext, _x: i64) -> Result<Form> {
        Err(Error::OutOfRange { operation: "fail_out_of_range" })
    }

    #[distribute::remote]
    pub fn inc_a(_worker: &WorkerContext, vars: &Vars, by: i64) -> Result<Form> {
        vars.a.assign_add(by)?;
        Ok(Form::Int(0))
    }

    #[distribute::remote]
    pub fn inc_b(_worker: &WorkerContext, vars: &Vars, by: i64) -> Result<Form> {
        vars.b.assign_add(by)?;
        Ok(Form::Int(0))
    }

    #[distribute::remote]
    pub fn scatter(_worker: &WorkerContext, vars: &Vars, i: i64, d: f32) -> Result<Form> {
        let rows = IndexedSlices::new(HostTensor::vector(vec![d]), HostTensor::vector(vec![i]), None)?;
        vars.table.scatter_add(rows)?;
        Ok(Form::Int(0))
    }

    #[distribute::remote]
    pub fn run_times3(worker: &WorkerContext, x: i64) -> Result<Form> {
        let tripled = worker.strategy().run((), |_ctx, ()| Ok(3 * x))?;
        Ok(Form::Int(*tripled.get(0).ok_or(Error::OutOfRange { operation: "run_times3" })?))
    }

    #[distribute::remote]
    pub fn run_info(worker: &WorkerContext) -> Result<Form> {
        let info = worker.strategy().run((), |ctx, ()| {
            Ok(vec![ctx.replica_id_in_sync_group() as i64, ctx.num_replicas_in_sync() as i64])
        })?;
        let info = info.get(0).ok_or(Error::OutOfRange { operation: "run_info" })?;
        Ok(Form::Numbers(info.clone()))
    }

    #[distribute::remote]
    pub fn range(_worker: &WorkerContext, n: i64, batch: usize) -> Result<Dataset<HostTensor>> {
        Ok(Dataset::range(n).batch(batch))
    }

    #[distribute::remote]
    pub fn distributed_range(
        worker: &WorkerContext,
        n: i64,
        batch: usize,
    ) -> Result<distribute::input::DistributedDataset<HostTensor>> {
        worker.strategy().distribute_dataset(Dataset::range(n).batch(batch))
    }

    #[distribute::remote]
    pub fn range_from_function(
        worker: &WorkerContext,
        n: i64,
        batch: usize,
    ) -> Result<distribute::input::DistributedDataset<(HostTensor, HostTensor)>> {
        worker.strategy().distribute_datasets_from_function(move |context| {
            let batch = context.get_per_replica_batch_size(batch)?;
            // The number of the pipeline is computed from the worker that reads it.
            let own = current_worker_index()?;
            let at = context.input_pipeline_id as i64
                - if context.num_input_pipelines > 1 { own as i64 } else { 0 };
            let told = vec![context.num_input_pipelines as i64, at, context.num_replicas_in_sync as i64];
            Ok(Dataset::range(n).batch(batch).map(move |numbers| (numbers, HostTensor::vector(told.clone()))))
        })
    }

    #[distribute::remote]
    pub fn draw(_worker: &WorkerContext, data: &Batches<HostTensor>) -> Result<Vec<i64>> {
        let batch = data.next()?;
        Ok(batch.get(0).ok_or(Error::OutOfRange { operation: "draw" })?.to_vec()?)
    }

    #[distribute::remote]
    pub fn draw_with_context(
        _worker: &WorkerContext,
        data: &Batches<(HostTensor, HostTensor)>,
    ) -> Result<Vec<i64>> {
        let batch = data.next()?;
        let (numbers, context) = batch.get(0).ok_or(Error::OutOfRange { operation: "draw" })?;
        Ok([numbers.to_vec::<i64>()?, context.to_vec()?].concat())
    }
}

/// A pending result, in one of the forms that scripts use.
enum Remote {
    Form(RemoteValue<Form>),
    /// An element of a dataset, and whether it is batched.
    Drawn(RemoteValue<Vec<i64>>, bool),
}

impl Remote {
    fn fetch(&self) -> Result<Value> {
        match self {
            Remote::Form(remote) => Ok(remote.fetch_within(MINUTE)?.json()),
            Remote::Drawn(remote, true) => Ok(json!(remote.fetch_within(MINUTE)?)),
            Remote::Drawn(remote, false) => Ok(json!(remote.fetch_within(MINUTE)?.first())),
        }
    }
}

enum Data {
    /// A dataset, and whether it is batched. Unbatched elements are batches of one here, because only batches are
    /// distributed.
    Range(PerWorker<Batches<HostTensor>>, bool),
    WithContext(PerWorker<Batches<(HostTensor, HostTensor)>>),
}

struct Script {
    number: u64,
    strategy: ParameterServerStrategy,
    coordinator: ClusterCoordinator,
    here: Vars,
    vars: PerWorker<Vars>,
    values: BTreeMap<String, Remote>,
    data: BTreeMap<String, Data>,
}

/// Runs the cases of coordinator.json.
pub fn oracle_coordinator(case: &Case, inputs: &Inputs<'_>) -> Ran {
    match inputs.text("op")? {
        // CC-1: here the compiler refuses a coordinator of another strategy.
        "coordinator_for" => match inputs.text("strategy")? {
            "one_device" => Err(Error::NotSupported {
                operation: "ClusterCoordinator::new",
                strategy: "OneDeviceStrategy",
                what: "a coordinator",
                advice: "it takes a ParameterServerStrategy",
            }
            .into()),
            other => Err(format!("no strategy {other:?}").into()),
        },
        "script" => {
            let mut script = Script::new(inputs)?;
            let steps = inputs.list("script")?;
            let wanted = match &case.expect {
                Expect::Outcome(outcome) => outcome.get("log").and_then(Value::as_array),
                Expect::Error(_) => None,
            };
            let wanted = wanted.ok_or("a script has no log")?;
            if wanted.len() != steps.len() {
                return Err("a log is of another length than its script".into());
            }
            let mut log = Vec::new();
            for (step, wanted) in steps.iter().zip(wanted) {
                let step = Inputs::new(step.as_object().ok_or("a step is no object")?);
                let logged = match script.step(&step) {
                    Ok(value) => json!({"ok": value}),
                    Err(Stop::Library(error)) => refused(&error, wanted),
                    Err(stop) => return Err(stop),
                };
                step.finish()?;
                log.push(logged);
            }
            Ok(json!({"log": log}))
        }
        other => Err(format!("unknown op {other:?}").into()),
    }
}

/// Returns an error as an entry of the log. An error of the expected kind gives the expected entry.
fn refused(error: &Error, wanted: &Value) -> Value {
    let class = wanted.get("error").and_then(|error| error.get("type")).and_then(Value::as_str);
    let kind = Kind::of_error(error);
    if kind.is_some() && class.and_then(Kind::of_type) == kind {
        return wanted.clone();
    }
    json!({"error": {"type": kind.map(|kind| kind.class().to_owned()), "why": error.to_string()}})
}

impl Script {
    fn new(inputs: &Inputs<'_>) -> Result<Self, Stop> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let cluster = LocalCluster::new(inputs.count("workers")?, inputs.count("ps")?)?;
        let strategy = ParameterServerStrategy::new(cluster.resolver(), FixedShardsPartitioner::new(2)?)?;
        let coordinator = ClusterCoordinator::new(&strategy)?;
        let here = Vars::new(&strategy)?;
        let vars = coordinator.create_per_worker_value(functions::make_vars, ())?;
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let (values, data) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { number, strategy, coordinator, here, vars, values, data })
    }

    fn step(&mut self, step: &Inputs<'_>) -> Ran {
        let id = || step.text("id").map(str::to_owned);
        match step.text("do")? {
            "schedule" => self.schedule(step),
            "join" => Ok(json!(self.coordinator.join_within(MINUTE)?)),
            "done" => Ok(json!(self.coordinator.done()?)),
            "fetch" => self.fetch(step.get("value")?),
            "fetch_or_cancelled" => {
                let ran = step.get("if_run")?;
                match self.fetch(step.get("value")?) {
                    Ok(value) if value == *ran => {}
                    Err(Stop::Library(error))
                        if Kind::of_error(&error) == Kind::of_type("CancelledError") => {}
                    Ok(other) => return Err(format!("{other} in place of {ran}, or a cancelled one").into()),
                    Err(stop) => return Err(stop),
                }
                Ok(json!({"either": [ran, "CancelledError"]}))
            }
            "wait_started" => {
                let gate = (self.number, step.int("gate")?);
                at_gates(|gates| gates.reached.contains(&gate));
                Ok(Value::Null)
            }
            "open_gate" => {
                let gate = (self.number, step.int("gate")?);
                at_gates(|gates| {
                    gates.open.insert(gate);
                    true
                });
                Ok(Value::Null)
            }
            "wait_failed" => {
                let remote = self.values.get(&id()?).ok_or("no such value")?;
                match remote.fetch() {
                    Err(_) => Ok(Value::Null),
                    Ok(value) => Err(format!("it has not failed, and is {value}").into()),
                }
            }
            "dataset" => {
                let (n, batch) = (step.int("n")?, step.optional("batch").and_then(Value::as_u64));
                let is_batched = batch.is_some();
                let batch = batch.unwrap_or(1) as usize;
                let data = self.coordinator.create_per_worker_dataset(functions::range, (n, batch))?;
                self.data.insert(id()?, Data::Range(data, is_batched));
                Ok(Value::Null)
            }
            "distributed_dataset" => {
                let (n, batch) = (step.int("n")?, step.count("batch")?);
                let data =
                    self.coordinator.create_per_worker_dataset(functions::distributed_range, (n, batch))?;
                self.data.insert(id()?, Data::Range(data, true));
                Ok(Value::Null)
            }
            "dataset_from_function" => {
                let (n, batch) = (step.int("n")?, step.count("batch")?);
                let data =
                    self.coordinator.create_per_worker_dataset(functions::range_from_function, (n, batch))?;
                self.data.insert(id()?, Data::WithContext(data));
                Ok(Value::Null)
            }
            "read_var" => match step.text("var")? {
                "a" => Ok(json!(self.here.a.read::<HostTensor>()?.to_vec::<i64>()?.first())),
                "b" => Ok(json!(self.here.b.read::<HostTensor>()?.to_vec::<i64>()?.first())),
                other => Err(format!("no variable {other:?}").into()),
            },
            "read_table" => Ok(json!(self.here.table.read::<HostTensor>()?.to_vec::<f32>()?)),
            "num_replicas_in_sync" => Ok(json!(self.strategy.num_replicas_in_sync())),
            "same_coordinator" => Ok(json!(ClusterCoordinator::new(&self.strategy)? == self.coordinator)),
            other => Err(format!("unknown step {other:?}").into()),
        }
    }

    fn schedule(&mut self, step: &Inputs<'_>) -> Ran {
        let (id, function) = (step.text("id")?.to_owned(), step.text("fn")?);
        let given = step.optional("args").and_then(Value::as_array).cloned().unwrap_or_default();
        // Arguments have places here, and no names.
        let named = step.optional("kwargs").and_then(Value::as_object).cloned().unwrap_or_default();
        let args: Vec<Value> = given.into_iter().chain(named.into_iter().map(|(_, value)| value)).collect();
        let int = |at: usize| args.get(at).and_then(Value::as_i64).ok_or("no such integer argument");
        if args.iter().any(|arg| arg.get("remote").is_some()) {
            // CC-2: it does not compile here, as the documentation of `Arg` shows.
            return Err(
                Error::InvalidArgument { operation: "schedule", reason: "a RemoteValue".to_owned() }.into()
            );
        }
        let to = &self.coordinator;
        let remote = match function {
            "value" => to.schedule(functions::value, (form(args.first().ok_or("no argument")?)?,)),
            "add" => to.schedule(functions::add, (int(0)?, int(1)?)),
            "nest" => to.schedule(functions::nest, (int(0)?,)),
            "no_result" => {
                to.schedule(functions::no_result, (args.first().and_then(Value::as_i64).unwrap_or(0),))
            }
            "py_plus_one" => to.schedule(functions::plus_one, (int(0)?,)),
            "not_callable" => {
                // The program does not compile here.
                let reason = "what is no function".to_owned();
                return Err(Error::InvalidArgument { operation: "schedule", reason }.into());
            }
            "gate" => to.schedule(functions::gate, (self.number, int(0)?)),
            "fail_invalid_argument" => to.schedule(functions::fail_invalid_argument, (int(0)?,)),
            "fail_int_division" => to.schedule(functions::fail_int_division, (int(0)?,)),
            "fail_out_of_range" => to.schedule(functions::fail_out_of_range, (int(0)?,)),
            "inc_a" => to.schedule(functions::inc_a, (&self.vars, int(0)?)),
            "inc_b" => to.schedule(functions::inc_b, (&self.vars, int(0)?)),
            "scatter" => {
                let by = args.get(1).and_then(Value::as_f64).ok_or("no number to add")?;
                to.schedule(functions::scatter, (&self.vars, int(0)?, by as f32))
            }
            "run_times3" => to.schedule(functions::run_times3, (int(0)?,)),
            "run_info" => to.schedule(functions::run_info, ()),
            "draw" => {
                let data = args.first().and_then(|arg| arg.get("iterator")?.as_str()).ok_or("no iterator")?;
                let remote = match self.data.get(data).ok_or("no such dataset")? {
                    Data::Range(data, is_batched) => {
                        Remote::Drawn(to.schedule(functions::draw, (data,))?, *is_batched)
                    }
                    Data::WithContext(data) => {
                        Remote::Drawn(to.schedule(functions::draw_with_context, (data,))?, true)
                    }
                };
                self.values.insert(id, remote);
                return Ok(Value::Null);
            }
            other => return Err(format!("unknown function {other:?}").into()),
        };
        self.values.insert(id, Remote::Form(remote?));
        Ok(Value::Null)
    }

    /// Returns a structure whose placeholders are replaced by results.
    fn fetch(&self, value: &Value) -> Ran {
        Ok(match value {
            Value::Array(all) => {
                json!({"list": all.iter().map(|one| self.fetch(one)).collect::<Result<Vec<_>, Stop>>()?})
            }
            Value::Object(all) => match all.get("remote").and_then(Value::as_str) {
                Some(id) => self.values.get(id).ok_or("no such value")?.fetch()?,
                None => {
                    let all = all.iter().map(|(key, one)| Ok((key.clone(), self.fetch(one)?)));
                    json!({"dict": all.collect::<Result<Map<_, _>, Stop>>()?})
                }
            },
            plain => plain.clone(),
        })
    }
}

fn form(value: &Value) -> Result<Form, Stop> {
    match (value.as_i64(), value.as_f64()) {
        (Some(x), _) => Ok(Form::Int(x)),
        (None, Some(x)) => Ok(Form::Float(x)),
        (None, None) => Err(format!("{value} is no number").into()),
    }
}

/// Returns a difference if `other` replaces an entry of the expected log. `other` is called with each step and its
/// entry.
fn with_log(
    rule: &'static str,
    case: &Case,
    inputs: &Inputs<'_>,
    other: impl Fn(&Map<String, Value>, &Value) -> Option<Value>,
) -> Found {
    let Expect::Outcome(outcome) = &case.expect else { return Ok(None) };
    if op(inputs) != "script" {
        return Ok(None);
    }
    let log = outcome.get("log").and_then(Value::as_array).ok_or("a script has no log")?;
    let steps = inputs.list("script")?;
    let mut is_other = false;
    let entry = |(step, logged): (&Value, &Value)| {
        let found = step.as_object().and_then(|step| other(step, logged));
        is_other |= found.is_some();
        found.unwrap_or_else(|| logged.clone())
    };
    let log: Vec<_> = steps.iter().zip(log).map(entry).collect();
    Ok(is_other.then(|| Difference::outcome(rule, json!({"log": log}))))
}

/// CC-2: TensorFlow schedules a function only after it has been traced. This crate has no tracing and runs any
/// function.
pub fn every_function_can_be_scheduled(case: &Case, inputs: &Inputs<'_>) -> Found {
    with_log("CC-2", case, inputs, |step, _| {
        (step.get("fn")?.as_str()? == "py_plus_one").then(|| json!({"ok": null}))
    })
}

/// PSV2-DS: TensorFlow tells each worker's dataset function that there is one pipeline. This crate tells it the number
/// of workers.
pub fn workers_have_separate_pipelines(case: &Case, inputs: &Inputs<'_>) -> Found {
    let workers = inputs.optional("workers").and_then(Value::as_u64).unwrap_or(1);
    let from_function: BTreeSet<String> = inputs
        .optional("script")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter(|step| step.get("do").and_then(Value::as_str) == Some("dataset_from_function"))
        .filter_map(|step| Some(step.get("id")?.as_str()?.to_owned()))
        .collect();
    if workers < 2 || from_function.is_empty() {
        return Ok(None);
    }
    let script = inputs.list("script")?;
    let drawn: BTreeSet<&str> = script
        .iter()
        .filter(|step| {
            let of = step.get("args").and_then(|args| args.get(0)?.get("iterator")?.as_str());
            of.is_some_and(|of| from_function.contains(of))
        })
        .filter_map(|step| step.get("id")?.as_str())
        .collect();
    with_log("PSV2-DS", case, inputs, |step, logged| {
        let of = step.get("value")?.get("remote")?.as_str()?;
        let mut numbers = logged.get("ok")?.as_array().filter(|_| drawn.contains(of))?.clone();
        let at = numbers.len().checked_sub(3)?;
        numbers[at] = json!(workers);
        Some(json!({"ok": numbers}))
    })
}

/// CC-1: a coordinator of another strategy fails in TensorFlow, and does not compile in this crate. The runner returns
/// an error in its place.
pub fn other_strategies_have_no_coordinator(_: &Case, inputs: &Inputs<'_>) -> Found {
    Ok((op(inputs) == "coordinator_for").then(|| Difference::error("CC-1", "NotImplementedError")))
}
