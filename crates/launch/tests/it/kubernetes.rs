//! The manifests for Kubernetes, validated with the schemas of their kinds, and read as Kubernetes reads them.

use super::schema::{problems, round_trip};
use distribute_cluster::TfConfig;
use distribute_cluster::resolver::{ClusterResolver, TfConfigClusterResolver};
use distribute_launch::Layout;
use distribute_launch::print::{Job, Target};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, Service};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// The command: words that YAML reads as something else, and that Kubernetes would expand.
const COMMAND: [&str; 13] = [
    "/bin/train",
    "--note=\"a: b\"",
    "0.1",
    "true",
    "null",
    "on",
    "1e3",
    "",
    "~",
    "$(INDEX)",
    "$$HOME",
    "a\u{2028}b\u{7f}",
    "'#",
];

const TARGETS: [Target; 4] = [Target::Kubernetes, Target::JobSet, Target::TrainJob, Target::IndexedJob];

/// Returns the manifests of a job of these tasks.
fn manifests(target: Target, layout: &Layout) -> Vec<Value> {
    let command = COMMAND.map(str::to_owned);
    let job = Job {
        max_restarts: 3,
        image: Some("me/train:1"),
        timeout: Some(Duration::from_millis(59_500)),
        grace: Duration::from_secs(45),
        cpus: Some(4),
        gpus: Some(1),
        memory: Some("4Gi"),
        volume: Some(("results", "/checkpoints")),
        health: Some(6071),
        ..Job::new(layout, &command)
    };
    let text = job.print(target).unwrap();
    text.split("---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn all() -> Layout {
    Layout::new(2).with_chief().ps(1).with_evaluator()
}

/// Returns the pods of manifests, by the name of the kind of task in lower case, with their number.
fn pods(manifests: &[Value]) -> BTreeMap<String, (u64, Value)> {
    let mut pods = BTreeMap::new();
    let mut of_job = |name: &str, job: &Value| {
        let tasks = job["spec"]["completions"].as_u64().unwrap();
        pods.insert(name.to_owned(), (tasks, job["spec"]["template"].clone()));
    };
    let mut of_tf = BTreeMap::new();
    for manifest in manifests {
        let jobs = match manifest["kind"].as_str().unwrap() {
            "JobSet" => &manifest["spec"]["replicatedJobs"],
            "TrainingRuntime" => &manifest["spec"]["template"]["spec"]["replicatedJobs"],
            _ => &Value::Null,
        };
        for job in jobs.as_array().into_iter().flatten() {
            of_job(job["name"].as_str().unwrap(), &job["template"]);
        }
        if manifest["kind"] == "Job" {
            let name = manifest["metadata"]["name"].as_str().unwrap();
            of_job(name.rsplit('-').next().unwrap(), manifest);
        }
        for (kind, tasks) in manifest["spec"]["tfReplicaSpecs"].as_object().into_iter().flatten() {
            of_tf.insert(
                kind.to_lowercase(),
                (tasks["replicas"].as_u64().unwrap(), tasks["template"].clone()),
            );
        }
    }
    pods.extend(of_tf);
    pods
}

fn only_container(pod: &Value) -> (PodSpec, Container) {
    let mut spec = round_trip::<PodTemplateSpec>(pod).unwrap().spec.unwrap();
    assert_eq!(spec.containers.len(), 1);
    let container = spec.containers.remove(0);
    (spec, container)
}

/// Expands `$(NAME)` as Kubernetes does, in the words of a container and in variables after the named one.
fn expanded(text: &str, variables: &BTreeMap<String, String>) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('$') {
        out += &rest[..at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            out += &variables.get(name).cloned().unwrap_or_else(|| format!("$({name})"));
            rest = after;
        } else {
            out.push('$');
        }
    }
    out + rest
}

/// Returns the environment of the task of this index.
fn environment(container: &Container, index: usize) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for variable in container.env.clone().unwrap() {
        let field = variable.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
        let value = match field.map(|field| field.field_path.as_str()) {
            Some("metadata.namespace") => "lab".to_owned(),
            Some("metadata.labels['jobset.sigs.k8s.io/jobset-name']") => "again".to_owned(),
            Some("metadata.annotations['batch.kubernetes.io/job-completion-index']") => index.to_string(),
            Some(other) => panic!("{other}"),
            None => expanded(&variable.value.unwrap_or_default(), &variables),
        };
        variables.insert(variable.name, value);
    }
    variables
}

#[test]
fn manifests_are_valid_by_the_schemas_of_their_kinds() {
    for target in TARGETS {
        for layout in [Layout::new(2), Layout::new(0).with_chief(), Layout::new(2).with_chief().ps(1)] {
            for manifest in manifests(target, &layout) {
                match manifest["kind"].as_str().unwrap() {
                    "Service" => drop(round_trip::<Service>(&manifest).unwrap()),
                    "Job" => drop(round_trip::<BatchJob>(&manifest).unwrap()),
                    _ => assert_eq!(problems(&manifest), [""; 0], "{manifest:#}"),
                }
            }
        }
    }
}

#[test]
fn a_manifest_that_an_operator_would_refuse_is_found() {
    let valid = manifests(Target::JobSet, &all()).remove(0);
    assert_eq!(problems(&valid), [""; 0]);
    let job = "/spec/replicatedJobs/0/template/spec";
    for (place, field, value, says) in [
        ("/spec", "succesPolicy", json!({}), ".spec.succesPolicy: there is no such field"),
        (job, "completions", json!("2"), "completions: is no \"integer\""),
        ("/spec/successPolicy", "operator", json!("Some"), "operator: is none of"),
        (
            "/spec/replicatedJobs/0",
            "name",
            json!("worker"),
            "replicatedJobs[1]: has the keys of another item",
        ),
        ("/spec/replicatedJobs/0", "replicas", json!(null), "replicas: is no \"integer\""),
        (&format!("{job}/template/spec"), "restartpolicy", json!("Never"), "is read as"),
        ("", "apiVersion", json!("jobset.x-k8s.io/v1"), "apiVersion is \"jobset.x-k8s.io/v1\", not"),
    ] {
        let mut broken = valid.clone();
        broken.pointer_mut(place).unwrap()[field] = value;
        let found = problems(&broken);
        assert!(found.iter().any(|problem| problem.contains(says)), "{says}: {found:?}");
    }
    let mut broken = valid.clone();
    broken.pointer_mut("/spec/replicatedJobs/0").unwrap().as_object_mut().unwrap().remove("template");
    assert_eq!(problems(&broken), [".spec.replicatedJobs[0]: \"template\" is missing"]);
}

#[test]
fn every_task_has_its_container() {
    for target in TARGETS {
        let layout = if target == Target::IndexedJob { Layout::new(2).with_chief().ps(1) } else { all() };
        let pods = pods(&manifests(target, &layout));
        let counts: Vec<_> = pods.iter().map(|(kind, (tasks, _))| (kind.as_str(), *tasks)).collect();
        let expected = [("chief", 1), ("evaluator", 1), ("ps", 1), ("worker", 2)];
        let expected =
            expected.into_iter().filter(|(kind, _)| target != Target::IndexedJob || *kind != "evaluator");
        assert_eq!(counts, expected.collect::<Vec<_>>(), "{target:?}");
        for (kind, (_, pod)) in pods {
            let (spec, container) = only_container(&pod);
            assert_eq!(spec.termination_grace_period_seconds, Some(45));
            let volume = &spec.volumes.unwrap()[0];
            assert_eq!(volume.persistent_volume_claim.as_ref().unwrap().claim_name, "results");
            let mount = &container.volume_mounts.as_ref().unwrap()[0];
            assert_eq!((&mount.name, &*mount.mount_path), (&volume.name, "/checkpoints"));
            assert_eq!(container.image.as_deref(), Some("me/train:1"));
            let variables = environment(&container, 0);
            let words = container.command.as_ref().unwrap().iter().map(|word| expanded(word, &variables));
            assert_eq!(words.collect::<Vec<_>>(), COMMAND, "{target:?}: the program gets other words");
            let env = container.env.clone().unwrap();
            let secret = env.iter().find(|variable| variable.name == "DISTRIBUTE_SECRET").unwrap();
            let from = secret.value_from.clone().unwrap().secret_key_ref.unwrap();
            assert_eq!((from.name.as_str(), from.key.as_str()), ("train-secret", "secret"));
            let limits = container.resources.unwrap().limits.unwrap();
            assert_eq!((&*limits["memory"].0, &*limits["nvidia.com/gpu"].0), ("4Gi", "1"));
            // With a chief, workers of servers only serve, and have no monitor.
            assert_eq!(container.liveness_probe.is_some(), kind == "chief", "{kind}");
            assert_eq!(variables.contains_key("DISTRIBUTE_HEALTH"), kind == "chief");
            let ports: Vec<_> =
                container.ports.unwrap().into_iter().map(|port| port.container_port).collect();
            assert_eq!(ports, if kind == "chief" { vec![2222, 6071] } else { vec![2222] });
        }
    }
}

// TFC-1
#[test]
fn the_tf_config_of_a_pod_is_the_requested_cluster() {
    for (target, host) in [
        (Target::JobSet, "again-{}-0-{}.again.lab.svc.cluster.local:2222"),
        (Target::TrainJob, "again-{}-0-{}.again.lab.svc.cluster.local:2222"),
        (Target::IndexedJob, "train-{}-{}.train.lab.svc.cluster.local:2222"),
    ] {
        let pods = pods(&manifests(target, &Layout::new(2).with_chief()));
        let variables = environment(&only_container(&pods["worker"].1).1, 1);
        let resolver = TfConfigClusterResolver::new(variables["TF_CONFIG"].parse::<TfConfig>().unwrap());
        let (spec, task) = resolver.membership().unwrap().unwrap();
        assert_eq!(task.to_string(), "worker 1");
        let at = |kind: &str, task| host.replacen("{}", kind, 1).replacen("{}", task, 1);
        let workers: Vec<_> = spec.workers().iter().map(|(_, at)| at.to_string()).collect();
        assert_eq!(workers, [at("chief", "0"), at("worker", "0"), at("worker", "1")], "{target:?}");
    }
    // As the training operator writes it for a TFJob: a service for each task, at the port of the container.
    let pods = pods(&manifests(Target::Kubernetes, &Layout::new(2).with_chief()));
    let cluster = pods.iter().map(|(kind, (tasks, _))| {
        (kind.clone(), (0..*tasks).map(|task| json!(format!("train-{kind}-{task}.lab.svc:2222"))).collect())
    });
    let cluster: serde_json::Map<_, _> = cluster.collect();
    let config = json!({"cluster": cluster, "task": {"type": "worker", "index": 1}, "environment": "cloud"});
    let resolver = TfConfigClusterResolver::new(config.to_string().parse().unwrap());
    let (spec, task) = resolver.membership().unwrap().unwrap();
    assert_eq!((task.to_string().as_str(), spec.workers().len()), ("worker 1", 3));
}

#[test]
fn spares_are_pods_that_know_how_many_of_them_are_spares() {
    for target in TARGETS {
        let pods = pods(&manifests(target, &Layout::new(3).spares(1)));
        let (tasks, pod) = &pods["worker"];
        let variables = environment(&only_container(pod).1, 3);
        assert_eq!((*tasks, variables["DISTRIBUTE_SPARES"].as_str()), (4, "1"), "{target:?}");
    }
    let command = ["train".to_owned()];
    for target in [Target::Slurm, Target::Mpi] {
        let error = Job::new(&Layout::new(3).spares(1), &command).print(target).unwrap_err().to_string();
        assert!(error.contains("when one fails; leave out --spares"), "{error}");
    }
}

#[test]
fn a_job_ends_with_the_tasks_that_train() {
    let targets = |manifest: &Value| manifest["spec"]["successPolicy"]["targetReplicatedJobs"].clone();
    assert_eq!(targets(&manifests(Target::JobSet, &all())[0]), json!(["chief"]));
    assert_eq!(targets(&manifests(Target::JobSet, &Layout::new(1).ps(1))[0]), json!(["worker"]));
    assert_eq!(
        targets(&manifests(Target::JobSet, &Layout::new(1).with_chief())[0]),
        json!(["chief", "worker"])
    );
    // The nodes of Kubeflow's Trainer are the workers.
    let [runtime, train_job] = &manifests(Target::TrainJob, &all())[..] else { panic!("two documents") };
    assert_eq!(runtime["spec"]["mlPolicy"]["numNodes"], 2);
    let nodes = runtime["spec"]["template"]["spec"]["replicatedJobs"].as_array().unwrap().iter();
    let nodes = nodes.filter(|job| {
        job["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    });
    let nodes: Vec<_> = nodes
        .map(|job| (&job["name"], &job["template"]["spec"]["template"]["spec"]["containers"][0]["name"]))
        .collect();
    assert_eq!(nodes, [(&json!("worker"), &json!("node"))]);
    assert_eq!(train_job["spec"]["runtimeRef"]["name"], runtime["metadata"]["name"]);
}

#[test]
fn what_kubernetes_does_not_support_is_refused() {
    let command = ["train".to_owned()];
    let on_hosts = Layout::new(2).hosts(distribute_launch::parse_hosts("a,b").unwrap());
    for target in TARGETS {
        let error = Job::new(&on_hosts, &command).print(target).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("--print {}: Kubernetes chooses the machines; leave out --hosts", target.name())
        );
    }
    assert!(Job::new(&Layout::new(1).with_evaluator(), &command).print(Target::IndexedJob).is_err());
    let text = Job::new(&Layout::new(1), &command).print(Target::IndexedJob).unwrap();
    assert!(
        text.contains("# IMAGE is") && text.contains("image: IMAGE\n") && !text.contains("Probe"),
        "{text}"
    );
}

#[test]
fn the_image_is_built_with_the_rust_of_this_project() {
    let at =
        |file: &str| std::fs::read_to_string(format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let cargo = at("Cargo.toml");
    let version =
        cargo.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    let file = at("examples/deploy/Containerfile");
    assert!(
        file.contains(&format!("FROM docker.io/library/rust:{version}-bookworm AS build\n")),
        "{version}"
    );
}
