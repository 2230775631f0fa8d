//! Deliberate differences from TensorFlow's clusters and resolvers. See `differences.rs`.

use super::case::{Case, Inputs};
use super::differences::{Difference, Found, op, outcome};
use distribute::cluster::resolver::{expand_hostlist, expand_tasks_per_node};
use serde_json::{Map, Value, json};

/// Returns the outcome of a property that fails with TensorFlow's class for bad arguments.
fn refused() -> Value {
    json!({"error": {"type": "ValueError"}})
}

/// Returns whether a value is a text of the form `host:port`.
fn is_address(value: &Value) -> bool {
    let parts = value.as_str().and_then(|text| text.rsplit_once(':'));
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// Returns whether a value maps jobs to lists of addresses, or to maps from task numbers to addresses.
fn is_cluster(value: &Value) -> bool {
    let number = |key: &String| key.parse::<u64>().is_ok_and(|number| number < 65_536);
    let tasks = |tasks: &Value| match tasks {
        Value::Array(list) => list.iter().all(is_address),
        Value::Object(map) => map.iter().all(|(key, address)| number(key) && is_address(address)),
        _ => false,
    };
    value.as_object().is_some_and(|jobs| jobs.values().all(tasks))
}

/// Returns whether a text is valid as a TF_CONFIG in all its parts.
fn is_tf_config(text: &str) -> bool {
    let Ok(Value::Object(config)) = serde_json::from_str(text) else { return false };
    let absent_or =
        |object: &Map<String, Value>, key: &str, right: fn(&Value) -> bool| object.get(key).is_none_or(right);
    let index = |value: &Value| {
        value.is_u64() || value.as_str().is_some_and(|text| text.trim().parse::<u64>().is_ok())
    };
    let task = |task: &Value| {
        task.as_object().is_some_and(|task| {
            task.get("type").is_none_or(Value::is_string) && task.get("index").is_none_or(index)
        })
    };
    absent_or(&config, "cluster", is_cluster)
        && config.get("task").is_none_or(task)
        && absent_or(&config, "rpc_layer", Value::is_string)
        && absent_or(&config, "session_master", Value::is_string)
}

/// TFC-6: TensorFlow parses TF_CONFIG again for each property, so that one may fail and another not. This crate parses
/// and checks it once, and returns a valid resolver or an error. TFC-2: values that TensorFlow converts to a number or
/// a text (1.5, true, a list for an object) are also refused.
pub fn tf_config_is_checked_completely(case: &Case, inputs: &Inputs<'_>) -> Found {
    let Some(outcome) = outcome(case) else { return Ok(None) };
    let text = inputs.optional("TF_CONFIG").and_then(Value::as_str);
    if op(inputs) != "tfconfig" || text.is_none_or(is_tf_config) {
        return Ok(None);
    }
    let all = |value: &Value| match value {
        Value::Array(calls) => vec![refused(); calls.len()].into(),
        _ => refused(),
    };
    let fails =
        outcome.values().flat_map(|value| value.as_array().map_or(vec![value], |all| all.iter().collect()));
    let rule = if fails.into_iter().any(|value| value.get("error").is_some()) { "TFC-6" } else { "TFC-2" };
    let ours: Map<String, Value> = outcome.iter().map(|(name, value)| (name.clone(), all(value))).collect();
    Ok(Some(Difference::outcome(rule, ours.into())))
}

/// CL-1: TensorFlow accepts any text as an address, and notices mistakes when it connects. This crate accepts only
/// `host:port`.
pub fn addresses_are_host_and_port(case: &Case, inputs: &Inputs<'_>) -> Found {
    if outcome(case).is_none() {
        return Ok(None);
    }
    let clusters: Vec<&Value> = match op(inputs) {
        "cluster_spec" | "multi_worker_util" => vec![inputs.get("cluster")?],
        "simple" => vec![inputs.object("ctor")?.get("cluster")?],
        "union" => inputs.list("members")?.iter().filter_map(|member| member.get("cluster")).collect(),
        _ => return Ok(None),
    };
    let wrong = !clusters.into_iter().all(is_cluster);
    Ok(wrong.then(|| Difference::error("CL-1", "ValueError")))
}

/// RES-2: TensorFlow ignores overrides of 0 and of an empty text. This crate applies them.
pub fn empty_overrides_count(case: &Case, inputs: &Inputs<'_>) -> Found {
    let (Some(outcome), "union") = (outcome(case), op(inputs)) else { return Ok(None) };
    let mut ours = outcome.clone();
    let given = inputs.object("kwargs")?;
    for name in ["task_type", "task_id", "rpc_layer"] {
        if let Some(value) = given.optional(name) {
            ours.insert(name.into(), json!({"ok": value}));
        }
    }
    Ok((ours != *outcome).then(|| Difference::outcome("RES-2", ours.into())))
}

/// The tasks of a Slurm job step in the order of ranks, computed independently of the library.
struct Step {
    /// The location of each rank: its host, and its index among the host's tasks.
    places: Vec<(String, usize)>,
    /// The task of each rank.
    tasks: Vec<(String, usize)>,
    rank: usize,
    port_base: u64,
    layer: String,
    gpus_per_node: u64,
    gpus_per_task: Option<u64>,
    /// Whether the hosts are sorted by name.
    sorted: bool,
    most: usize,
}

impl Step {
    fn of(inputs: &Inputs<'_>) -> Result<Self, String> {
        let (env, ctor) = (inputs.object("env")?, inputs.object("ctor")?);
        let number =
            |name: &str, default: u64| ctor.optional(name).and_then(Value::as_u64).unwrap_or(default);
        let hosts = || expand_hostlist(env.text("SLURM_STEP_NODELIST")?).map_err(|e| e.to_string());
        let nodes: Vec<(String, usize)> = match ctor.optional("tasks_per_node") {
            Some(Value::Object(nodes)) => {
                nodes.iter().map(|(host, n)| (host.clone(), n.as_u64().unwrap_or(0) as usize)).collect()
            }
            Some(each) => {
                hosts()?.into_iter().map(|host| (host, each.as_u64().unwrap_or(0) as usize)).collect()
            }
            None => {
                let tasks = expand_tasks_per_node(env.text("SLURM_STEP_TASKS_PER_NODE")?);
                hosts()?.into_iter().zip(tasks.map_err(|e| e.to_string())?).collect()
            }
        };
        let places: Vec<_> =
            nodes.iter().flat_map(|(host, n)| (0..*n).map(move |local| (host.clone(), local))).collect();
        let tasks = match ctor.optional("jobs").and_then(Value::as_object) {
            Some(jobs) => jobs
                .iter()
                .flat_map(|(job, n)| {
                    (0..n.as_u64().unwrap_or(0) as usize).map(move |index| (job.clone(), index))
                })
                .collect(),
            None => (0..places.len()).map(|index| ("worker".to_string(), index)).collect(),
        };
        Ok(Self {
            sorted: nodes.is_sorted(),
            most: nodes.iter().map(|(_, n)| *n).max().unwrap_or(0),
            places,
            tasks,
            rank: env.text("SLURM_PROCID")?.parse().map_err(|_| "SLURM_PROCID is no number")?,
            port_base: number("port_base", 8888),
            layer: ctor.optional("rpc_layer").and_then(Value::as_str).unwrap_or("grpc").to_string(),
            gpus_per_node: number("gpus_per_node", 0),
            gpus_per_task: ctor.optional("gpus_per_task").and_then(Value::as_u64),
        })
    }

    fn address(&self, rank: usize) -> String {
        let (host, local) = &self.places[rank];
        format!("{host}:{}", self.port_base + *local as u64)
    }

    fn url(&self, rank: usize, layer: &str) -> Value {
        let address = self.address(rank);
        json!({"ok": if layer.is_empty() { address } else { format!("{layer}://{address}") }})
    }

    fn cluster(&self) -> Value {
        let mut jobs = Map::new();
        for (rank, (job, _)) in self.tasks.iter().enumerate() {
            let addresses = jobs.entry(job.clone()).or_insert_with(|| json!([]));
            addresses.as_array_mut().into_iter().for_each(|list| list.push(self.address(rank).into()));
        }
        json!({"ok": jobs})
    }

    /// Returns `master(job, index[, layer])`.
    fn master(&self, call: &Value) -> Value {
        let rank = self.tasks.iter().position(|(job, index)| call[0] == **job && call[1] == *index);
        let layer = call.get(2).and_then(Value::as_str).filter(|layer| !layer.is_empty());
        rank.map_or_else(refused, |rank| self.url(rank, layer.unwrap_or(&self.layer)))
    }
}

/// RES-3: TensorFlow sorts the nodes by name, whereas Slurm numbers ranks in the order of its list. TensorFlow also
/// does not know its own task before it is asked for the cluster, and cannot describe nodes without GPUs. This crate
/// follows Slurm's order, always knows its own task, and describes nodes without GPUs.
pub fn slurms_ranks_are_slurms(case: &Case, inputs: &Inputs<'_>) -> Found {
    let (Some(outcome), "slurm") = (outcome(case), op(inputs)) else { return Ok(None) };
    let step = Step::of(inputs)?;
    let mut ours = outcome.clone();
    let without_gpus = outcome.get("cluster_spec").is_some_and(|spec| spec.get("error").is_some());
    if without_gpus && step.gpus_per_node > 0 && step.gpus_per_task.is_none() {
        // There are fewer GPUs than tasks of a node, and no setting permits this.
        return Ok(Some(Difference::error("RES-3", "RuntimeError")));
    }
    let (job, index) = step.tasks.get(step.rank).ok_or("the rank is no task")?;
    if without_gpus || !step.sorted {
        let calls: Vec<Value> = inputs.list("master_calls")?.iter().map(|call| step.master(call)).collect();
        ours.insert("cluster_spec".into(), step.cluster());
        ours.insert("master".into(), step.url(step.rank, &step.layer));
        ours.insert("master_calls".into(), calls.into());
        ours.insert("task_info".into(), json!({"ok": [job, index]}));
        ours.insert("task_type".into(), json!(job));
        ours.insert("task_id".into(), json!(index));
        if let Some(devices) = ours.get_mut("cuda_visible_devices") {
            let each = step.gpus_per_task.unwrap_or(step.gpus_per_node / step.most.max(1) as u64);
            let first = step.places[step.rank].1 as u64 * each;
            let mine: Vec<String> = (first..first + each).map(|gpu| gpu.to_string()).collect();
            *devices = if mine.is_empty() { Value::Null } else { mine.join(",").into() };
        }
    }
    ours.insert("before".into(), json!({"task_type": job, "task_id": index}));
    Ok((ours != *outcome).then(|| Difference::outcome("RES-3", ours.into())))
}
