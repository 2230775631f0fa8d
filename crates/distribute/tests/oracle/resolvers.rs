//! Cases of cluster specs, and of resolvers that read environment variables and arguments.

use super::case::{Case, Inputs, Ran, Stop};
use super::errors::{Kind, raise};
use distribute::cluster::resolver::{
    Accelerators, ClusterResolver, Overrides, SimpleClusterResolver, SlurmClusterResolver, SlurmOptions,
    TasksPerNode, TfConfigClusterResolver, UnionResolver, expand_hostlist, expand_tasks_per_node,
};
use distribute::cluster::{ClusterError, ClusterSpec, Job, TF_CONFIG, Task};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

impl From<ClusterError> for Stop {
    fn from(error: ClusterError) -> Self {
        Stop::Library(error.into())
    }
}

/// Runs the cases of resolvers.json.
pub fn oracle_resolvers(_: &Case, inputs: &Inputs<'_>) -> Ran {
    match inputs.text("op")? {
        "tfconfig" => tf_config(inputs),
        "cluster_spec" => questions(&spec(inputs)?),
        "simple" => {
            let given = inputs.object("ctor")?;
            let resolver = simple(&given)?;
            given.finish()?;
            with_accelerators(&resolver, inputs)
        }
        "union" => union(inputs),
        "expand_hostlist" => Ok(json!({"hosts": expand_hostlist(inputs.text("text")?)?})),
        "expand_tasks_per_node" => Ok(json!({"tasks": expand_tasks_per_node(inputs.text("text")?)?})),
        "slurm" => slurm(inputs),
        "multi_worker_util" => roles(inputs),
        other => Err(format!("unknown op {other:?}").into()),
    }
}

fn tf_config(inputs: &Inputs<'_>) -> Ran {
    let mut environment = BTreeMap::new();
    if !inputs.get("TF_CONFIG")?.is_null() {
        environment.insert(TF_CONFIG.to_string(), inputs.text("TF_CONFIG")?.to_string());
    }
    let given = inputs.object("ctor")?;
    let own = overrides(&given)?;
    given.finish()?;
    match TfConfigClusterResolver::from_environment(&environment) {
        Ok(resolver) => Ok(properties(&resolver.with_overrides(own), inputs)?.into()),
        // There is no resolver: whatever it is asked for ends in this error.
        Err(error) => {
            let no_resolver = |_: &Value| property::<()>(Err(error.clone()));
            let names = ["cluster_spec", "task_type", "task_id", "rpc_layer", "environment", "master"];
            let mut all: Map<String, Value> =
                names.iter().map(|name| ((*name).to_string(), no_resolver(&Value::Null))).collect();
            let calls: Vec<Value> = inputs.list("master_calls")?.iter().map(no_resolver).collect();
            all.insert("master_calls".into(), calls.into());
            Ok(all.into())
        }
    }
}

/// Returns the outcome of a property: `{"ok": value}` or `{"error": {"type": …}}`.
fn property<T: serde::Serialize>(outcome: Result<T, ClusterError>) -> Value {
    match outcome {
        Ok(value) => json!({"ok": value}),
        Err(error) => {
            let kind = Kind::of_cluster(&error);
            json!({"error": {"type": kind.as_ref().map_or("none that TensorFlow has", Kind::class)}})
        }
    }
}

/// Returns the outcomes of all properties of a resolver.
fn properties(resolver: &dyn ClusterResolver, inputs: &Inputs<'_>) -> Result<Map<String, Value>, Stop> {
    let mut calls = Vec::new();
    for call in inputs.list("master_calls")? {
        let (task, layer) = match call.as_array().map(Vec::as_slice) {
            Some([task, id]) => (read_task(task, id)?, None),
            Some([task, id, layer]) => {
                (read_task(task, id)?, Some(layer.as_str().ok_or("a layer is no text")?))
            }
            _ => return Err(format!("{call} is no call of master").into()),
        };
        calls.push(property(resolver.master_of(Some(&task), layer)));
    }
    let all = json!({
        "cluster_spec": property(resolver.cluster_spec()),
        "task_type": {"ok": resolver.task_type()},
        "task_id": {"ok": resolver.task_id()},
        "rpc_layer": {"ok": resolver.rpc_layer()},
        "environment": {"ok": resolver.environment()},
        "master": property(resolver.master()),
        "master_calls": calls,
    });
    all.as_object().cloned().ok_or_else(|| Stop::Runner("no object".into()))
}

fn with_accelerators(resolver: &dyn ClusterResolver, inputs: &Inputs<'_>) -> Ran {
    let mut all = properties(resolver, inputs)?;
    all.insert("num_accelerators".into(), json!({"ok": resolver.num_accelerators()}));
    Ok(all.into())
}

fn read_task(job: &Value, id: &Value) -> Result<Task, String> {
    let job = job.as_str().ok_or_else(|| format!("{job} is no job"))?;
    let id = id.as_u64().ok_or_else(|| format!("{id} is not the number of a task"))?;
    Ok(Task::new(job, id as usize))
}

fn spec(inputs: &Inputs<'_>) -> Result<ClusterSpec, Stop> {
    Ok(ClusterSpec::try_from(inputs.get("cluster")?.clone())?)
}

/// Reads a text from a field that may be missing.
fn text<'a>(inputs: &Inputs<'a>, name: &str) -> Result<Option<&'a str>, String> {
    inputs.optional(name).map(|_| inputs.text(name)).transpose()
}

/// Reads a number from a field that may be missing.
fn count(inputs: &Inputs<'_>, name: &str) -> Result<Option<usize>, String> {
    inputs.optional(name).map(|_| inputs.count(name)).transpose()
}

/// Reads an object that maps names to numbers.
fn counts<K: Ord + for<'a> From<&'a str>>(value: &Value) -> Result<BTreeMap<K, usize>, String> {
    let object = value.as_object().ok_or_else(|| format!("{value} is no object"))?;
    let number = |(name, count): (&String, &Value)| {
        let count = count.as_u64().ok_or_else(|| format!("{count} is no number"))?;
        Ok((K::from(name.as_str()), count as usize))
    };
    object.iter().map(number).collect()
}

fn overrides(given: &Inputs<'_>) -> Result<Overrides, String> {
    Ok(Overrides {
        task_type: text(given, "task_type")?.map(Job::from),
        task_id: count(given, "task_id")?,
        rpc_layer: text(given, "rpc_layer")?.map(String::from),
        environment: text(given, "environment")?.map(String::from),
    })
}

fn simple(given: &Inputs<'_>) -> Result<SimpleClusterResolver, Stop> {
    let accelerators: Accelerators =
        given.optional("num_accelerators").map(counts).transpose()?.unwrap_or_default();
    let master = text(given, "master")?.unwrap_or_default();
    let resolver = SimpleClusterResolver::new(spec(given)?).with_overrides(overrides(given)?);
    Ok(resolver.with_master(master).with_accelerators(accelerators))
}

fn union(inputs: &Inputs<'_>) -> Ran {
    let mut members: Vec<Arc<dyn ClusterResolver>> = Vec::new();
    for member in inputs.list("members")? {
        let given = Inputs::new(member.as_object().ok_or("a member is no object")?);
        members.push(Arc::new(simple(&given)?));
        given.finish()?;
    }
    let given = inputs.object("kwargs")?;
    let own = overrides(&given)?;
    inputs.ignore("master_calls");
    if given.finish().is_err() {
        // A field that `Overrides` has not: such a program does not compile.
        return Err(Stop::Library(raise("ValueError")));
    }
    with_accelerators(&UnionResolver::new(members)?.with_overrides(own), inputs)
}

fn slurm(inputs: &Inputs<'_>) -> Ran {
    let environment = inputs.get("env")?.as_object().ok_or("env is no object")?;
    let variable = |(name, value): (&String, &Value)| {
        Ok((name.clone(), value.as_str().ok_or_else(|| format!("{value} is no text"))?.to_string()))
    };
    let environment = environment.iter().map(variable).collect::<Result<BTreeMap<_, _>, String>>()?;
    let given = inputs.object("ctor")?;
    let ours = SlurmOptions::default();
    let options = SlurmOptions {
        jobs: given.optional("jobs").map(counts).transpose()?,
        port_base: count(&given, "port_base")?
            .map(u16::try_from)
            .transpose()
            .map_err(|_| "port_base is no port")?,
        gpus_per_node: count(&given, "gpus_per_node")?,
        gpus_per_task: count(&given, "gpus_per_task")?,
        tasks_per_node: match given.optional("tasks_per_node") {
            None => None,
            Some(nodes) if nodes.is_object() => {
                Some(TasksPerNode::Nodes(counts::<String>(nodes)?.into_iter().collect()))
            }
            Some(_) => Some(TasksPerNode::Each(given.count("tasks_per_node")?)),
        },
        rpc_layer: text(&given, "rpc_layer")?.map(String::from).or(ours.rpc_layer),
    };
    let sets_devices = given.optional("auto_set_gpu").is_none_or(|auto| auto == &json!(true));
    given.finish()?;
    inputs.ignore("master_calls");
    let resolver = SlurmClusterResolver::from_environment(options, &environment)?;
    // The constructor knows all: there is no before and after.
    let (job, id) = (resolver.task_type(), resolver.task_id());
    let mut all = properties(&resolver, inputs)?;
    all.insert("before".into(), json!({"task_type": job, "task_id": id}));
    all.insert("task_info".into(), json!({"ok": [job, id]}));
    for name in ["task_type", "task_id", "rpc_layer"] {
        let bare = all[name]["ok"].clone();
        all.insert(name.into(), bare);
    }
    all.insert("num_accelerators".into(), json!(resolver.num_accelerators()));
    if sets_devices {
        all.insert("cuda_visible_devices".into(), json!(resolver.visible_devices()));
    }
    Ok(all.into())
}

/// Returns the properties of each job of a cluster spec, and of one that does not exist.
fn questions(spec: &ClusterSpec) -> Ran {
    let nope = Job::from("nope");
    let of = |job: &Job| {
        let address = |index| property(spec.task_address(job, index));
        json!({
            "num_tasks": property(spec.num_tasks(job)),
            "task_indices": property(spec.task_indices(job)),
            "job_tasks": property(spec.job_tasks(job)),
            "address_0": address(0),
            "address_1": address(1),
            "address_9": address(9),
        })
    };
    let per_job: Map<String, Value> =
        spec.jobs().chain([&nope]).map(|job| (job.to_string(), of(job))).collect();
    Ok(json!({
        "as_dict": spec,
        "jobs": spec.jobs().collect::<Vec<_>>(),
        "bool": !spec.is_empty(),
        "per_job": per_job,
    }))
}

/// Returns the roles of a task in its cluster, such as whether it is the chief.
fn roles(inputs: &Inputs<'_>) -> Ran {
    let (spec, task) = (spec(inputs)?, read_task(inputs.get("task_type")?, inputs.get("task_id")?)?);
    let device = |task: Option<Task>| task.map_or(String::new(), |task| task.device_name());
    Ok(json!({
        "is_chief": property(spec.is_chief(&task)),
        "worker_count": property(spec.worker_count(&task.job)),
        "id_in_cluster": property(spec.id_in_cluster(&task)),
        "collective_leader": property(spec.collective_leader(&task).map(device)),
        "coordination_leader": {"ok": device(spec.coordination_leader())},
    }))
}
