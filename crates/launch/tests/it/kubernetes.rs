//! The manifest of `--print k8s`, parsed with the types of Kubernetes' API.

use distribute_cluster::resolver::{ClusterResolver, TfConfigClusterResolver};
use distribute_launch::Layout;
use distribute_launch::print::{Job, Target};
use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use serde_json::{Value, json};

/// Returns the manifest of a job of these tasks.
fn manifest(layout: &Layout) -> Value {
    let command = ["/bin/train", "--note=\"a: b\"", "--rate", "0.1"].map(str::to_owned);
    let job = Job { layout, command: &command, timeout: None, max_restarts: 3, image: Some("me/train:1") };
    serde_saphyr::from_str(&job.print(Target::Kubernetes).unwrap()).unwrap()
}

/// Returns the only container of a kind of task. Fields that the types do not have, such as misspelt ones, are lost in
/// the round trip.
fn container(template: &Value) -> Container {
    let typed: PodTemplateSpec = serde_json::from_value(template.clone()).unwrap();
    assert_eq!(serde_json::to_value(&typed).unwrap(), *template);
    let mut pod = typed.spec.unwrap();
    assert_eq!(pod.containers.len(), 1);
    pod.containers.remove(0)
}

#[test]
fn its_pods_are_those_of_kubernetes() {
    let manifest = manifest(&Layout::new(2).chief(true).ps(1).evaluator(true));
    assert_eq!(manifest["apiVersion"], "kubeflow.org/v1");
    let kinds = manifest["spec"]["tfReplicaSpecs"].as_object().unwrap();
    assert_eq!(kinds.len(), 4);
    for (kind, tasks) in kinds {
        assert_eq!(tasks["restartPolicy"], "OnFailure", "{kind}");
        let container = container(&tasks["template"]);
        assert_eq!(container.name, "tensorflow", "{kind}: the operator looks for this name");
        assert_eq!(container.image.as_deref(), Some("me/train:1"));
        assert_eq!(container.command.unwrap(), ["/bin/train", "--note=\"a: b\"", "--rate", "0.1"]);
        assert_eq!(container.ports.unwrap()[0].container_port, 2222);
        let secret = container.env.unwrap().remove(0);
        assert_eq!(secret.name, "DISTRIBUTE_SECRET");
        let from = secret.value_from.unwrap().secret_key_ref.unwrap();
        assert_eq!((from.name.as_str(), from.key.as_str()), ("train-secret", "secret"));
    }
}

// TFC-1
#[test]
fn the_tf_config_of_its_operator_is_the_cluster_that_was_asked_for() {
    let manifest = manifest(&Layout::new(2).chief(true));
    let name = manifest["metadata"]["name"].as_str().unwrap();
    let kinds = manifest["spec"]["tfReplicaSpecs"].as_object().unwrap();
    // As the training operator writes it: a service for each task, at the port of the container.
    let addresses = |kind: &str, count: u64| -> Vec<String> {
        (0..count).map(|task| format!("{name}-{kind}-{task}.default.svc:2222")).collect()
    };
    let cluster = kinds.iter().map(|(kind, tasks)| {
        let kind = kind.to_lowercase();
        let all = addresses(&kind, tasks["replicas"].as_u64().unwrap());
        (kind, json!(all))
    });
    let cluster: serde_json::Map<_, _> = cluster.collect();
    let config = json!({"cluster": cluster, "task": {"type": "worker", "index": 1}, "environment": "cloud"});
    let resolver = TfConfigClusterResolver::new(config.to_string().parse().unwrap());
    let (spec, task) = resolver.membership().unwrap().unwrap();
    assert_eq!(task.to_string(), "worker 1");
    let workers: Vec<_> = spec.workers().iter().map(|(task, at)| format!("{task} {at}")).collect();
    assert_eq!(
        workers,
        [
            format!("chief 0 {name}-chief-0.default.svc:2222"),
            format!("worker 0 {name}-worker-0.default.svc:2222"),
            format!("worker 1 {name}-worker-1.default.svc:2222"),
        ]
    );
}
