//! Reports of a job's status.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of a [`Report`] in its JSON form. It changes when programs that read it must change.
pub const FORMAT: u32 = 1;

/// The status of a job, as seen by one of its processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of the format: [`FORMAT`].
    pub format: u32,
    /// The file name of the program that the process runs.
    pub program: String,
    /// The id of the process.
    pub process: u32,
    /// The number of seconds since the start of the monitor.
    pub seconds: f64,
    /// The age of the report in seconds. If it is more than one or two, the job cannot report its status at present.
    pub age: f64,
    /// The kind of the strategy, such as `MirroredStrategy`.
    pub strategy: String,
    /// The workers and replicas of the training run.
    pub world: World,
    /// The progress of the training run.
    pub progress: Progress,
    /// The replicas of this process.
    pub replicas: Vec<Replica>,
    /// The waits that have lasted half a second or longer.
    pub waits: Vec<Wait>,
    /// The worker that makes the others wait in each step, if there is one.
    #[serde(default)]
    pub straggler: Option<Straggler>,
    /// The slow workers whose places spares have taken, if there are any.
    #[serde(default)]
    pub replacements: Option<Replacements>,
    /// The coordinator that schedules closures, if the job has one.
    pub coordinator: Option<Coordinator>,
    /// The parameter servers, if the job has any.
    pub servers: Vec<ParameterServer>,
    /// The usage of this process's caches of rows, if it has read rows through them.
    #[serde(default)]
    pub row_cache: Option<RowCache>,
    /// The usage of prefetched rows in this process, if it prefetches rows.
    #[serde(default)]
    pub prefetch: Option<Prefetch>,
    /// The usage of this process's copies of hot rows, if it has looked up rows of tables with hot rows.
    #[serde(default)]
    pub hot_rows: Option<HotRows>,
    /// The samples of the job, oldest first.
    pub history: Vec<Sample>,
}

/// A sample of a job's progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The number of seconds since the start of the monitor.
    pub seconds: f64,
    /// The number of steps that have begun.
    pub steps: u64,
    /// The total number of examples in optimizer steps.
    pub examples: f64,
    /// The loss of the last step, if it was finite.
    pub loss: Option<f64>,
    /// The recent number of examples per second; for a coordinator without examples, the recent number of closures per
    /// second.
    pub rate: f64,
    /// The number of completed closures.
    pub ended: u64,
}

/// The workers and replicas of a training run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct World {
    /// The rank of the reporting worker.
    pub worker: usize,
    /// The total number of replicas of all workers.
    pub replicas: usize,
    /// The workers of the training run, in the order of ranks.
    pub workers: Vec<Worker>,
}

/// A worker of a world or of a coordinator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// The name of the worker.
    pub name: String,
    /// The address of the worker, if it is known.
    pub address: Option<String>,
    /// The reason why the worker is missing; `None` if it is not missing.
    pub away: Option<String>,
    /// The current activity of the worker, as text, if it is known.
    pub does: Option<String>,
    /// The time since the activity began, in seconds.
    pub seconds: Option<f64>,
    /// The number of closures that the worker is running or has received.
    pub closures: Option<u64>,
    /// The number of times that the worker was disconnected, or did not finish a closure in time.
    pub losses: Option<u64>,
    /// The mean times of the worker in a step, if they are known.
    #[serde(default)]
    pub times: Option<StepTimes>,
}

/// The mean times of a worker in a step over about the last minute, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// The time in which the worker computed.
    pub computing: f64,
    /// The time in which the worker waited for its input.
    pub input: f64,
    /// The time that the program spent between steps.
    pub outside: f64,
    /// The time in which the worker waited for other workers.
    pub waiting: f64,
}

/// A worker that makes the others wait in each step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Straggler {
    /// The name of the worker.
    pub name: String,
    /// The reason why the worker is slow.
    pub why: String,
    /// The mean time per step for which the others wait for this worker, in seconds.
    pub seconds: f64,
    /// The share of the duration of a step for which the others wait, between 0 and 1.
    pub share: f64,
}

/// The slow workers whose places spares have taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replacements {
    /// The number of replacements.
    pub count: u64,
    /// The last worker that was replaced, and the reason why it was slow.
    pub last: String,
}

/// The progress of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The number of steps that have begun.
    pub steps: u64,
    /// The total number of examples in optimizer steps.
    pub examples: f64,
    /// The latest known loss; `None` if no loss is known yet, or if it is not finite. The loss of a step on a device
    /// may become known some steps later.
    pub loss: Option<f64>,
    /// Whether the latest known loss is NaN or infinite.
    pub diverged: bool,
    /// The recent number of steps per second.
    pub steps_per_second: f64,
    /// The recent number of examples per second.
    pub examples_per_second: f64,
    /// The recent duration of a step in seconds; `None` if no step was made recently.
    pub seconds_per_step: Option<f64>,
}

/// A replica of this process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replica {
    /// The id of the replica in the world.
    pub replica: usize,
    /// The name of the replica's device.
    pub device: String,
    /// The activity of the replica; `None` outside steps.
    pub now: Option<Activity>,
    /// The time in seconds spent in `forward`, `backward`, `waiting`, `update` and other activities since the start of
    /// the monitor.
    pub spent: BTreeMap<String, f64>,
}

/// The current activity of a replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// The name of the activity, as in a timeline.
    pub what: String,
    /// The call that the activity belongs to, with its source line.
    pub call: Option<String>,
    /// The time since the start of the activity, in seconds.
    pub seconds: f64,
}

/// A wait of a worker or replica for another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// The name of the waiting worker or replica.
    pub who: String,
    /// The name of the worker or replica for which it waits.
    pub awaits: String,
    /// The reason for the wait.
    pub why: String,
    /// The duration of the wait so far, in seconds.
    pub seconds: f64,
}

/// The coordinator of a job, which schedules closures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Coordinator {
    /// The number of closures that wait for a worker.
    pub queued: u64,
    /// The number of completed closures.
    pub ended: u64,
    /// The recent number of completed closures per second.
    pub ended_per_second: f64,
    /// The mean number of other closures that complete while a closure runs; `None` before the first closure has
    /// completed. If each closure makes one update, this is the number of updates that are missing from the values that
    /// a closure uses.
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
    /// The number of tables on the server, that is, of variables and shards.
    pub tables: u64,
    /// The number of rows in these tables.
    pub rows: u64,
    /// The size of these tables in bytes. It includes slots if the server reports its usage.
    pub bytes: u64,
    /// The number of rows that have been read from the server since its start, if it is known.
    pub rows_read: Option<u64>,
    /// The number of rows whose gradients have been pushed to the server since its start, if it is known.
    pub rows_pushed: Option<u64>,
    /// The recent number of rows read and pushed per second.
    #[serde(default)]
    pub rows_per_second: f64,
    /// The number of copies of the server's tables; `None` if no other server replicates the tables. Normally it is 2.
    /// It is 1 while changes wait for the replicating server. It is 0 after a start, until this server has connected to
    /// the replicating server.
    #[serde(default)]
    pub copies: Option<u64>,
    /// The shards on the server from which most rows have been read, in the order of their names.
    #[serde(default)]
    pub shards: Vec<Shard>,
}

/// The rows that have been read from a variable or a shard since its server started, by their indices or ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shard {
    /// The name of the variable; for a shard, followed by `/part_` and the index of the shard.
    pub name: String,
    /// The number of rows that have been read; a row that is read twice counts twice.
    pub rows_read: u64,
    /// The size of these rows in bytes.
    pub bytes_read: u64,
}

/// The usage of the caches in which a process keeps rows of tables, since their creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowCache {
    /// The number of rows that were read from a cache.
    pub hits: u64,
    /// The number of rows that were not in a cache and were fetched from a server.
    pub misses: u64,
    /// The size of the rows that were read from a cache, in bytes.
    pub saved_bytes: u64,
    /// The maximum age of a row when it was read from a cache: the number of steps whose changes it lacked.
    pub max_age: u64,
    /// The number of rows that are cached now.
    pub rows: u64,
}

impl RowCache {
    /// Returns the share of rows that were read from a cache, between 0 and 1. It is 0 if no row was read.
    pub fn hit_share(&self) -> f64 {
        share(self.hits, self.misses)
    }
}

/// The usage of prefetched rows, which a process requests before the step that looks them up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prefetch {
    /// The number of rows that were requested before the step that looked them up.
    pub prefetched: u64,
    /// The number of rows that were only requested when they were looked up.
    pub late: u64,
}

impl Prefetch {
    /// Returns the share of looked up rows that were prefetched, between 0 and 1. It is 0 if no row was looked up.
    pub fn share(&self) -> f64 {
        share(self.prefetched, self.late)
    }
}

/// The usage of the copies that a process has of hot rows, since their creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HotRows {
    /// The number of rows that were read from a copy.
    pub hits: u64,
    /// The number of other rows that were looked up, in tables with hot rows.
    pub misses: u64,
    /// The number of values that this process has sent for the copies of others.
    pub sent_rows: u64,
    /// The size in bytes of what this process has sent about hot rows to all others.
    pub sent_bytes: u64,
    /// The number of copies that this process has now.
    pub rows: u64,
}

impl HotRows {
    /// Returns the share of rows that were read from a copy, between 0 and 1. It is 0 if no row was looked up.
    pub fn hit_share(&self) -> f64 {
        share(self.hits, self.misses)
    }
}

/// Returns the share of `some` in `some` and `others` together. It is 0 if both are 0.
fn share(some: u64, others: u64) -> f64 {
    let all = some as f64 + others as f64;
    if all > 0. { some as f64 / all } else { 0. }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the report of a job that has a coordinator with a missing worker, parameter servers, a waiting replica
    /// and a sample.
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
            shards: vec![Shard {
                name: format!("words/part_{}", &name[3..]),
                rows_read: 70,
                bytes_read: 2240,
            }],
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
            straggler: None,
            replacements: None,
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
            row_cache: Some(RowCache { hits: 30, misses: 70, saved_bytes: 960, max_age: 4, rows: 25 }),
            prefetch: Some(Prefetch { prefetched: 60, late: 20 }),
            hot_rows: Some(HotRows { hits: 45, misses: 5, sent_rows: 6, sent_bytes: 3 << 20, rows: 9 }),
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
