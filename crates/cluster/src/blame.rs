//! [`Blame`]: the error of a collective call, and the members that caused it. It is a pure function of the statuses of
//! all members.

// - INV-5: enforced here. Tests: `cluster/src/blame.rs`, `collective/tests/team.rs`.

use crate::{Corruption, Fingerprint, Presence, Process, ReplicaStatus, World};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The kind of fault that prevented a collective call from completing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// Members made different calls.
    Mismatch,
    /// A member's closure returned while others were waiting for it in a call.
    Returned,
    /// A member failed while others were waiting for it in a call, or while it executed the call for all members. That
    /// member's own error is the cause.
    Failed,
    /// A member did not make the call before the deadline.
    TimedOut,
    /// The connection to a worker was lost.
    Lost,
    /// Data of a worker arrived at another one with a different checksum. Both are culprits, because the memory or the
    /// network card of either may have failed.
    Corrupted,
}

/// The reason why a call did not complete, and the replicas that caused it.
///
/// All members get the same value, in whatever process they run, unless their workers cannot reach each other. It can
/// be serialized, and [`Display`](std::fmt::Display) creates the same text from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blame {
    /// The kind of fault.
    pub fault: Fault,
    /// The number of the step, that is, of the strategy's `run` call, counted from 1.
    pub step: u64,
    /// The global ids of the replicas that caused the fault.
    pub culprits: Vec<usize>,
    /// The details of the fault.
    pub cause: Cause,
    /// The workers to which the culprits belong, by rank, as far as their tasks and addresses are known. Not sent,
    /// because all workers of a world have the same list.
    #[serde(skip)]
    pub processes: Vec<(usize, Process)>,
}

/// The replicas that make the same call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callers {
    /// The call that these replicas make.
    pub call: Fingerprint,
    /// The global ids of the replicas that make the call.
    pub replicas: Vec<usize>,
}

/// The details of the fault that prevented a call from completing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// Members made different calls.
    Mismatch {
        /// The number of the call within the step, counted from 1.
        number: u64,
        /// The call that is assumed to be correct, and its callers.
        right: Callers,
        /// The other calls, with their callers.
        others: Vec<Callers>,
    },
    /// Members have returned or failed without making the call in which others wait.
    Gone {
        /// The number of the call within the step, counted from 1.
        number: u64,
        /// The call in which others wait, and its callers.
        waiting: Callers,
        /// The statuses of the members that have failed or, if none has, of those that have returned.
        gone: Vec<ReplicaStatus>,
    },
    /// Members did not make the call in time.
    TimedOut {
        /// The time that the others waited before they gave up.
        timeout: Duration,
        /// The calls in which others waited, and their callers.
        waiting: Vec<Callers>,
        /// The statuses of the missing members, as far as they are known.
        missing: Vec<ReplicaStatus>,
    },
    /// Members made equal calls, but some passed values of a different Rust type than the first member.
    OtherTypes {
        /// The call that did not complete.
        call: Fingerprint,
    },
    /// A member failed inside a call while it executed the call for all members.
    InCall {
        /// The call that did not complete.
        call: Fingerprint,
    },
    /// A worker has become unreachable.
    Lost {
        /// The rank of the worker.
        worker: usize,
        /// The error of the connection.
        reason: String,
        /// The call in which the others wait.
        waiting: Fingerprint,
    },
    /// Data of a worker has arrived changed at another one.
    Corrupted {
        /// The data, its sender and its receiver.
        corruption: Corruption,
        /// The call in which the data was received.
        waiting: Fingerprint,
    },
}

impl Blame {
    /// Decides which members are to blame, from their statuses. Returns `None` if there is no fault so far: no member
    /// waits, or all waiting members make equal calls and no member is gone.
    ///
    /// If members made different calls, the call that most members made is assumed to be correct. In a tie, all waiting
    /// members are to blame. If more members have returned than are waiting, the waiting ones are to blame, because
    /// they make an additional call.
    pub fn decide(step: u64, statuses: &[ReplicaStatus]) -> Option<Self> {
        if ReplicaStatus::all_agree(statuses) {
            return None;
        }
        let calls = calls(statuses);
        let first = calls.first()?;
        let caller = statuses.iter().find(|s| s.replica == first.replicas[0])?;
        let number = caller.completed.saturating_add(u64::from(!first.call.continues));
        if calls.len() > 1 {
            return Some(Self::mismatch(step, number, calls));
        }
        Self::gone(step, number, statuses, calls.into_iter().next()?)
    }

    fn mismatch(step: u64, number: u64, mut calls: Vec<Callers>) -> Self {
        let most = calls.iter().map(|callers| callers.replicas.len()).max().unwrap_or(0);
        let tie = calls.iter().filter(|callers| callers.replicas.len() == most).count() > 1;
        let right = calls.iter().position(|callers| callers.replicas.len() == most).unwrap_or(0);
        let right = calls.remove(right);
        let mut culprits: Vec<usize> = calls.iter().flat_map(|callers| &callers.replicas).copied().collect();
        if tie {
            culprits.extend(&right.replicas);
        }
        culprits.sort_unstable();
        Self {
            fault: Fault::Mismatch,
            step,
            culprits,
            cause: Cause::Mismatch { number, right, others: calls },
            processes: Vec::new(),
        }
    }

    fn gone(step: u64, number: u64, statuses: &[ReplicaStatus], waiting: Callers) -> Option<Self> {
        let which = |gone: fn(&Presence) -> bool| -> Vec<ReplicaStatus> {
            statuses.iter().filter(|status| gone(&status.presence)).cloned().collect()
        };
        let failed = which(|presence| matches!(presence, Presence::Failed));
        let (fault, gone) = if failed.is_empty() {
            (Fault::Returned, which(|presence| matches!(presence, Presence::Returned)))
        } else {
            (Fault::Failed, failed)
        };
        if gone.is_empty() {
            return None;
        }
        // If most members have returned, the ones that still wait are at fault: they make an additional call.
        let additional = fault == Fault::Returned && gone.len() > waiting.replicas.len();
        let culprits = if additional { waiting.replicas.clone() } else { ids(&gone) };
        let cause = Cause::Gone { number, waiting, gone };
        Some(Self { fault, step, culprits, cause, processes: Vec::new() })
    }

    /// Blames the members that were still running, or whose data was still in transit, when the deadline of the others
    /// passed. `timeout` is the time that the others waited.
    pub fn timed_out(step: u64, statuses: &[ReplicaStatus], timeout: Duration) -> Self {
        let missing: Vec<_> =
            statuses.iter().filter(|status| !status.is_blocked_or_done()).cloned().collect();
        let waiting = calls(statuses);
        Self {
            fault: Fault::TimedOut,
            step,
            culprits: ids(&missing),
            cause: Cause::TimedOut { timeout, waiting, missing },
            processes: Vec::new(),
        }
    }

    /// Blames members that made equal calls, but passed values of a different Rust type than the first member.
    pub fn other_types(step: u64, call: &Fingerprint, culprits: Vec<usize>) -> Self {
        let cause = Cause::OtherTypes { call: call.clone() };
        Self { fault: Fault::Mismatch, step, culprits, cause, processes: Vec::new() }
    }

    /// Blames a member that failed inside a call while it executed the call for all members.
    pub fn failed(step: u64, culprit: usize, call: &Fingerprint) -> Self {
        let cause = Cause::InCall { call: call.clone() };
        Self { fault: Fault::Failed, step, culprits: vec![culprit], cause, processes: Vec::new() }
    }

    /// Blames a worker that has become unreachable. `culprits` are its replicas, `reason` is the error of the
    /// connection, and `waiting` is the call in which the others wait.
    pub fn lost(
        step: u64,
        worker: usize,
        culprits: Vec<usize>,
        reason: impl Into<String>,
        waiting: &Fingerprint,
    ) -> Self {
        let cause = Cause::Lost { worker, reason: reason.into(), waiting: waiting.clone() };
        Self { fault: Fault::Lost, step, culprits, cause, processes: Vec::new() }
    }

    /// Blames the sender and the receiver of data that has arrived changed. `culprits` are the replicas of both, and
    /// `waiting` is the call in which the data was received.
    pub fn corrupted(
        step: u64,
        mut culprits: Vec<usize>,
        corruption: Corruption,
        waiting: &Fingerprint,
    ) -> Self {
        culprits.sort_unstable();
        let cause = Cause::Corrupted { corruption, waiting: waiting.clone() };
        Self { fault: Fault::Corrupted, step, culprits, cause, processes: Vec::new() }
    }

    /// Adds the tasks and addresses of the workers to which the culprits belong. `process` returns those of a
    /// worker of `world` by its rank, or `None` if they are not known.
    pub fn with_locations(mut self, world: World, process: impl Fn(usize) -> Option<Process>) -> Self {
        let mut workers: Vec<_> = self.culprits.iter().map(|replica| world.worker_of(*replica)).collect();
        workers.dedup();
        self.processes = workers.into_iter().filter_map(|worker| Some((worker, process(worker)?))).collect();
        self
    }
}

/// Returns the calls in which members wait, each with its callers, in the order of the first callers.
fn calls(statuses: &[ReplicaStatus]) -> Vec<Callers> {
    let mut calls: Vec<Callers> = Vec::new();
    for status in statuses {
        let Some(call) = status.call() else { continue };
        match calls.iter_mut().find(|other| other.call.matches(call)) {
            Some(callers) => callers.replicas.push(status.replica),
            None => calls.push(Callers { call: call.clone(), replicas: vec![status.replica] }),
        }
    }
    calls
}

pub(crate) fn ids(statuses: &[ReplicaStatus]) -> Vec<usize> {
    statuses.iter().map(|status| status.replica).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Operation;
    use std::panic::Location;

    pub(crate) fn call(operation: Operation, detail: &'static str) -> Fingerprint {
        Fingerprint::new(operation, detail, Location::caller())
    }

    pub(crate) fn gone(replica: usize, presence: Presence) -> ReplicaStatus {
        ReplicaStatus { replica, presence, completed: 2, last: Some(call(Operation::Barrier, "")) }
    }

    /// Returns data of worker 2 that worker 0 has received.
    pub(crate) fn changed() -> Corruption {
        let data = "bucket 3".into();
        Corruption { sender: 2, receiver: 0, data, bytes: 4096, sent: 0x88e1_b7c0, received: 0x5f0d_1c2a }
    }

    /// Returns the status of a member that waits in this call.
    pub(crate) fn waiting(replica: usize, call: &Fingerprint) -> ReplicaStatus {
        ReplicaStatus::waiting(replica, call.clone())
    }

    #[test]
    fn equal_calls_are_nobodys_fault() {
        let reduce = call(Operation::AllReduce, "SUM float32[2]");
        assert!(Blame::decide(1, &[waiting(0, &reduce), waiting(1, &reduce)]).is_none());
    }

    // INV-1

    #[test]
    fn mismatch_names_both_replicas_and_both_calls() {
        let (a, b) =
            (call(Operation::AllReduce, "SUM float32[2]"), call(Operation::AllReduce, "SUM float32[3]"));
        let blame = Blame::decide(5, &[waiting(0, &a), waiting(1, &a), waiting(2, &b)]).unwrap();
        assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Mismatch, &[2][..]));
        let text = blame.to_string();
        for part in [
            "step 5",
            "call 1",
            "replicas 0 and 1 called all_reduce (SUM float32[2])",
            "replica 2 called",
            "[3]",
            "blame.rs",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_call_that_most_make_is_taken_to_be_right() {
        let a = call(Operation::AllReduce, "SUM float32[2]");
        let (b, c) = (call(Operation::AllGather, ""), call(Operation::Barrier, ""));
        let all = [waiting(0, &b), waiting(1, &a), waiting(2, &a), waiting(3, &c)];
        let blame = Blame::decide(1, &all).unwrap();
        assert_eq!(blame.culprits, [0, 3]);
        let text = blame.to_string();
        for part in [
            "replicas 1 and 2 called all_reduce",
            "but replica 0 called all_gather",
            "and replica 3 called barrier",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let culprits = Blame::decide(1, &[waiting(0, &a), waiting(1, &b)]).unwrap().culprits;
        assert_eq!(culprits, [0, 1], "nobody can say which of two is right");
    }

    #[test]
    fn a_waiting_replica_makes_an_additional_call_if_most_have_returned() {
        let merge = call(Operation::MergeCall, "");
        let all = [gone(0, Presence::Returned), waiting(1, &merge), gone(2, Presence::Returned)];
        let blame = Blame::decide(1, &all).unwrap();
        assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Returned, &[1][..]));
        let text = blame.to_string();
        for part in [
            "replica 1 waits in merge_call",
            "replicas 0 and 2 returned",
            "replica 0: its last",
            "replica 2: its last",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_replica_that_returned_is_named_with_its_history() {
        let merge = call(Operation::MergeCall, "");
        let all = [waiting(0, &merge), gone(1, Presence::Returned), waiting(2, &merge)];
        let blame = Blame::decide(1, &all).unwrap();
        assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Returned, &[1][..]));
        let text = blame.to_string();
        assert!(text.contains("replicas 0 and 2 wait in merge_call"), "{text}");
        assert!(
            text.contains("replica 1 returned without making this call (its last call was barrier"),
            "{text}"
        );
    }

    // INV-5

    #[test]
    fn a_failure_is_the_cause_before_a_return() {
        let merge = call(Operation::MergeCall, "");
        let all = [waiting(0, &merge), gone(1, Presence::Returned), gone(2, Presence::Failed)];
        let blame = Blame::decide(1, &all).unwrap();
        assert_eq!(blame.fault, Fault::Failed);
        assert!(blame.to_string().contains("replica 2 failed"), "{blame}");
    }

    #[test]
    fn ids_are_those_of_the_whole_world() {
        let (a, b) = (call(Operation::AllReduce, ""), call(Operation::AllGather, ""));
        let all = [waiting(4, &a), waiting(5, &a), waiting(6, &b)];
        let blame = Blame::decide(1, &all).unwrap();
        assert_eq!(blame.culprits, [6]);
        assert!(blame.to_string().contains("replicas 4 and 5 called all_reduce"), "{blame}");
        let text = Blame::lost(2, 3, vec![6, 7], "connection reset by peer", &a).to_string();
        assert!(text.contains("worker 3 (replicas 6 and 7) was lost"), "{text}");
    }

    #[test]
    fn addresses_of_culprits_are_reported_and_not_sent() {
        let (a, b) = (call(Operation::AllReduce, ""), call(Operation::Barrier, ""));
        let all = [waiting(0, &a), waiting(1, &a), waiting(2, &b), waiting(3, &b)];
        let (world, made) = (World::new(2, 0, 2).unwrap(), Blame::decide(1, &all).unwrap());
        let place = |worker| Process {
            task: crate::Job::Worker.task(worker + 2),
            address: format!("node-{worker}:7").parse().unwrap(),
        };
        let located = made.clone().with_locations(world, |worker| Some(place(worker)));
        let expected =
            format!("{made}; worker 0 is task worker 2 at node-0:7, worker 1 is task worker 3 at node-1:7");
        assert_eq!(located.to_string(), expected);
        assert_eq!(made.clone().with_locations(world, |_| None).to_string(), made.to_string());
        let sent: Blame = serde_json::from_str(&serde_json::to_string(&located).unwrap()).unwrap();
        assert_eq!(sent, made);
        let many =
            Blame::timed_out(1, &(0..9).map(ReplicaStatus::running).collect::<Vec<_>>(), Duration::ZERO);
        let many =
            many.with_locations(World::new(9, 0, 1).unwrap(), |worker| Some(place(worker))).to_string();
        assert!(many.ends_with("worker 3 is task worker 5 at node-3:7, and 5 more"), "{many}");
    }

    #[test]
    fn a_received_blame_has_the_text_of_the_original() {
        let (a, b) = (call(Operation::AllReduce, "SUM float32[2]"), call(Operation::Barrier, ""));
        let all = [waiting(0, &a), waiting(1, &b), gone(2, Presence::Failed)];
        for blame in [
            Blame::decide(1, &all).unwrap(),
            Blame::decide(1, &[waiting(0, &a), gone(2, Presence::Failed)]).unwrap(),
            Blame::timed_out(1, &[waiting(0, &a), ReplicaStatus::running(1)], Duration::from_millis(1500)),
            Blame::other_types(1, &a, vec![1]),
            Blame::failed(1, 0, &a),
            Blame::lost(1, 1, vec![1], "gone", &a),
            Blame::corrupted(1, vec![2, 0], changed(), &a),
        ] {
            let sent: Blame = serde_json::from_str(&serde_json::to_string(&blame).unwrap()).unwrap();
            assert_eq!((sent.to_string(), &sent), (blame.to_string(), &blame));
        }
    }
}
