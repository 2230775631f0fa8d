//! The current waits of replicas and workers, and the reasons for them, computed from their calls by a pure function.

use distribute_monitor::{Coordinator, Replica, Wait};

/// The minimum duration, in seconds, of a wait that is reported. Shorter waits occur in normal steps.
const SHORT: f64 = 0.5;

/// A call in which this worker waits for other workers of its world.
pub(super) struct WaitingCall<'a> {
    pub(super) me: usize,
    pub(super) workers: &'a [usize],
    pub(super) call: String,
    pub(super) seconds: f64,
}

/// Returns the waits that are longer than usual in a step, and the coordinator's waits for missing workers.
pub(super) fn all(
    replicas: &[Replica],
    group: Option<&WaitingCall<'_>>,
    coordinator: Option<&Coordinator>,
) -> Vec<Wait> {
    let mut waits = Vec::new();
    if let Some(WaitingCall { me, workers, call, seconds }) = group
        && *seconds >= SHORT
        && !workers.is_empty()
    {
        let awaits = list(workers.iter().map(|worker| format!("worker {worker}")));
        waits.push(Wait { who: format!("worker {me}"), awaits, why: call.clone(), seconds: *seconds });
    }
    let busy: Vec<_> =
        replicas.iter().filter(|it| it.now.as_ref().is_some_and(|now| !waits_in(&now.what))).collect();
    for replica in replicas {
        let Some(now) = replica.now.as_ref().filter(|now| waits_in(&now.what) && now.seconds >= SHORT) else {
            continue;
        };
        let (awaits, why) = match &*now.what {
            "input" => ("input".into(), "the next batch".into()),
            "servers" => (
                "parameter servers".into(),
                "values of variables, or the acknowledgement of gradients".into(),
            ),
            // If all replicas of this worker wait for each other, one of them calls the other workers: see above.
            _ if busy.is_empty() && group.is_some() => continue,
            _ if busy.is_empty() => {
                ("the others".into(), now.call.clone().unwrap_or_else(|| "the end of the step".into()))
            }
            _ => {
                let does = |it: &&Replica| {
                    let what = it.now.as_ref().map_or("", |now| &now.what);
                    format!("replica {} (in {what})", it.replica)
                };
                let why = now.call.clone().unwrap_or_else(|| "the end of the step".into());
                (list(busy.iter().map(does)), why)
            }
        };
        waits.push(Wait { who: format!("replica {}", replica.replica), awaits, why, seconds: now.seconds });
    }
    for worker in coordinator.iter().flat_map(|coordinator| &coordinator.workers) {
        if let Some(why) = &worker.away {
            let seconds = worker.seconds.unwrap_or(0.);
            let who = "the coordinator".into();
            waits.push(Wait { who, awaits: worker.name.clone(), why: why.clone(), seconds });
        }
    }
    waits
}

fn waits_in(what: &str) -> bool {
    matches!(what, "waiting" | "input" | "servers")
}

/// Returns up to four of the names, separated by commas, and the number of those that are omitted.
fn list(names: impl ExactSizeIterator<Item = String>) -> String {
    const LISTED: usize = 4;
    let more = names.len().saturating_sub(LISTED);
    let mut listed: Vec<_> = names.take(LISTED).collect();
    if more > 0 {
        listed.push(format!("{more} more"));
    }
    listed.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_monitor::{Activity, Worker};

    fn replica(replica: usize, what: &str, seconds: f64) -> Replica {
        let call = (what == "waiting").then(|| "all_reduce at a.rs:1:2".into());
        Replica { replica, now: Some(Activity { what: what.into(), call, seconds }), ..Replica::default() }
    }

    fn texts(waits: &[Wait]) -> Vec<String> {
        waits.iter().map(|it| format!("{} for {}: {}", it.who, it.awaits, it.why)).collect()
    }

    #[test]
    fn replicas_wait_for_those_that_do_something_else() {
        let all = |replicas: &[Replica]| texts(&super::all(replicas, None, None));
        let replicas = [replica(0, "waiting", 2.), replica(1, "forward", 3.), replica(2, "waiting", 0.1)];
        assert_eq!(all(&replicas), ["replica 0 for replica 1 (in forward): all_reduce at a.rs:1:2"]);
        assert_eq!(all(&[replica(0, "input", 1.)]), ["replica 0 for input: the next batch"]);
        assert!(all(&[replica(0, "servers", 1.)])[0].starts_with("replica 0 for parameter servers: "));
        assert!(all(&[replica(0, "forward", 60.), Replica::default()]).is_empty());
        let many: Vec<_> =
            (0..9).map(|it| replica(it, if it == 0 { "waiting" } else { "backward" }, 1.)).collect();
        assert!(all(&many)[0].contains("replica 4 (in backward), 4 more: "), "{:?}", all(&many));
    }

    #[test]
    fn a_worker_waits_for_those_that_have_not_answered() {
        let workers = [2, 3];
        let awaited =
            |seconds| WaitingCall { me: 0, workers: &workers, call: "run at a.rs:3:4".into(), seconds };
        let replicas = [replica(0, "waiting", 2.), replica(1, "waiting", 2.)];
        let all = |seconds| texts(&super::all(&replicas, Some(&awaited(seconds)), None));
        assert_eq!(all(2.), ["worker 0 for worker 2, worker 3: run at a.rs:3:4"]);
        assert!(all(0.1).is_empty());
    }

    #[test]
    fn a_coordinator_waits_for_workers_that_are_not_there() {
        let worker = |name: &str, away: Option<&str>| Worker {
            name: name.into(),
            away: away.map(Into::into),
            ..Worker::default()
        };
        let workers = vec![worker("worker 0", None), worker("worker 1", Some("the connection was lost"))];
        let coordinator = Coordinator { workers, ..Coordinator::default() };
        let waits = texts(&super::all(&[], None, Some(&coordinator)));
        assert_eq!(waits, ["the coordinator for worker 1: the connection was lost"]);
    }
}
