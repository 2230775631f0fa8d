//! [`Blame`]: the member that did not do what the others waited for. A pure function of all members'
//! standings.

use crate::{Fingerprint, Presence, Process, Standing, World};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The kind of fault that prevented a call from completing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// Members made different calls.
    Mismatch,
    /// A member returned while others wait for it.
    Returned,
    /// A member failed while others wait for it. The cause is the error of that member, not the members that
    /// wait.
    Failed,
    /// A member did not arrive before the deadline.
    Late,
    /// The connection to a worker was lost.
    Lost,
}

/// The reason that a call did not complete, and the replicas that caused it.
///
/// It is the same for all members, wherever they run: it can be serialized, and
/// [`Display`](std::fmt::Display) creates the same text from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blame {
    /// The kind of fault.
    pub fault: Fault,
    /// The number of the step, from 1: the number of the strategy's `run` call.
    pub step: u64,
    /// The global ids of the replicas that did not do what the others waited for.
    pub culprits: Vec<usize>,
    /// The cause.
    pub cause: Cause,
    /// The workers of the culprits, by number, with their tasks in the cluster if these are known. Not sent:
    /// all workers of a world have the same list.
    #[serde(skip)]
    pub processes: Vec<(usize, Process)>,
}

/// The replicas that make one call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callers {
    /// The call.
    pub call: Fingerprint,
    /// The global ids of the replicas that make it.
    pub replicas: Vec<usize>,
}

/// The cause that prevented a call from completing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// Members made different calls.
    Mismatch {
        /// The number of the call in the step, from 1.
        number: u64,
        /// The call that is taken to be right, and its callers.
        right: Callers,
        /// The other calls.
        others: Vec<Callers>,
    },
    /// Members have returned or failed without making the call in which others wait.
    Gone {
        /// The number of the call in the step, from 1.
        number: u64,
        /// The call in which others wait, and its callers.
        waiting: Callers,
        /// The standings of the members that have returned or failed.
        gone: Vec<Standing>,
    },
    /// Members did not arrive in time.
    Late {
        /// The time that the others waited.
        timeout: Duration,
        /// The calls in which others waited, and their callers.
        waiting: Vec<Callers>,
        /// The standings of the members that did not arrive, as far as known.
        missing: Vec<Standing>,
    },
    /// Members made equal calls, but with values of other Rust types than the first member's.
    OtherTypes {
        /// The call.
        call: Fingerprint,
    },
    /// A member failed inside a call while it executed the call for all members.
    InCall {
        /// The call.
        call: Fingerprint,
    },
    /// A worker has become unreachable.
    Lost {
        /// The worker.
        worker: usize,
        /// The error of the connection.
        reason: String,
        /// The call in which the others wait.
        waiting: Fingerprint,
    },
}

impl Blame {
    /// Decides which of the members that wait or are gone are to blame. Returns `None` if there is no fault so
    /// far: no member waits, or all waiting members make equal calls and no member is gone.
    ///
    /// If members made different calls, the call of the most members is taken to be right. In a tie, all
    /// waiting members are culprits.
    pub fn judge(step: u64, standings: &[Standing]) -> Option<Self> {
        if Standing::all_agree(standings) {
            return None;
        }
        let calls = calls(standings);
        let first = calls.first()?;
        let caller = standings.iter().find(|s| s.replica == first.replicas[0])?;
        let number = caller.completed.saturating_add(u64::from(!first.call.continues));
        if calls.len() > 1 {
            return Some(Self::mismatch(step, number, calls));
        }
        Self::gone(step, number, standings, calls.into_iter().next()?)
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

    fn gone(step: u64, number: u64, standings: &[Standing], waiting: Callers) -> Option<Self> {
        let which = |gone: fn(&Presence) -> bool| -> Vec<Standing> {
            standings.iter().filter(|standing| gone(&standing.presence)).cloned().collect()
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

    /// Blames the members that still run after the deadline of the others has passed.
    pub fn late(step: u64, standings: &[Standing], timeout: Duration) -> Self {
        let missing: Vec<_> = standings.iter().filter(|standing| !standing.is_settled()).cloned().collect();
        let waiting = calls(standings);
        Self {
            fault: Fault::Late,
            step,
            culprits: ids(&missing),
            cause: Cause::Late { timeout, waiting, missing },
            processes: Vec::new(),
        }
    }

    /// Blames members that made equal calls, but with values of other Rust types than the first member's.
    pub fn other_types(step: u64, call: &Fingerprint, culprits: Vec<usize>) -> Self {
        let cause = Cause::OtherTypes { call: call.clone() };
        Self { fault: Fault::Mismatch, step, culprits, cause, processes: Vec::new() }
    }

    /// Blames a member that failed inside a call while it executed the call for all members.
    pub fn failed(step: u64, culprit: usize, call: &Fingerprint) -> Self {
        let cause = Cause::InCall { call: call.clone() };
        Self { fault: Fault::Failed, step, culprits: vec![culprit], cause, processes: Vec::new() }
    }

    /// Blames a worker that has become unreachable. `culprits` are its replicas.
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

    /// Adds the locations of the workers of the culprits. `process` returns the location of a worker of
    /// `world`, by number.
    pub fn located(mut self, world: World, process: impl Fn(usize) -> Option<Process>) -> Self {
        let mut workers: Vec<_> = self.culprits.iter().map(|replica| replica / world.replicas()).collect();
        workers.dedup();
        self.processes = workers.into_iter().filter_map(|worker| Some((worker, process(worker)?))).collect();
        self
    }
}

/// Returns the calls in which members wait, with their callers, in the order of the first caller.
fn calls(standings: &[Standing]) -> Vec<Callers> {
    let mut calls: Vec<Callers> = Vec::new();
    for standing in standings {
        let Some(call) = standing.call() else { continue };
        match calls.iter_mut().find(|other| other.call.matches(call)) {
            Some(callers) => callers.replicas.push(standing.replica),
            None => calls.push(Callers { call: call.clone(), replicas: vec![standing.replica] }),
        }
    }
    calls
}

pub(crate) fn ids(standings: &[Standing]) -> Vec<usize> {
    standings.iter().map(|standing| standing.replica).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Operation;
    use std::panic::Location;

    pub(crate) fn call(operation: Operation, detail: &'static str) -> Fingerprint {
        Fingerprint::new(operation, detail, Location::caller())
    }

    pub(crate) fn gone(replica: usize, presence: Presence) -> Standing {
        Standing { replica, presence, completed: 2, last: Some(call(Operation::Barrier, "")) }
    }

    /// Returns the standing of a member that waits in this call.
    pub(crate) fn waiting(replica: usize, call: &Fingerprint) -> Standing {
        Standing::waiting(replica, call.clone())
    }

    #[test]
    fn equal_calls_are_nobodys_fault() {
        let reduce = call(Operation::AllReduce, "SUM float32[2]");
        assert!(Blame::judge(1, &[waiting(0, &reduce), waiting(1, &reduce)]).is_none());
    }

    // INV-1

    #[test]
    fn mismatch_names_both_replicas_and_both_calls() {
        let (a, b) =
            (call(Operation::AllReduce, "SUM float32[2]"), call(Operation::AllReduce, "SUM float32[3]"));
        let blame = Blame::judge(5, &[waiting(0, &a), waiting(1, &a), waiting(2, &b)]).unwrap();
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
        let blame = Blame::judge(1, &all).unwrap();
        assert_eq!(blame.culprits, [0, 3]);
        let text = blame.to_string();
        for part in [
            "replicas 1 and 2 called all_reduce",
            "but replica 0 called all_gather",
            "and replica 3 called barrier",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let culprits = Blame::judge(1, &[waiting(0, &a), waiting(1, &b)]).unwrap().culprits;
        assert_eq!(culprits, [0, 1], "nobody can say which of two is right");
    }

    #[test]
    fn who_waits_while_most_have_returned_makes_an_additional_call() {
        let merge = call(Operation::MergeCall, "");
        let all = [gone(0, Presence::Returned), waiting(1, &merge), gone(2, Presence::Returned)];
        let blame = Blame::judge(1, &all).unwrap();
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
        let blame = Blame::judge(1, &all).unwrap();
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
        let blame = Blame::judge(1, &all).unwrap();
        assert_eq!(blame.fault, Fault::Failed);
        assert!(blame.to_string().contains("replica 2 failed"), "{blame}");
    }

    #[test]
    fn ids_are_those_of_the_whole_world() {
        let (a, b) = (call(Operation::AllReduce, ""), call(Operation::AllGather, ""));
        let all = [waiting(4, &a), waiting(5, &a), waiting(6, &b)];
        let blame = Blame::judge(1, &all).unwrap();
        assert_eq!(blame.culprits, [6]);
        assert!(blame.to_string().contains("replicas 4 and 5 called all_reduce"), "{blame}");
        let text = Blame::lost(2, 3, vec![6, 7], "connection reset by peer", &a).to_string();
        assert!(text.contains("worker 3 (replicas 6 and 7) was lost"), "{text}");
    }

    #[test]
    fn where_the_workers_of_the_culprits_are_is_told_and_not_sent() {
        let (a, b) = (call(Operation::AllReduce, ""), call(Operation::Barrier, ""));
        let all = [waiting(0, &a), waiting(1, &a), waiting(2, &b), waiting(3, &b)];
        let (world, made) = (World::new(2, 0, 2).unwrap(), Blame::judge(1, &all).unwrap());
        let place = |worker| Process {
            task: crate::Job::Worker.task(worker + 2),
            address: format!("node-{worker}:7").parse().unwrap(),
        };
        let located = made.clone().located(world, |worker| Some(place(worker)));
        let expected =
            format!("{made}; worker 0 is task worker 2 at node-0:7, worker 1 is task worker 3 at node-1:7");
        assert_eq!(located.to_string(), expected);
        assert_eq!(made.clone().located(world, |_| None).to_string(), made.to_string());
        let sent: Blame = serde_json::from_str(&serde_json::to_string(&located).unwrap()).unwrap();
        assert_eq!(sent, made);
        let many = Blame::late(1, &(0..9).map(Standing::running).collect::<Vec<_>>(), Duration::ZERO);
        let many = many.located(World::new(9, 0, 1).unwrap(), |worker| Some(place(worker))).to_string();
        assert!(many.ends_with("worker 3 is task worker 5 at node-3:7, and 5 more"), "{many}");
    }

    #[test]
    fn what_is_sent_has_the_text_of_what_was_made() {
        let (a, b) = (call(Operation::AllReduce, "SUM float32[2]"), call(Operation::Barrier, ""));
        let all = [waiting(0, &a), waiting(1, &b), gone(2, Presence::Failed)];
        for blame in [
            Blame::judge(1, &all).unwrap(),
            Blame::judge(1, &[waiting(0, &a), gone(2, Presence::Failed)]).unwrap(),
            Blame::late(1, &[waiting(0, &a), Standing::running(1)], Duration::from_millis(1500)),
            Blame::other_types(1, &a, vec![1]),
            Blame::failed(1, 0, &a),
            Blame::lost(1, 1, vec![1], "gone", &a),
        ] {
            let sent: Blame = serde_json::from_str(&serde_json::to_string(&blame).unwrap()).unwrap();
            assert_eq!((sent.to_string(), &sent), (blame.to_string(), &blame));
        }
    }
}
