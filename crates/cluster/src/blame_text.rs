//! The text of a [`Blame`]: what each member did, and how to fix it.

use crate::blame::ids;
use crate::{Blame, Callers, Cause, Fault, Operation, Presence, ReplicaStatus, locations};
use std::fmt;

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_cause(f)?;
        f.write_str(&locations(&self.processes))
    }
}

impl Blame {
    fn fmt_cause(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = self.step;
        match &self.cause {
            Cause::Mismatch { number, right, others } => {
                let names_of: Vec<_> = others.iter().map(caller_text).collect();
                let is_step = |callers: &Callers| callers.call.operation == Operation::Minimize;
                let steps = others.iter().chain([right]).filter(|callers| is_step(callers)).count();
                let skipped = (1..=others.len()).contains(&steps);
                write!(
                    f,
                    "step {step}, call {number}: {}, but {}; all replicas have to make the same calls in the same \
                     order, with equal dtypes, shapes and structure{}",
                    caller_text(right),
                    names_of.join(" and "),
                    if skipped { INSTEAD_OF_MINIMIZE } else { "" },
                )
            }
            Cause::Gone { number, waiting, gone } => {
                let (did, advice) = match self.fault {
                    Fault::Failed => ("failed", "see its error for the cause"),
                    _ => ("returned", "all replicas have to make the same number of calls"),
                };
                write!(
                    f,
                    "step {step}, call {number}: {} in {}, but {} without making this call ({}); {advice}{}",
                    names(&waiting.replicas, "waits", "wait"),
                    waiting.call,
                    names(&ids(gone), did, did),
                    histories(gone),
                    match (self.fault, waiting.call.operation) {
                        (Fault::Returned, Operation::Minimize) => INSTEAD_OF_MINIMIZE,
                        _ => "",
                    },
                )
            }
            Cause::TimedOut { timeout, waiting, missing } => {
                let waited = |callers: &Callers| {
                    let who = names(&callers.replicas, "waited", "waited");
                    format!("{who} {:?} in {}", crate::rounded(*timeout), callers.call)
                };
                let waits: Vec<_> = waiting.iter().map(waited).collect();
                write!(
                    f,
                    "step {step}: {}, but {} ({}); {}, or raise the strategy's timeout or the call's",
                    waits.join(" and "),
                    names(&ids(missing), "did not arrive", "did not arrive"),
                    histories(missing),
                    advice_for(missing),
                )
            }
            Cause::OtherTypes { call } => write!(
                f,
                "step {step}: {} {call} with values of another type than replica 0; pass the same type on \
                 all replicas",
                names(&self.culprits, "called", "called"),
            ),
            Cause::InCall { call } => write!(
                f,
                "step {step}: {} in {call}; see its error for the cause",
                names(&self.culprits, "failed", "failed")
            ),
            Cause::Lost { worker, reason, waiting } => write!(
                f,
                "step {step}: the connection to worker {worker} ({}) was lost while the others wait in {waiting}: \
                 {reason}; see that worker's log",
                replicas(&self.culprits),
            ),
            Cause::Corrupted { corruption, waiting } => write!(
                f,
                "step {step}: in {waiting}, {corruption}; no worker has used it. Suspect the memory or the network card \
                 of one of the two machines, and replace a machine that is named again",
            ),
        }
    }
}

impl std::error::Error for Blame {}

/// The advice for a replica that did not make the optimizer's step.
const INSTEAD_OF_MINIMIZE: &str =
    "; a replica that has nothing to train on calls the optimizer's skip in place of minimize";

fn caller_text(callers: &Callers) -> String {
    format!("{} {}", names(&callers.replicas, "called", "called"), callers.call)
}

/// Returns advice on what may delay the missing replicas.
fn advice_for(missing: &[ReplicaStatus]) -> &'static str {
    let sends = |status: &ReplicaStatus| matches!(status.presence, Presence::Sending { .. });
    match (missing.iter().any(sends), missing.iter().all(sends)) {
        (false, _) => "look for a loop, a lock or slow input there",
        (true, false) => "look at the network, and for a loop, a lock or slow input there",
        (true, true) => "look at the network there, send less at once",
    }
}

fn history(status: &ReplicaStatus) -> String {
    match (&status.presence, &status.last) {
        (Presence::Sending { part: Some((received, length)) }, _) => format!(
            "its data is still in transit: {:.1} MB of a message of {:.1} MB have arrived",
            *received as f64 / 1e6,
            *length as f64 / 1e6
        ),
        (Presence::Sending { part: None }, _) => {
            "its call has reached other workers in time, and is still in transit to the rest".into()
        }
        (_, None) => "it has made no call in this step".into(),
        (_, Some(last)) => format!("its last call was {last}, number {} of this step", status.completed),
    }
}

fn histories(who: &[ReplicaStatus]) -> String {
    match who {
        [one] => history(one),
        many => {
            let each = many.iter().map(|one| format!("replica {}: {}", one.replica, history(one)));
            each.collect::<Vec<_>>().join("; ")
        }
    }
}

/// Joins the ids of replicas with the singular or plural form of a verb: `replica 2 waits`, `replicas 0, 2 and 3 wait`.
fn names(who: &[usize], singular: &str, plural: &str) -> String {
    match who {
        [] => format!("no replica {singular}"),
        [_] => format!("{} {singular}", replicas(who)),
        _ => format!("{} {plural}", replicas(who)),
    }
}

/// Lists the ids of replicas: `replica 2`, `replicas 0, 2 and 3`.
fn replicas(who: &[usize]) -> String {
    match who {
        [] => "no replica".into(),
        [one] => format!("replica {one}"),
        [head @ .., last] => {
            let head: Vec<_> = head.iter().map(usize::to_string).collect();
            format!("replicas {} and {last}", head.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blame::tests::{call, changed, gone, waiting};
    use std::time::Duration;

    #[test]
    fn late_members_are_named_with_all_calls_that_wait_for_them() {
        let (a, b) = (call(Operation::AllReduce, ""), call(Operation::AllGather, ""));
        let all = [ReplicaStatus::running(0), waiting(1, &a), waiting(2, &b), ReplicaStatus::running(3)];
        let text = Blame::timed_out(1, &all, Duration::from_secs(1)).to_string();
        for part in [
            "replica 1 waited 1s in all_reduce",
            "replica 2 waited 1s in all_gather",
            "replicas 0 and 3 did not arrive",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn corrupted_data_is_named_with_both_workers_and_checksums() {
        let blame = Blame::corrupted(7, vec![2, 0], changed(), &call(Operation::Minimize, "adam 1"));
        assert_eq!(blame.culprits, [0, 2]);
        let text = blame.to_string();
        for part in [
            "step 7: in minimize (adam 1) at ",
            "bucket 3 of worker 2 (4096 bytes) has arrived changed at worker 0: its checksum is 5f0d1c2a, but 88e1b7c0",
            "Suspect the memory or the network card",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_text_of_an_omitted_step_names_an_alternative() {
        let (step, other) = (call(Operation::Minimize, "adam 1"), call(Operation::Minimize, "adam 2"));
        let sum = call(Operation::AllReduce, "SUM float32[]");
        let text = |statuses: &[ReplicaStatus]| Blame::decide(1, statuses).unwrap().to_string();
        for statuses in [
            vec![waiting(0, &step), gone(1, Presence::Returned)],
            vec![waiting(0, &step), waiting(1, &sum)],
            vec![waiting(0, &sum), waiting(1, &sum), waiting(2, &step)],
        ] {
            assert!(text(&statuses).contains("calls the optimizer's skip"), "{}", text(&statuses));
        }
        for statuses in [
            vec![waiting(0, &sum), gone(1, Presence::Returned)],
            vec![waiting(0, &step), gone(1, Presence::Failed)],
            vec![waiting(0, &step), waiting(1, &other)],
        ] {
            assert!(!text(&statuses).contains("skip"), "{}", text(&statuses));
        }
    }

    #[test]
    fn a_timeout_names_the_missing_replicas_with_advice() {
        let reduce = call(Operation::AllReduce, "SUM float32[2]");
        let all = [ReplicaStatus::running(0), waiting(1, &reduce)];
        let blame = Blame::timed_out(3, &all, Duration::from_secs(60));
        assert_eq!(blame.culprits, [0]);
        let text = blame.to_string();
        for part in
            ["replica 1 waited 60s in all_reduce", "replica 0 did not arrive", "made no call", "timeout"]
        {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_replica_with_a_slow_link_is_not_reported_as_without_call() {
        let reduce = call(Operation::AllReduce, "SUM float32[2500000]");
        let sending = |replica, part| ReplicaStatus {
            presence: Presence::Sending { part },
            ..ReplicaStatus::running(replica)
        };
        let text = |missing: ReplicaStatus| {
            let all = [missing, waiting(1, &reduce)];
            let blame = Blame::timed_out(3, &all, Duration::from_secs(5));
            assert_eq!(blame.culprits, [0]);
            blame.to_string()
        };
        for (part, says) in [
            (
                Some((3_100_000, 10_000_000)),
                "its data is still in transit: 3.1 MB of a message of 10.0 MB have arrived",
            ),
            (None, "its call has reached other workers in time"),
        ] {
            let text = text(sending(0, part));
            assert!(
                text.contains(says)
                    && text.contains("look at the network there, send less at once, or raise"),
                "{text}"
            );
            assert!(!text.contains("no call") && !text.contains("a loop"), "{text}");
        }
        let both = [sending(0, None), waiting(1, &reduce), ReplicaStatus::running(2)];
        let text = Blame::timed_out(3, &both, Duration::from_secs(5)).to_string();
        assert!(
            text.contains("replica 2: it has made no call")
                && text.contains("look at the network, and for a loop"),
            "{text}"
        );
    }
}
