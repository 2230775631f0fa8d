//! The manifest for Kubernetes without an operator: an Indexed Job for each kind of task, and a Service that gives the
//! pods names.

use super::super::Job;
use super::super::yaml::Yaml;
use super::{PORT, cluster, comments, container, job_spec, kinds, named, pod};

/// The label by which the Service finds the pods.
const LABEL: &str = "app.kubernetes.io/instance";

/// Returns the manifests of a Service and of the Jobs.
pub(super) fn manifest(job: &Job<'_>) -> String {
    let name = job.name();
    let labels = || Yaml::Map(vec![(LABEL, Yaml::Text(name.clone()))]);
    let port = Yaml::Map(vec![("name", Yaml::text("tasks")), ("port", Yaml::Number(PORT))]);
    let service = Yaml::Map(vec![
        ("apiVersion", Yaml::text("v1")),
        ("kind", Yaml::text("Service")),
        ("metadata", named(name.clone())),
        (
            "spec",
            Yaml::Map(vec![
                (
                    "clusterIP",
                    Yaml::Plain("None # the pods have names: JOB-INDEX.SERVICE.NAMESPACE.svc.cluster.local"),
                ),
                // Tasks are ready only after they have found each other.
                ("publishNotReadyAddresses", Yaml::Plain("true")),
                ("selector", labels()),
                ("ports", Yaml::List(vec![port])),
            ]),
        ),
    ]);
    let first =
        "Kubernetes starts the tasks, without an operator. `kubectl delete -f` asks all of them to exit.";
    let mut text = comments(job, first) + &service.document();
    for (kind, tasks) in kinds(job.layout) {
        let env = cluster(job, &kind, Vec::new(), |kind, task| format!("{name}-{kind}-{task}.{name}"));
        let mut spec = vec![("subdomain", Yaml::Text(name.clone())), ("restartPolicy", Yaml::text("Never"))];
        spec.extend(pod(job, container(job, &kind, "train", "tasks", env)));
        let template =
            Yaml::Map(vec![("metadata", Yaml::Map(vec![("labels", labels())])), ("spec", Yaml::Map(spec))]);
        let manifest = Yaml::Map(vec![
            ("apiVersion", Yaml::text("batch/v1")),
            ("kind", Yaml::text("Job")),
            ("metadata", named(format!("{name}-{kind}"))),
            ("spec", job_spec(job, tasks, template)),
        ]);
        text += "---\n";
        text += &manifest.document();
    }
    text
}
