//! What is told of a job.

use crate::Sample;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The form of a [`Report`] as JSON: another number where programs that read it have to be changed.
pub const FORMAT: u32 = 1;

/// What a job does, as one of its processes sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// The name of the program.
    pub program: String,
    /// The number of the process.
    pub process: u32,
    /// For how many seconds it has been watched.
    pub seconds: f64,
    /// How many seconds ago this was so. It is more than one or two where the job cannot say what it does.
    pub age: f64,
    /// The kind of the strategy.
    pub strategy: String,
    /// Who trains.
    pub world: World,
    /// How far it is.
    pub progress: Progress,
    /// What the replicas of this process do.
    pub replicas: Vec<Replica>,
    /// Who waits for whom, for half a second and longer.
    pub waits: Vec<Wait>,
    /// The scheduler, of a job that has one.
    pub coordinator: Option<Coordinator>,
    /// The parameter servers, of a job that has some.
    pub servers: Vec<ParameterServer>,
    /// How it went, the oldest first.
    pub history: Vec<Sample>,
}

/// Who trains.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct World {
    /// The number of the worker that tells this.
    pub worker: usize,
    /// The replicas of all workers.
    pub replicas: usize,
    /// All workers.
    pub workers: Vec<Worker>,
}

/// A worker, of a world or of a coordinator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// What it is called.
    pub name: String,
    /// Where it is, if that is known.
    pub address: Option<String>,
    /// Why it is not there, if it is not.
    pub away: Option<String>,
    /// What it does, as far as that is known.
    pub does: Option<String>,
    /// For how many seconds.
    pub seconds: Option<f64>,
    /// How many closures it has.
    pub closures: Option<u64>,
    /// How often it was lost.
    pub losses: Option<u64>,
}

/// How far a job is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// How many steps have begun.
    pub steps: u64,
    /// How many examples optimizers have seen.
    pub examples: f64,
    /// The loss of the last step; none before the first, and where it is not finite.
    pub loss: Option<f64>,
    /// Whether the loss of the last step was NaN or infinite.
    pub diverged: bool,
    /// In the last seconds.
    pub steps_per_second: f64,
    /// In the last seconds.
    pub examples_per_second: f64,
    /// In the last seconds; none where no step was made.
    pub seconds_per_step: Option<f64>,
}

/// A replica of this process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replica {
    /// Its number among all.
    pub replica: usize,
    /// Its device.
    pub device: String,
    /// What it does; none while it is in no step.
    pub now: Option<Activity>,
    /// Into what its seconds went since it has been watched: `forward`, `backward`, `waiting`, `update` and others.
    pub spent: BTreeMap<String, f64>,
}

/// What somebody does at the moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// As a timeline calls it.
    pub what: String,
    /// The call that it is in, with its line.
    pub call: Option<String>,
    /// For how many seconds.
    pub seconds: f64,
}

/// Somebody waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// Who.
    pub who: String,
    /// For whom.
    pub awaits: String,
    /// Why.
    pub why: String,
    /// For how many seconds.
    pub seconds: f64,
}

/// A scheduler of closures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Coordinator {
    /// How many closures wait for a worker.
    pub queued: u64,
    /// How many have ended.
    pub ended: u64,
    /// In the last seconds.
    pub ended_per_second: f64,
    /// How many other closures ended, on the average, while one ran; where each makes an update, so many its values lacked. None before the
    /// first has ended.
    #[serde(default)]
    pub staleness: Option<f64>,
    /// Its workers.
    pub workers: Vec<Worker>,
}

impl Coordinator {
    /// How many workers are not there.
    pub fn away(&self) -> usize {
        self.workers.iter().filter(|worker| worker.away.is_some()).count()
    }
}

/// A parameter server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ParameterServer {
    /// What it is called.
    pub name: String,
    /// How many variables and shards it has.
    pub tables: u64,
    /// How many rows these have.
    pub rows: u64,
    /// How many bytes; with slots, where the server says so.
    pub bytes: u64,
    /// How many rows were read from it since it started, where that is known.
    pub rows_read: Option<u64>,
    /// How many rows had gradients that were sent to it since it started, where that is known.
    pub rows_pushed: Option<u64>,
    /// Rows read and pushed in the last seconds.
    #[serde(default)]
    pub rows_per_second: f64,
    /// The number of copies of its tables, if another server follows it: 2, or 1 while changes wait for that server. It is 0 while a server
    /// that has started has not reached the one that follows it.
    #[serde(default)]
    pub copies: Option<u64>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A job in which everything is there.
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
