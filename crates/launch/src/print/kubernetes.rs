//! The manifest for Kubeflow's training operator on Kubernetes.

use super::Job;
use crate::{Error, Result};
use serde_json::json;
use std::fmt::Write as _;

/// Returns the manifest of a `TFJob`, whose operator sets `TF_CONFIG`.
pub(super) fn manifest(job: &Job<'_>) -> Result<String> {
    let layout = job.layout;
    if !layout.hosts.is_empty() {
        let problem = "Kubernetes chooses the machines; leave out --hosts";
        return Err(Error::Unprintable { target: "k8s", problem });
    }
    let name = job.name();
    let image = match job.image {
        Some(image) => json!(image).to_string(),
        None => "IMAGE # the image that has the program; --image sets it".into(),
    };
    let mut policy = format!("    cleanPodPolicy: Running\n    backoffLimit: {}\n", job.max_restarts);
    if let Some(timeout) = job.timeout {
        // Writing into a string cannot fail.
        let _ = writeln!(policy, "    activeDeadlineSeconds: {}", timeout.as_secs_f64().ceil());
    }
    let mut manifest = format!(
        "# Kubeflow's training operator starts the tasks, gives them addresses and sets TF_CONFIG. The secret by which they
# know each other has to be there before:
#   od -An -N32 -tx1 /dev/urandom | tr -d ' \\n' | kubectl create secret generic {name}-secret --from-file=secret=/dev/stdin
# Where Kubeflow is not installed, a Job with completionMode: Indexed and a headless Service do for workers alone: set
# TF_CONFIG from JOB_COMPLETION_INDEX, with the addresses {name}-0.{name}:2222, {name}-1.{name}:2222 and so on.
apiVersion: kubeflow.org/v1
kind: TFJob
metadata:
  name: {name}
spec:
  successPolicy: AllWorkers
  runPolicy:
{policy}  tfReplicaSpecs:
"
    );
    let restart = if job.max_restarts > 0 { "OnFailure" } else { "Never" };
    // JSON is valid YAML for all characters.
    let command = json!(job.command);
    let kinds = [
        ("Chief", usize::from(layout.chief)),
        ("Worker", layout.workers),
        ("PS", layout.ps),
        ("Evaluator", usize::from(layout.evaluator)),
    ];
    for (kind, replicas) in kinds.iter().filter(|(_, replicas)| *replicas > 0) {
        let _ = write!(
            manifest,
            "    {kind}:
      replicas: {replicas}
      restartPolicy: {restart}
      template:
        spec:
          containers:
            - name: tensorflow # the operator looks for this name
              image: {image}
              command: {command}
              ports:
                - name: tfjob-port
                  containerPort: 2222
              env:
                - name: DISTRIBUTE_SECRET
                  valueFrom:
                    secretKeyRef:
                      name: {name}-secret
                      key: secret
"
        );
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, parse_hosts};
    use std::time::Duration;

    #[test]
    fn a_manifest_of_a_tf_job() {
        let command = ["/bin/train".to_string(), "--note=\"a: b\"".into()];
        let layout = Layout::new(2).ps(1);
        let timeout = Some(Duration::from_secs(60));
        let job =
            Job { layout: &layout, command: &command, timeout, max_restarts: 3, image: Some("me/train:1") };
        let text = manifest(&job).unwrap();
        let (comments, yaml) = text.split_once("apiVersion").unwrap();
        assert!(comments.lines().all(|line| line.starts_with('#')));
        let task = |kind: &str, replicas| {
            format!(
                "    {kind}:
      replicas: {replicas}
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: tensorflow # the operator looks for this name
              image: \"me/train:1\"
              command: [\"/bin/train\",\"--note=\\\"a: b\\\"\"]
              ports:
                - name: tfjob-port
                  containerPort: 2222
              env:
                - name: DISTRIBUTE_SECRET
                  valueFrom:
                    secretKeyRef:
                      name: train-secret
                      key: secret
"
            )
        };
        let head = ": kubeflow.org/v1
kind: TFJob
metadata:
  name: train
spec:
  successPolicy: AllWorkers
  runPolicy:
    cleanPodPolicy: Running
    backoffLimit: 3
    activeDeadlineSeconds: 60
  tfReplicaSpecs:
";
        assert_eq!(yaml, format!("{head}{}{}", task("Worker", 2), task("PS", 1)));
        let on_hosts = Layout::new(2).hosts(parse_hosts("a,b").unwrap());
        assert!(manifest(&Job { layout: &on_hosts, ..job }).is_err());
        let all = Layout::new(0).chief(true).evaluator(true);
        let text = manifest(&Job { layout: &all, image: None, max_restarts: 0, ..job }).unwrap();
        assert!(text.contains("    Chief:\n      replicas: 1\n      restartPolicy: Never"), "{text}");
        assert!(
            text.contains("    Evaluator:") && text.contains("image: IMAGE #") && !text.contains("Worker:\n")
        );
    }
}
