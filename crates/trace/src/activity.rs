//! The current activity of replicas and the division of their time, for a monitor of a running job.

use super::layer::{Watching, now};
use super::slices::Slice;
use super::subscribe;
use distribute_base::internal::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// The replicas that have run in this process since a watch began, by the numbers of strategy and replica.
static REPLICAS: Mutex<BTreeMap<(u64, u64), OfReplica>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct OfReplica {
    now: Option<Now>,
    /// The time spent in each kind of slice, in nanoseconds.
    spent: BTreeMap<&'static str, u64>,
}

struct Now {
    name: &'static str,
    args: String,
    since: u64,
}

/// The activity of a replica.
#[derive(Clone, Debug, Default)]
pub struct Doing {
    /// The current slice, its call and its duration; `None` outside steps.
    pub now: Option<(&'static str, Option<String>, Duration)>,
    /// The time spent in each kind of slice, including the current one.
    pub spent: BTreeMap<&'static str, Duration>,
}

/// A guard that records the activity of replicas. Programs with their own `tracing` subscriber need
/// [`layer`](super::layer()) in it.
pub struct Watch(#[allow(dead_code, reason = "its end is what counts")] Watching);

impl Watch {
    /// Starts recording.
    pub fn begin() -> Self {
        subscribe();
        Self(Watching::new())
    }

    /// Returns the activity of a replica of the strategy with this number, if any was recorded.
    pub fn replica(&self, strategy: u64, replica: usize) -> Option<Doing> {
        let replicas = lock(&REPLICAS);
        let now = now();
        let of_replica = replicas.get(&(strategy, replica as u64))?;
        let mut spent: BTreeMap<_, _> =
            of_replica.spent.iter().map(|(name, nanos)| (*name, Duration::from_nanos(*nanos))).collect();
        let now = of_replica.now.as_ref().map(|it| {
            let time = Duration::from_nanos(now.saturating_sub(it.since));
            *spent.entry(it.name).or_default() += time;
            (it.name, call(&it.args), time)
        });
        Some(Doing { now, spent })
    }
}

/// Returns the call among the arguments of a span.
fn call(args: &str) -> Option<String> {
    let args: serde_json::Value = serde_json::from_str(args).ok()?;
    Some(args.get("call")?.as_str()?.to_string())
}

/// Records that a replica has started another activity, or none.
pub(super) fn does(replica: (u64, u64), part: Option<(&'static str, &str, u64)>) {
    let now = part.map(|(name, args, since)| Now { name, args: args.to_string(), since });
    let before = std::mem::replace(&mut lock(&REPLICAS).entry(replica).or_default().now, now);
    drop(before);
}

/// Records a slice that a replica has completed.
pub(super) fn spent(replica: (u64, u64), slice: &Slice) {
    if slice.name != super::internal::STEP {
        let nanos = slice.end.saturating_sub(slice.start);
        *lock(&REPLICAS).entry(replica).or_default().spent.entry(slice.name).or_default() += nanos;
    }
}

/// Clears all records after the last watch was dropped.
pub(super) fn forget() {
    lock(&REPLICAS).clear();
}
