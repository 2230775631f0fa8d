//! The manifest for Kubeflow's training operator, which sets `TF_CONFIG`.

use super::super::Job;
use super::super::yaml::Yaml;
use super::{comments, container, kinds, named, pod, seconds};
use crate::Job as Kind;

/// Returns the manifest of a `TFJob`.
pub(super) fn manifest(job: &Job<'_>) -> String {
    let restart = if job.max_restarts > 0 { "OnFailure" } else { "Never" };
    let mut policy = vec![
        ("cleanPodPolicy", Yaml::text("Running")),
        ("backoffLimit", Yaml::Number(job.max_restarts.into())),
    ];
    if let Some(timeout) = job.timeout {
        policy.push(("activeDeadlineSeconds", seconds(timeout)));
    }
    let replicas = kinds(job.layout).into_iter().map(|(kind, tasks)| {
        // The operator looks for these names.
        let container = container(job, &kind, "tensorflow", "tfjob-port", Vec::new());
        let fields = vec![
            ("replicas", Yaml::Number(tasks as u64)),
            ("restartPolicy", Yaml::text(restart)),
            ("template", Yaml::Map(vec![("spec", Yaml::Map(pod(job, container)))])),
        ];
        (name(&kind), Yaml::Map(fields))
    });
    let manifest = Yaml::Map(vec![
        ("apiVersion", Yaml::text("kubeflow.org/v1")),
        ("kind", Yaml::text("TFJob")),
        ("metadata", named(job.name())),
        (
            "spec",
            Yaml::Map(vec![
                ("successPolicy", Yaml::text("AllWorkers")),
                ("runPolicy", Yaml::Map(policy)),
                ("tfReplicaSpecs", Yaml::Map(replicas.collect())),
            ]),
        ),
    ]);
    let first = "Kubeflow's training operator (v1) starts the tasks, gives them addresses and sets TF_CONFIG.
# Where it is not installed: --print trainjob (Kubeflow's Trainer), jobset, or job, which needs no operator.";
    comments(job, first) + &manifest.document()
}

/// Returns the name that the operator has for a kind of task.
fn name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Chief => "Chief",
        Kind::Ps => "PS",
        Kind::Evaluator => "Evaluator",
        _ => "Worker",
    }
}
