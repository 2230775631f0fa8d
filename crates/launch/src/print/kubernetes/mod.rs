//! Manifests for Kubernetes, and the parts that all of them share.
//!
//! | file | kind |
//! |---|---|
//! | `indexed_job` | an Indexed Job for each kind of task, and a Service |
//! | `job_set` | a `JobSet`, and a `TrainJob` of Kubeflow's Trainer, whose runtime contains a `JobSet` |
//! | `tf_job` | a `TFJob` of Kubeflow's training operator |

mod indexed_job;
mod job_set;
mod tf_job;

use super::yaml::Yaml;
use super::{Job, Target};
use crate::{Error, Job as Kind, Layout, Result};
use serde_json::{Map, json};

/// The port on which each task listens.
const PORT: u64 = 2222;

/// The maximum number of failed startup probes. With one probe every [`PERIOD`] seconds, tasks have 15 minutes to find
/// each other.
const STARTUP_PROBES: u64 = 90;

/// The id of the group that owns a volume. The image of examples/deploy uses the same group.
const GROUP: u64 = 65_532;

/// The interval of probes in seconds.
const PERIOD: u64 = 10;

/// Returns the manifest of a job for one of the Kubernetes targets, or an error if the target does not support a
/// setting of the job.
pub(super) fn manifest(job: &Job<'_>, target: Target) -> Result<String> {
    let refuse = |problem| Err(Error::Unprintable { target: target.name(), problem });
    if !job.layout.hosts.is_empty() {
        return refuse("Kubernetes chooses the machines; leave out --hosts");
    }
    Ok(match target {
        Target::TrainJob => job_set::train_job(job),
        Target::JobSet => job_set::job_set(job),
        Target::IndexedJob if job.layout.evaluator => {
            return refuse("a Job ends no other, so that the evaluator would stay; leave out --evaluator");
        }
        Target::IndexedJob => indexed_job::manifest(job),
        _ => tf_job::manifest(job),
    })
}

/// Returns the kinds of tasks of a layout, with the number of tasks of each.
fn kinds(layout: &Layout) -> Vec<(Kind, usize)> {
    let all = [
        (Kind::Chief, usize::from(layout.chief)),
        (Kind::Worker, layout.workers),
        (Kind::Ps, layout.ps),
        (Kind::Evaluator, usize::from(layout.evaluator)),
    ];
    all.into_iter().filter(|(_, tasks)| *tasks > 0).collect()
}

/// Returns the comments at the beginning of a manifest: `first`, a note if the job has no image, and the command that
/// creates the secret.
fn comments(job: &Job<'_>, first: &str) -> String {
    let name = job.name();
    let image = if job.image.is_none() {
        "\n# IMAGE is the image that has the program; --image sets it."
    } else {
        ""
    };
    format!(
        "# {first}{image}
# The secret by which the tasks authenticate has to exist before:
#   od -An -N32 -tx1 /dev/urandom | tr -d ' \\n' | kubectl create secret generic {name}-secret --from-file=secret=/dev/stdin
"
    )
}

/// Escapes `$`, so that Kubernetes does not expand `$(NAME)` in a word of the command.
fn escaped(word: &str) -> String {
    word.replace('$', "$$")
}

/// Returns an entry of a container's `env` list that sets a variable to a field of the pod.
fn from_field(name: &'static str, path: &str) -> Yaml {
    let field = Yaml::Map(vec![("fieldPath", Yaml::text(path))]);
    Yaml::Map(vec![("name", Yaml::text(name)), ("valueFrom", Yaml::Map(vec![("fieldRef", field)]))])
}

/// Returns an entry of a container's `env` list that sets a variable to `value`.
fn variable(name: &'static str, value: impl Into<String>) -> Yaml {
    Yaml::Map(vec![("name", Yaml::text(name)), ("value", Yaml::Text(value.into()))])
}

/// Returns the `env` list for the tasks of a kind: the variables in `before`, the index and the namespace of the pod,
/// and `TF_CONFIG`. `host` returns the host of a task, in which Kubernetes expands `$(NAMESPACE)` and the variables in
/// `before`.
fn cluster(
    job: &Job<'_>,
    kind: &Kind,
    before: Vec<Yaml>,
    host: impl Fn(&Kind, usize) -> String,
) -> Vec<Yaml> {
    let mut cluster = Map::new();
    for (kind, tasks) in kinds(job.layout).into_iter().filter(|(kind, _)| *kind != Kind::Evaluator) {
        let hosts = (0..tasks)
            .map(|task| json!(format!("{}.$(NAMESPACE).svc.cluster.local:{PORT}", host(&kind, task))));
        cluster.insert(kind.as_str().into(), hosts.collect());
    }
    // The index is a number only after Kubernetes has inserted it.
    let config = json!({"cluster": cluster, "task": {"type": kind.as_str(), "index": "INDEX"}});
    let config = config.to_string().replace("\"INDEX\"", "$(INDEX)");
    let mut all = before;
    all.push(from_field("INDEX", "metadata.annotations['batch.kubernetes.io/job-completion-index']"));
    all.push(from_field("NAMESPACE", "metadata.namespace"));
    all.push(variable("TF_CONFIG", config));
    all
}

/// Returns the container of a task. `name` is the name of the container, and `port` the name of the port on which the
/// task listens.
fn container(
    job: &Job<'_>,
    kind: &Kind,
    name: &'static str,
    port: &'static str,
    environment: Vec<Yaml>,
) -> Yaml {
    let port_of = |name: &'static str, number: u64| {
        Yaml::Map(vec![("name", Yaml::text(name)), ("containerPort", Yaml::Number(number))])
    };
    let mut ports = vec![port_of(port, PORT)];
    let mut env = environment;
    let health = job.health.filter(|_| job.layout.completes(kind));
    if let Some(health) = health {
        ports.push(port_of("health", health.into()));
        env.push(variable("DISTRIBUTE_HEALTH", format!("0.0.0.0:{health}")));
    }
    if job.layout.spares > 0 {
        env.push(variable("DISTRIBUTE_SPARES", job.layout.spares.to_string()));
    }
    let key = Yaml::Map(vec![
        ("name", Yaml::Text(format!("{}-secret", job.name()))),
        ("key", Yaml::text("secret")),
    ]);
    let from = Yaml::Map(vec![("secretKeyRef", key)]);
    env.push(Yaml::Map(vec![("name", Yaml::text("DISTRIBUTE_SECRET")), ("valueFrom", from)]));
    let mut fields = vec![
        ("name", Yaml::text(name)),
        ("image", Yaml::text(job.image.unwrap_or("IMAGE"))),
        ("command", Yaml::Words(job.command.iter().map(|word| escaped(word)).collect())),
        ("ports", Yaml::List(ports)),
        ("env", Yaml::List(env)),
    ];
    fields.extend(resources(job));
    if let Some((_, folder)) = job.volume {
        let mount = Yaml::Map(vec![("name", Yaml::text("volume")), ("mountPath", Yaml::text(folder))]);
        fields.push(("volumeMounts", Yaml::List(vec![mount])));
    }
    if health.is_some() {
        fields.push(("startupProbe", probe("/healthz", STARTUP_PROBES)));
        fields.push(("livenessProbe", probe("/healthz", 6)));
        fields.push(("readinessProbe", probe("/readyz", 1)));
    }
    Yaml::Map(fields)
}

/// Returns the resources of a task, if any are requested. The limit on memory equals the request; there is no limit on
/// processors.
fn resources(job: &Job<'_>) -> Option<(&'static str, Yaml)> {
    let cpus = job.cpus.map(|cpus| ("cpu", Yaml::Text(cpus.to_string())));
    let memory = || job.memory.map(|memory| ("memory", Yaml::text(memory)));
    let gpus = job.gpus.map(|gpus| ("nvidia.com/gpu", Yaml::Text(gpus.to_string())));
    let requests: Vec<_> = cpus.into_iter().chain(memory()).collect();
    let limits: Vec<_> = memory().into_iter().chain(gpus).collect();
    let both = [("requests", requests), ("limits", limits)];
    let given: Vec<_> =
        both.into_iter().filter(|(_, of)| !of.is_empty()).map(|(name, of)| (name, Yaml::Map(of))).collect();
    (!given.is_empty()).then_some(("resources", Yaml::Map(given)))
}

/// Returns a probe that requests `path` from the health port. It fails after `failures` failed requests in a row.
fn probe(path: &'static str, failures: u64) -> Yaml {
    let request = Yaml::Map(vec![("path", Yaml::text(path)), ("port", Yaml::text("health"))]);
    Yaml::Map(vec![
        ("httpGet", request),
        ("periodSeconds", Yaml::Number(PERIOD)),
        ("timeoutSeconds", Yaml::Number(5)),
        ("failureThreshold", Yaml::Number(failures)),
    ])
}

/// Returns the fields of a Job for the tasks of a kind. Each task is restarted separately, evictions do not count as
/// failures, and a task that fails permanently ends the Job.
fn job_spec(job: &Job<'_>, tasks: usize, template: Yaml) -> Yaml {
    let tasks = tasks as u64;
    let mut fields = vec![
        ("completionMode", Yaml::text("Indexed")),
        ("completions", Yaml::Number(tasks)),
        ("parallelism", Yaml::Number(tasks)),
        ("backoffLimitPerIndex", Yaml::Number(job.max_restarts.into())),
        ("maxFailedIndexes", Yaml::Number(0)),
        ("podReplacementPolicy", Yaml::text("Failed")),
    ];
    if let Some(timeout) = job.timeout {
        fields.push(("activeDeadlineSeconds", seconds(timeout)));
    }
    let evicted = Yaml::Map(vec![("type", Yaml::text("DisruptionTarget")), ("status", Yaml::text("True"))]);
    let rule =
        Yaml::Map(vec![("action", Yaml::text("Ignore")), ("onPodConditions", Yaml::List(vec![evicted]))]);
    fields.push(("podFailurePolicy", Yaml::Map(vec![("rules", Yaml::List(vec![rule]))])));
    fields.push(("template", template));
    Yaml::Map(fields)
}

/// Returns the fields of a pod with one container.
fn pod(job: &Job<'_>, container: Yaml) -> Vec<(&'static str, Yaml)> {
    let mut fields = vec![
        ("terminationGracePeriodSeconds", seconds(job.grace)),
        ("containers", Yaml::List(vec![container])),
    ];
    if let Some((claim, _)) = job.volume {
        let claim = Yaml::Map(vec![("claimName", Yaml::text(claim))]);
        let volume = Yaml::Map(vec![("name", Yaml::text("volume")), ("persistentVolumeClaim", claim)]);
        fields.push(("volumes", Yaml::List(vec![volume])));
        // A program that is not root may write to it.
        fields.push(("securityContext", Yaml::Map(vec![("fsGroup", Yaml::Number(GROUP))])));
    }
    fields
}

/// Returns the number of seconds, rounded up.
fn seconds(time: std::time::Duration) -> Yaml {
    Yaml::Number(time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)))
}

/// Returns the metadata of an object, which is only its name.
fn named(name: impl Into<String>) -> Yaml {
    Yaml::Map(vec![("name", Yaml::Text(name.into()))])
}
