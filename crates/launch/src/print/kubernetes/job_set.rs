//! The manifests of a `JobSet`, and of a `TrainJob` of Kubeflow's Trainer with its runtime, which contains a `JobSet`.

use super::super::Job;
use super::super::yaml::Yaml;
use super::{cluster, comments, container, from_field, job_spec, kinds, named, pod};
use crate::Job as Kind;

/// The API of Kubeflow's Trainer.
const TRAINER: &str = "trainer.kubeflow.org";

/// Returns the manifest of a `JobSet`.
pub(super) fn job_set(job: &Job<'_>) -> String {
    let manifest = Yaml::Map(vec![
        ("apiVersion", Yaml::text("jobset.x-k8s.io/v1alpha2")),
        ("kind", Yaml::text("JobSet")),
        ("metadata", named(job.name())),
        ("spec", spec(job, false)),
    ]);
    comments(job, "JobSet starts the tasks, gives them addresses and ends them together.")
        + &manifest.document()
}

/// Returns the manifests of a `TrainJob` and of its runtime.
pub(super) fn train_job(job: &Job<'_>) -> String {
    let mut fields = Vec::new();
    if job.layout.workers > 0 {
        fields.push(("mlPolicy", Yaml::Map(vec![("numNodes", Yaml::Number(job.layout.workers as u64))])));
    }
    fields.push(("template", Yaml::Map(vec![("spec", spec(job, true))])));
    let runtime = Yaml::Map(vec![
        ("apiVersion", Yaml::Text(format!("{TRAINER}/v1alpha1"))),
        ("kind", Yaml::text("TrainingRuntime")),
        ("metadata", named(job.name())),
        ("spec", Yaml::Map(fields)),
    ]);
    let reference = Yaml::Map(vec![
        ("apiGroup", Yaml::text(TRAINER)),
        ("kind", Yaml::text("TrainingRuntime")),
        ("name", Yaml::Text(job.name())),
    ]);
    let train_job = Yaml::Map(vec![
        ("apiVersion", Yaml::Text(format!("{TRAINER}/v1alpha1"))),
        ("kind", Yaml::text("TrainJob")),
        ("metadata", named(job.name())),
        ("spec", Yaml::Map(vec![("runtimeRef", reference)])),
    ]);
    let first =
        "Kubeflow's Trainer (v2) starts the tasks as a JobSet. Other TrainJobs may use the same runtime.";
    format!("{}{}---\n{}", comments(job, first), runtime.document(), train_job.document())
}

/// Returns the specification of a `JobSet`: a Job for each kind of task. In a runtime, the workers are the nodes of the
/// `TrainJob`.
fn spec(job: &Job<'_>, is_runtime: bool) -> Yaml {
    // The controller names pods by the JobSet, which has the name of the TrainJob.
    let label = "metadata.labels['jobset.sigs.k8s.io/jobset-name']";
    let host = |kind: &Kind, task| format!("$(JOBSET)-{kind}-0-{task}.$(JOBSET)");
    let kinds = kinds(job.layout);
    let jobs = kinds.iter().map(|(kind, tasks)| {
        let is_node = is_runtime && *kind == Kind::Worker;
        let env = cluster(job, kind, vec![from_field("JOBSET", label)], host);
        let container = container(job, kind, if is_node { "node" } else { "train" }, "tasks", env);
        let mut pod_spec = vec![("restartPolicy", Yaml::text("Never"))];
        pod_spec.extend(pod(job, container));
        let template = Yaml::Map(vec![("spec", Yaml::Map(pod_spec))]);
        let mut fields = Vec::new();
        if is_node {
            let labels =
                Yaml::Map(vec![("trainer.kubeflow.org/trainjob-ancestor-step", Yaml::text("trainer"))]);
            fields.push(("metadata", Yaml::Map(vec![("labels", labels)])));
        }
        fields.push(("spec", job_spec(job, *tasks, template)));
        Yaml::Map(vec![
            ("name", Yaml::text(kind.as_str())),
            ("replicas", Yaml::Number(1)),
            ("template", Yaml::Map(fields)),
        ])
    });
    let jobs = jobs.collect();
    // The others are deleted when these have completed.
    let awaited = kinds.iter().filter(|(kind, _)| job.layout.completes(kind));
    let awaited = awaited.map(|(kind, _)| Yaml::text(kind.as_str())).collect();
    let success =
        Yaml::Map(vec![("operator", Yaml::text("All")), ("targetReplicatedJobs", Yaml::List(awaited))]);
    Yaml::Map(vec![("successPolicy", success), ("replicatedJobs", Yaml::List(jobs))])
}
