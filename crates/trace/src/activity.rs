//! The current activity of replicas, and how their time is divided, for a monitor of a running job.

use super::slices::Slice;
use distribute_base::internal::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// The replicas that have run in this process since a watch began, keyed by the numbers of the strategy and the
/// replica.
static REPLICAS: Mutex<BTreeMap<(u64, u64), ReplicaActivity>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct ReplicaActivity {
    now: Option<CurrentActivity>,
    /// The time spent in each kind of slice, in nanoseconds.
    spent: BTreeMap<&'static str, u64>,
}

struct CurrentActivity {
    name: &'static str,
    args: String,
    since: u64,
}

/// The activity of a replica, as reported to a monitor.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// The name of the current slice, its call if it belongs to one, and the time since its start. `None` if the
    /// replica is in no such slice, for example between steps.
    pub now: Option<(&'static str, Option<String>, Duration)>,
    /// The time spent in the slices of each name, including the current slice. Slices of whole steps are not counted.
    pub spent: BTreeMap<&'static str, Duration>,
}

/// Returns the activity of a replica; `None` if none was recorded. `replica` is the number of its strategy and its
/// replica id. `now` is the current time in nanoseconds, measured by the clock of slices.
pub(super) fn activity_of(replica: (u64, u64), now: u64) -> Option<Activity> {
    let replicas = lock(&REPLICAS);
    let of_replica = replicas.get(&replica)?;
    let mut spent: BTreeMap<_, _> =
        of_replica.spent.iter().map(|(name, nanos)| (*name, Duration::from_nanos(*nanos))).collect();
    let now = of_replica.now.as_ref().map(|it| {
        let time = Duration::from_nanos(now.saturating_sub(it.since));
        *spent.entry(it.name).or_default() += time;
        (it.name, call(&it.args), time)
    });
    Some(Activity { now, spent })
}

/// Returns the field `call` of `args`, a span's arguments as a JSON object. Returns `None` if there is no such field.
fn call(args: &str) -> Option<String> {
    let args: serde_json::Value = serde_json::from_str(args).ok()?;
    Some(args.get("call")?.as_str()?.to_string())
}

/// Records the slice that a replica is in: its name, its arguments and its start time in nanoseconds. `None` means that
/// the replica is in no slice.
pub(super) fn set_activity(replica: (u64, u64), part: Option<(&'static str, &str, u64)>) {
    let now = part.map(|(name, args, since)| CurrentActivity { name, args: args.to_string(), since });
    let before = std::mem::replace(&mut lock(&REPLICAS).entry(replica).or_default().now, now);
    drop(before);
}

/// Adds the length of a completed slice to the time that its replica has spent in slices of the same name. Does nothing
/// for the slice of a whole step.
pub(super) fn spent(replica: (u64, u64), slice: &Slice) {
    if slice.name != distribute_base::internal::STEP {
        let nanos = slice.end.saturating_sub(slice.start);
        *lock(&REPLICAS).entry(replica).or_default().spent.entry(slice.name).or_default() += nanos;
    }
}

/// Clears all records. It is called when the last watch is dropped.
pub(super) fn forget() {
    lock(&REPLICAS).clear();
}
