//! The contents of the environment variable `TF_CONFIG`.

use crate::json::{self, Json};
use crate::spec::ClusterSpec;
use crate::task::{Job, Task};
use crate::words::missing;
use crate::{ClusterError, Malformed};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The name of the environment variable.
pub const TF_CONFIG: &str = "TF_CONFIG";

/// The contents of `TF_CONFIG`: the cluster, and the task of this process.
///
/// ```
/// use distribute_cluster::{Job, TfConfig};
/// let config: TfConfig = r#"{
///     "cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]},
///     "task": {"type": "worker", "index": 1}
/// }"#.parse()?;
/// assert_eq!(config.task(), Some(Job::Worker.task(1)));
/// assert_eq!(config.to_string().parse(), Ok(config));
///
/// let error = r#"{"cluster": {"worker": ["10.0.0.1:2222", 17]}}"#.parse::<TfConfig>().unwrap_err();
/// assert_eq!(error.to_string(), r#"TF_CONFIG: cluster.worker[1]: expected "host:port", found 17"#);
/// # Ok::<(), distribute_cluster::ClusterError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Value")]
pub struct TfConfig {
    /// The tasks of the cluster.
    pub cluster: ClusterSpec,
    /// The task of this process.
    #[serde(skip_serializing_if = "OwnTask::is_empty")]
    pub task: OwnTask,
    /// The protocol prefix of addresses, such as `grpc`; `None` means no prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc_layer: Option<String>,
    /// The address that [`master_of`](crate::resolver::ClusterResolver::master_of) returns for every task; `None` means
    /// the address of the task itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_master: Option<String>,
}

/// The task of a process. The job or the index may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OwnTask {
    /// The job of the process; `None` if it is not given.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub job: Option<Job>,
    /// The index of the process in its job; `None` if it is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
}

impl OwnTask {
    /// Returns whether both the job and the index are missing.
    pub fn is_empty(&self) -> bool {
        self.job.is_none() && self.index.is_none()
    }

    /// Returns the task; `None` if the job or the index is missing.
    pub fn task(&self) -> Option<Task> {
        Some(self.job.clone()?.task(self.index?))
    }
}

impl From<Task> for OwnTask {
    fn from(Task { job, index }: Task) -> Self {
        Self { job: Some(job), index: Some(index) }
    }
}

impl TfConfig {
    /// Creates the configuration of one task of a cluster.
    pub fn new(cluster: ClusterSpec, task: Task) -> Self {
        Self { cluster, task: task.into(), rpc_layer: None, session_master: None }
    }

    /// Returns the task of this process; `None` if its job or index is missing.
    pub fn task(&self) -> Option<Task> {
        self.task.task()
    }

    /// Checks that strategies can use the cluster, and that the task of this process is part of it. An empty
    /// cluster is valid.
    ///
    /// # Errors
    /// - [`ClusterError::At`]: [`ClusterSpec::validate`] fails. The error contains the path in `TF_CONFIG`.
    /// - [`ClusterError::NoTask`]: there is a cluster, but the job or the index of this process is missing.
    pub fn validate(&self) -> Result<(), ClusterError> {
        if self.cluster.is_empty() {
            return Ok(());
        }
        let task = self.task().ok_or_else(|| self.no_task())?;
        self.cluster.validate(&task).map_err(locate)
    }

    pub(crate) fn no_task(&self) -> ClusterError {
        ClusterError::NoTask {
            tasks: self.cluster.total_tasks(),
            missing: missing(self.task.job.as_ref(), self.task.index),
            remedy: r#"add "task": {"type": "worker", "index": 0} to TF_CONFIG, with this process's own type and index"#,
        }
    }

    fn read(json: &Json<'_>) -> Result<Self, Malformed> {
        let whole = r#"an object with "cluster" and "task""#;
        let text = |key| -> Result<Option<String>, Malformed> {
            json.get(key, whole)?.map(|at| at.text("text").map(String::from)).transpose()
        };
        let cluster = match json.get("cluster", whole)? {
            Some(cluster) => ClusterSpec::read(&cluster)?,
            None => ClusterSpec::new(),
        };
        let task = match json.get("task", whole)? {
            Some(task) => OwnTask::read(&task)?,
            None => OwnTask::default(),
        };
        Ok(Self { cluster, task, rpc_layer: text("rpc_layer")?, session_master: text("session_master")? })
    }
}

impl OwnTask {
    fn read(json: &Json<'_>) -> Result<Self, Malformed> {
        let whole = r#"an object with "type" and "index""#;
        let job = json.get("type", whole)?;
        let job = job.map(|at| at.text("the name of a job").map(Job::from)).transpose()?;
        let index = json.get("index", whole)?;
        let index = index.map(|at| {
            // Schedulers that fill in templates write it as text.
            let value = at.value();
            let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
            let index = number.and_then(|number| usize::try_from(number).ok());
            index.ok_or_else(|| at.expected("a whole number from 0"))
        });
        Ok(Self { job, index: index.transpose()? })
    }
}

/// Adds the path in `TF_CONFIG` to an error that concerns a value there.
fn locate(error: ClusterError) -> ClusterError {
    let path = match &error {
        ClusterError::DisallowedJob { job } | ClusterError::Several { job, .. } => format!("cluster.{job}"),
        ClusterError::DisallowedTask { .. } | ClusterError::NotInCluster { .. } => "task.type".into(),
        ClusterError::NoSuchIndex { .. } => "task.index".into(),
        _ => return error,
    };
    ClusterError::At { origin: TF_CONFIG, path, error: Box::new(error) }
}

impl FromStr for TfConfig {
    type Err = ClusterError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let help =
            r#"it looks like {"cluster": {"worker": ["host:port"]}, "task": {"type": "worker", "index": 0}}"#;
        let helped = |error: Malformed| Malformed { help, ..error };
        let value = json::parse(TF_CONFIG, text).map_err(helped)?;
        let read = Self::read(&Json::new(TF_CONFIG, &value));
        Ok(read.map_err(|error| if error.path.is_empty() { helped(error) } else { error })?)
    }
}

impl TryFrom<serde_json::Value> for TfConfig {
    type Error = ClusterError;

    fn try_from(value: serde_json::Value) -> Result<Self, Self::Error> {
        Ok(Self::read(&Json::new(TF_CONFIG, &value))?)
    }
}

impl fmt::Display for TfConfig {
    /// Formats the value of the environment variable as JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(text: &str) -> String {
        text.parse::<TfConfig>().unwrap_err().to_string()
    }

    // TFC-6
    #[test]
    fn tfc_6_one_error_names_the_path_and_the_value() {
        for (text, says) in [
            ("", r#"TF_CONFIG: expected JSON, found no text; it looks like {"cluster""#),
            ("null", r#"TF_CONFIG: expected an object with "cluster" and "task", found null; it looks like"#),
            ("[]", r#"TF_CONFIG: expected an object with "cluster" and "task", found []"#),
            (r#""text""#, r#"found "text""#),
            ("{} x", "expected JSON"),
            (r#"{"cluster": null}"#, "TF_CONFIG: cluster: expected a map from jobs to addresses, found null"),
            (
                r#"{"cluster": {"worker": ["a:1", 17]}}"#,
                r#"TF_CONFIG: cluster.worker[1]: expected "host:port", found 17"#,
            ),
            (
                r#"{"cluster": {"worker": {"a": "h:1"}}}"#,
                "TF_CONFIG: cluster.worker: expected numbers of tasks",
            ),
            (
                r#"{"task": null}"#,
                r#"TF_CONFIG: task: expected an object with "type" and "index", found null"#,
            ),
            (r#"{"task": {"type": 5}}"#, "TF_CONFIG: task.type: expected the name of a job, found 5"),
            (
                r#"{"task": {"index": "x"}}"#,
                r#"TF_CONFIG: task.index: expected a whole number from 0, found "x""#,
            ),
            (r#"{"task": {"index": 1.5}}"#, "task.index: expected a whole number from 0, found 1.5"),
            (r#"{"task": {"index": -1}}"#, "found -1"),
            (r#"{"task": {"index": true}}"#, "found true"),
            (r#"{"task": {"index": null}}"#, "found null"),
            (r#"{"rpc_layer": 3}"#, "TF_CONFIG: rpc_layer: expected text, found 3"),
            (r#"{"session_master": []}"#, "TF_CONFIG: session_master: expected text, found []"),
        ] {
            let error = refused(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    // CL-2, TFC-6
    #[test]
    fn cl_2_errors_of_strategies_have_their_position_in_tf_config() {
        let error = |text: &str| text.parse::<TfConfig>().unwrap().validate().unwrap_err().to_string();
        for (text, says) in [
            (
                r#"{"cluster": {"boss": ["a:1"]}, "task": {"type": "worker", "index": 0}}"#,
                "TF_CONFIG: cluster.boss: the job",
            ),
            (
                r#"{"cluster": {"worker": ["a:1"]}, "task": {"type": "boss", "index": 0}}"#,
                "TF_CONFIG: task.type: this task",
            ),
            (
                r#"{"cluster": {"ps": ["a:1"]}, "task": {"type": "worker", "index": 0}}"#,
                "TF_CONFIG: task.type: this task",
            ),
            (
                r#"{"cluster": {"chief": ["a:1", "b:1"]}, "task": {"type": "chief", "index": 0}}"#,
                "TF_CONFIG: cluster.chief: there are 2",
            ),
            (
                r#"{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 7}}"#,
                r#"TF_CONFIG: task.index: this task is worker 7, but "worker" has task 0 alone"#,
            ),
            (
                r#"{"cluster": {"worker": ["a:1"]}}"#,
                "there is a cluster of 1 tasks, but the task of this process is not given; add \"task\"",
            ),
            (r#"{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}"#, "but the index of the task"),
        ] {
            let error = error(text);
            assert!(error.starts_with(says) || error.contains(says), "{text}: {error}");
        }
        "{}".parse::<TfConfig>().unwrap().validate().unwrap();
    }

    // TFC-2, TFC-3
    #[test]
    fn tfc_2_an_index_may_be_text_and_unknown_fields_are_ignored() {
        let config: TfConfig =
            r#"{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "0", "trial": "1"},
            "environment": "cloud", "job": {}, "rpc_layer": "grpc"}"#
                .parse()
                .unwrap();
        assert_eq!(config.task(), Some(Job::Worker.task(0)));
        assert_eq!(
            config.to_string(),
            r#"{"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":0},"rpc_layer":"grpc"}"#
        );
        // As in a TF_CONFIG that a scheduler left empty.
        assert_eq!("{}".parse::<TfConfig>().unwrap(), TfConfig::default());
    }

    #[test]
    fn it_round_trips_through_json() {
        let cluster =
            ClusterSpec::from_lists([("chief", vec!["a:1"]), ("worker", vec!["[::1]:2", "c:0"])]).unwrap();
        let config = TfConfig::new(cluster, Job::Worker.task(1));
        assert_eq!(config.to_string().parse(), Ok(config.clone()));
        assert_eq!(serde_json::from_str::<TfConfig>(&config.to_string()).unwrap(), config);
    }

    /// Generates JSON of any shape that uses the keys of `TF_CONFIG`.
    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            "[a-z0-9:.\\[\\]-]{0,12}|.{0,6}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            let key = "cluster|task|type|index|rpc_layer|session_master|worker|chief|[0-9]{1,6}|.{0,4}";
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                prop::collection::btree_map(key, inner, 0..5)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn is_config_or_error(text: &str) -> Result<(), TestCaseError> {
        match text.parse::<TfConfig>() {
            Ok(config) => {
                let _ = config.validate();
                prop_assert_eq!(config.to_string().parse(), Ok(config));
            }
            Err(error) => {
                let error = error.to_string();
                prop_assert!(error.starts_with("TF_CONFIG: ") && error.contains("expected"), "{}", error);
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_config_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            is_config_or_error(&String::from_utf8_lossy(&bytes))?;
        }

        #[test]
        fn any_json_is_a_config_or_an_error(value in json()) {
            is_config_or_error(&value.to_string())?;
        }
    }
}
