//! What replicas do just now, and into what their time went: for who watches a running job.

use super::layer::{Watching, now};
use super::slices::Slice;
use super::subscribe;
use distribute_base::internal::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// Of all replicas that ran in this process since somebody has watched, by the numbers of strategy and replica.
static REPLICAS: Mutex<BTreeMap<(u64, u64), OfReplica>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct OfReplica {
    now: Option<Now>,
    /// Nanoseconds.
    spent: BTreeMap<&'static str, u64>,
}

struct Now {
    name: &'static str,
    args: String,
    since: u64,
}

/// What a replica does.
#[derive(Clone, Debug, Default)]
pub struct Doing {
    /// What, in which call, for how long; none outside of steps.
    pub now: Option<(&'static str, Option<String>, Duration)>,
    /// What its time went into, with what it does now.
    pub spent: BTreeMap<&'static str, Duration>,
}

/// What replicas do is recorded while this is there. A program with a `tracing` subscriber of its own that lacks [`layer`](super::layer()) tells nothing.
pub struct Watch(#[allow(dead_code, reason = "its end is what counts")] Watching);

impl Watch {
    /// Begins to record.
    pub fn begin() -> Self {
        subscribe();
        Self(Watching::new())
    }

    /// What a replica of the strategy of this number does, if anything is known of it.
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

/// The call among the arguments of a span.
fn call(args: &str) -> Option<String> {
    let args: serde_json::Value = serde_json::from_str(args).ok()?;
    Some(args.get("call")?.as_str()?.to_string())
}

/// A replica does something else from now on, or nothing.
pub(super) fn does(replica: (u64, u64), part: Option<(&'static str, &str, u64)>) {
    let now = part.map(|(name, args, since)| Now { name, args: args.to_string(), since });
    let before = std::mem::replace(&mut lock(&REPLICAS).entry(replica).or_default().now, now);
    drop(before);
}

/// A replica has spent time.
pub(super) fn spent(replica: (u64, u64), slice: &Slice) {
    if slice.name != super::internal::STEP {
        let nanos = slice.end.saturating_sub(slice.start);
        *lock(&REPLICAS).entry(replica).or_default().spent.entry(slice.name).or_default() += nanos;
    }
}

/// Nobody watches any more.
pub(super) fn forget() {
    lock(&REPLICAS).clear();
}
