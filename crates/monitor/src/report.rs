//! Reports of a job's status.

use crate::Sample;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of a [`Report`] as JSON. It changes when programs that read it have to change.
pub const FORMAT: u32 = 1;

/// The status of a job, as seen by one of its processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version, [`FORMAT`].
    pub format: u32,
    /// The name of the program.
    pub program: String,
    /// The id of the process.
    pub process: u32,
    /// The number of seconds since the start of the monitor.
    pub seconds: f64,
    /// The age of the report in seconds. It is more than one or two if the job cannot report its status.
    pub age: f64,
    /// The kind of the strategy.
    pub strategy: String,
    /// The workers and replicas of the training.
    pub world: World,
    /// The progress of the training.
    pub progress: Progress,
    /// The replicas of this process.
    pub replicas: Vec<Replica>,
    /// The waits of half a second or more.
    pub waits: Vec<Wait>,
    /// The scheduler, if the job has one.
    pub coordinator: Option<Coordinator>,
    /// The parameter servers, if the job has any.
    pub servers: Vec<ParameterServer>,
    /// The samples of the job, the oldest first.
    pub history: Vec<Sample>,
}

/// The workers and replicas of a training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct World {
    /// The number of the reporting worker.
    pub worker: usize,
    /// The number of replicas of all workers.
    pub replicas: usize,
    /// The workers.
    pub workers: Vec<Worker>,
}

/// A worker of a world or of a coordinator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// The name of the worker.
    pub name: String,
    /// The address of the worker, if it is known.
    pub address: Option<String>,
    /// The reason why the worker is missing, if it is.
    pub away: Option<String>,
    /// The activity of the worker, if it is known.
    pub does: Option<String>,
    /// The duration of the activity in seconds.
    pub seconds: Option<f64>,
    /// The number of closures on the worker.
    pub closures: Option<u64>,
    /// The number of times the worker has failed.
    pub losses: Option<u64>,
}

/// The progress of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The number of steps that have begun.
    pub steps: u64,
    /// The number of examples in optimizer steps.
    pub examples: f64,
    /// The loss of the last step; `None` before the first step, and if the loss is not finite.
    pub loss: Option<f64>,
    /// Whether the loss of the last step was NaN or infinite.
    pub diverged: bool,
    /// The number of steps per second, recently.
    pub steps_per_second: f64,
    /// The number of examples per second, recently.
    pub examples_per_second: f64,
    /// The duration of a step in seconds, recently; `None` if no step was made.
    pub seconds_per_step: Option<f64>,
}

/// A replica of this process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replica {
    /// The number of the replica in the world.
    pub replica: usize,
    /// The device of the replica.
    pub device: String,
    /// The activity of the replica; `None` outside steps.
    pub now: Option<Activity>,
    /// The seconds spent in `forward`, `backward`, `waiting`, `update` and other activities, since the start
    /// of the monitor.
    pub spent: BTreeMap<String, f64>,
}

/// The current activity of a replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// The name of the activity, as in a timeline.
    pub what: String,
    /// The call of the activity, with its line.
    pub call: Option<String>,
    /// The duration of the activity in seconds.
    pub seconds: f64,
}

/// A wait of a worker or replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// The name of the waiting worker or replica.
    pub who: String,
    /// The name of the awaited one.
    pub awaits: String,
    /// The reason of the wait.
    pub why: String,
    /// The duration of the wait in seconds.
    pub seconds: f64,
}

/// A scheduler of closures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Coordinator {
    /// The number of closures that wait for a worker.
    pub queued: u64,
    /// The number of completed closures.
    pub ended: u64,
    /// The number of closures completed per second, recently.
    pub ended_per_second: f64,
    /// The mean number of other closures that completed while one ran; `None` before the first has completed.
    ///
    /// If each closure makes an update, this is the number of updates that its values lacked.
    #[serde(default)]
    pub staleness: Option<f64>,
    /// The workers of the coordinator.
    pub workers: Vec<Worker>,
}

impl Coordinator {
    /// Returns the number of missing workers.
    pub fn away(&self) -> usize {
        self.workers.iter().filter(|worker| worker.away.is_some()).count()
    }
}

/// A parameter server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ParameterServer {
    /// The name of the server.
    pub name: String,
    /// The number of variables and shards on the server.
    pub tables: u64,
    /// The number of their rows.
    pub rows: u64,
    /// The number of their bytes, including slots if the server reports its usage.
    pub bytes: u64,
    /// The number of rows read from the server since its start, if it is known.
    pub rows_read: Option<u64>,
    /// The number of rows whose gradients were pushed to the server since its start, if it is known.
    pub rows_pushed: Option<u64>,
    /// The number of rows read and pushed per second, recently.
    #[serde(default)]
    pub rows_per_second: f64,
    /// The number of copies of the server's tables, if another server follows it.
    ///
    /// It is 2, or 1 while changes wait for the following server. It is 0 after a start, until the server has
    /// reached the following one.
    #[serde(default)]
    pub copies: Option<u64>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the report of a job in which all fields are set.
    pub(crate) fn busy() -> Report {
        let worker = |name: &str| Worker {
            name: name.into(),
            closures: Some(3),
            losses: Some(0),
            ..Worker::default()
        };
        let replica = |replica, what: &str| {
            let call = (what == "waiting").then(|| "all_reduce (SUM float32[]) at train.rs:19:18".into());
            let now = Some(Activity { what: what.into(), call, seconds: 1.5 });
            let spent =
                [("forward", 7.), ("waiting", 2.5)].map(|(what, seconds)| (what.to_string(), seconds));
            Replica { replica, device: format!("cpu:{replica}"), now, spent: spent.into() }
        };
        let server = |name: &str| ParameterServer {
            name: name.into(),
            tables: 2,
            rows: 1000,
            bytes: 32_000,
            rows_read: Some(77),
            rows_pushed: Some(70),
            rows_per_second: 14.5,
            copies: None,
        };
        let away = Worker { away: Some("the connection was lost".into()), ..worker("worker 2") };
        Report {
            format: FORMAT,
            program: "train".into(),
            process: 7,
            seconds: 60.,
            age: 0.25,
            strategy: "MultiWorkerMirroredStrategy".into(),
            world: World { worker: 0, replicas: 4, workers: vec![worker("worker 0"), worker("worker 1")] },
            progress: Progress {
                steps: 120,
                examples: 1200.,
                loss: Some(0.5),
                diverged: false,
                steps_per_second: 2.,
                examples_per_second: 20.,
                seconds_per_step: Some(0.5),
            },
            replicas: vec![replica(0, "forward"), replica(1, "waiting")],
            waits: vec![Wait {
                who: "replica 1".into(),
                awaits: "replica 0".into(),
                why: "all_reduce (SUM float32[]) at train.rs:19:18".into(),
                seconds: 1.5,
            }],
            coordinator: Some(Coordinator {
                queued: 12,
                ended: 400,
                ended_per_second: 8.,
                staleness: Some(0.75),
                workers: vec![worker("worker \"<1>\"\n\\"), away],
            }),
            servers: vec![server("ps 0"), server("ps 1")],
            history: vec![Sample {
                seconds: 60.,
                steps: 120,
                examples: 1200.,
                loss: Some(0.5),
                rate: 20.,
                ended: 400,
            }],
        }
    }

    #[test]
    fn a_report_goes_through_json() {
        let text = serde_json::to_string(&busy()).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), busy());
    }
}
