//! Who did not do what the others waited for: a pure function of where everybody stands.

use crate::{Fingerprint, Operation};
use std::fmt;
use std::time::Duration;

/// What a member is doing at the moment.
#[derive(Clone, Debug)]
pub enum Presence {
    /// It runs the user's code.
    Running,
    /// It waits in a call for the others.
    Waiting(Fingerprint),
    /// Its closure has returned.
    Returned,
    /// Its closure has failed or panicked: the cause comes from there.
    Failed,
}

/// Where one member stands: what it is doing, and what it has done.
#[derive(Clone, Debug)]
pub struct Standing {
    /// What it is doing at the moment.
    pub presence: Presence,
    /// How many calls it has completed in this step.
    pub completed: u64,
    /// The last call it completed.
    pub last: Option<Fingerprint>,
}

impl Standing {
    /// A member that has just begun.
    pub fn running() -> Self {
        Self { presence: Presence::Running, completed: 0, last: None }
    }

    /// A member that waits in its first call.
    pub fn waiting(fingerprint: Fingerprint) -> Self {
        Self { presence: Presence::Waiting(fingerprint), completed: 0, last: None }
    }

    /// Whether nothing more will come from it until the others move.
    pub fn is_settled(&self) -> bool {
        !matches!(self.presence, Presence::Running)
    }

    /// Whether its closure is over.
    pub fn is_gone(&self) -> bool {
        matches!(self.presence, Presence::Returned | Presence::Failed)
    }

    fn history(&self) -> String {
        match &self.last {
            None => "it has made no call in this step".into(),
            Some(last) => format!("its last call was {last}, number {} of this step", self.completed),
        }
    }
}

/// What kind of fault kept a call from completing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Members made different calls.
    Mismatch,
    /// A member returned while others wait for it.
    Returned,
    /// A member failed while others wait for it. The members that wait are victims; the cause is the other's.
    Failed,
    /// A member did not come before the deadline.
    Late,
}

/// Why a call did not complete, and who is to blame. One text for all members.
#[derive(Clone, Debug)]
pub struct Blame {
    /// The kind of fault.
    pub fault: Fault,
    /// The number of the step: of `run` calls on the strategy, from 1.
    pub step: u64,
    /// The members that did not do what the others waited for.
    pub culprits: Vec<usize>,
    text: String,
}

impl Blame {
    /// Judges a group by those of its members that wait or are gone. `None` if all wait in equal calls: nobody is to
    /// blame so far.
    ///
    /// Where members made different calls, the call that most of them made is taken to be right; without such a call
    /// all who wait are culprits.
    pub fn judge(step: u64, standings: &[Standing]) -> Option<Self> {
        if all_agree(standings) {
            return None;
        }
        let calls = calls(standings);
        let (call, who) = calls.first()?;
        let n = standings[*who.first()?].completed + u64::from(!call.continues);
        if calls.len() > 1 {
            return Some(Self::mismatch(step, n, calls));
        }
        Self::gone(step, n, standings, &calls[0])
    }

    fn mismatch(step: u64, n: u64, mut calls: Vec<(&Fingerprint, Vec<usize>)>) -> Self {
        let most = calls.iter().map(|(_, who)| who.len()).max().unwrap_or(0);
        let tie = calls.iter().filter(|(_, who)| who.len() == most).count() > 1;
        let right = calls.iter().position(|(_, who)| who.len() == most).unwrap_or(0);
        let steps = calls.iter().filter(|(call, _)| call.operation == Operation::Minimize).count();
        let skipped = (1..calls.len()).contains(&steps);
        let right = calls.remove(right);
        let mut culprits: Vec<usize> = calls.iter().flat_map(|(_, who)| who).copied().collect();
        if tie {
            culprits.extend(&right.1);
        }
        culprits.sort_unstable();
        let others: Vec<_> = calls.iter().map(|(call, who)| called(who, call)).collect();
        Self {
            fault: Fault::Mismatch,
            step,
            culprits,
            text: format!(
                "step {step}, call {n}: {}, but {}; \
                 all replicas have to make the same calls in the same order, with equal dtypes, shapes and structure{}",
                called(&right.1, right.0),
                others.join(" and "),
                if skipped { instead_of_minimize() } else { "" },
            ),
        }
    }

    fn gone(step: u64, n: u64, standings: &[Standing], call: &(&Fingerprint, Vec<usize>)) -> Option<Self> {
        let (call, waiting) = call;
        let which = |gone: fn(&Presence) -> bool| -> Vec<usize> {
            (0..standings.len()).filter(|r| gone(&standings[*r].presence)).collect()
        };
        let failed = which(|p| matches!(p, Presence::Failed));
        let returned = which(|p| matches!(p, Presence::Returned));
        let (fault, gone, did, advice) = match (failed.is_empty(), returned.is_empty()) {
            (false, _) => (Fault::Failed, failed, "failed", "see its error for the cause"),
            (true, false) => {
                (Fault::Returned, returned, "returned", "all replicas have to make the same number of calls")
            }
            (true, true) => return None,
        };
        // Of most members that returned, those who still wait are the odd ones: they make an additional call.
        let additional = fault == Fault::Returned && gone.len() > waiting.len();
        Some(Self {
            fault,
            step,
            text: format!(
                "step {step}, call {n}: {} in {call}, but {} without making this call ({}); {advice}{}",
                names(waiting, "waits", "wait"),
                names(&gone, did, did),
                histories(&gone, standings),
                match (fault, call.operation) {
                    (Fault::Returned, Operation::Minimize) => instead_of_minimize(),
                    _ => "",
                },
            ),
            culprits: if additional { waiting.clone() } else { gone },
        })
    }

    /// Judges a group whose deadline has passed while some members still run.
    pub fn late(step: u64, standings: &[Standing], timeout: Duration) -> Self {
        let culprits: Vec<_> = (0..standings.len()).filter(|r| !standings[*r].is_settled()).collect();
        let waited = |(call, who): &(&Fingerprint, Vec<usize>)| {
            format!("{} {timeout:?} in {call}", names(who, "waited", "waited"))
        };
        let waits: Vec<_> = calls(standings).iter().map(waited).collect();
        Self {
            fault: Fault::Late,
            step,
            text: format!(
                "step {step}: {}, but {} not come ({}); \
                 look for a loop, a lock or slow input there, or raise the strategy's timeout or the call's",
                waits.join(" and "),
                names(&culprits, "has", "have"),
                histories(&culprits, standings),
            ),
            culprits,
        }
    }
}

impl Blame {
    /// Members made equal calls, some with values of other Rust types than member 0.
    pub fn other_types(step: u64, call: &Fingerprint, culprits: Vec<usize>) -> Self {
        let text = format!(
            "step {step}: {} {call} with values of another type than replica 0; give all the same type",
            names(&culprits, "called", "called"),
        );
        Self { fault: Fault::Mismatch, step, culprits, text }
    }

    /// A member failed inside of a call that it led.
    pub fn failed(step: u64, culprit: usize, call: &Fingerprint) -> Self {
        let text = format!("step {step}: replica {culprit} failed in {call}; see its error for the cause");
        Self { fault: Fault::Failed, step, culprits: vec![culprit], text }
    }
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Blame {}

/// What takes part in an optimizer's step without a loss.
fn instead_of_minimize() -> &'static str {
    "; a replica that has nothing to train on calls the optimizer's skip in place of minimize"
}

/// The calls in which members wait, each with its members, in the order of their first.
fn calls(standings: &[Standing]) -> Vec<(&Fingerprint, Vec<usize>)> {
    let mut calls: Vec<(&Fingerprint, Vec<usize>)> = Vec::new();
    for (replica, standing) in standings.iter().enumerate() {
        let Presence::Waiting(call) = &standing.presence else { continue };
        match calls.iter_mut().find(|(other, _)| other.matches(call)) {
            Some((_, who)) => who.push(replica),
            None => calls.push((call, vec![replica])),
        }
    }
    calls
}

fn called(who: &[usize], call: &Fingerprint) -> String {
    format!("{} {call}", names(who, "called", "called"))
}

fn histories(who: &[usize], standings: &[Standing]) -> String {
    match who {
        [one] => standings[*one].history(),
        many => many
            .iter()
            .map(|r| format!("replica {r}: {}", standings[*r].history()))
            .collect::<Vec<_>>()
            .join("; "),
    }
}

/// Whether everybody waits in equal calls: what is nearly always so, found without allocating.
fn all_agree(standings: &[Standing]) -> bool {
    let mut calls = standings.iter().map(|standing| match &standing.presence {
        Presence::Waiting(call) => Some(call),
        _ => None,
    });
    match calls.next() {
        Some(Some(first)) => calls.all(|call| call.is_some_and(|call| call.matches(first))),
        _ => false,
    }
}

/// `replica 2 waits`, `replicas 0, 2 and 3 wait`.
fn names(replicas: &[usize], singular: &str, plural: &str) -> String {
    match replicas {
        [] => format!("nobody {singular}"),
        [one] => format!("replica {one} {singular}"),
        [head @ .., last] => {
            let head: Vec<_> = head.iter().map(usize::to_string).collect();
            format!("replicas {} and {last} {plural}", head.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::Location;

    fn call(operation: Operation, detail: &'static str) -> Fingerprint {
        Fingerprint::new(operation, detail, Location::caller())
    }

    fn gone(presence: Presence) -> Standing {
        Standing { presence, completed: 2, last: Some(call(Operation::Barrier, "")) }
    }

    #[test]
    fn equal_calls_are_nobodys_fault() {
        let s = Standing::waiting(call(Operation::AllReduce, "SUM float32[2]"));
        assert!(Blame::judge(1, &[s.clone(), s]).is_none());
    }

    // INV-1
    #[test]
    fn mismatch_names_both_replicas_and_both_calls() {
        let a = Standing::waiting(call(Operation::AllReduce, "SUM float32[2]"));
        let b = Standing::waiting(call(Operation::AllReduce, "SUM float32[3]"));
        let blame = Blame::judge(5, &[a.clone(), a, b]).unwrap();
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
        let a = Standing::waiting(call(Operation::AllReduce, "SUM float32[2]"));
        let b = Standing::waiting(call(Operation::AllGather, ""));
        let c = Standing::waiting(call(Operation::Barrier, ""));
        let blame = Blame::judge(1, &[b.clone(), a.clone(), a.clone(), c]).unwrap();
        assert_eq!(blame.culprits, [0, 3]);
        let text = blame.to_string();
        for part in [
            "replicas 1 and 2 called all_reduce",
            "but replica 0 called all_gather",
            "and replica 3 called barrier",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(
            Blame::judge(1, &[a, b]).unwrap().culprits,
            [0, 1],
            "nobody can say which of two is right"
        );
    }

    #[test]
    fn who_waits_while_most_have_returned_makes_an_additional_call() {
        let a = Standing::waiting(call(Operation::MergeCall, ""));
        let blame = Blame::judge(1, &[gone(Presence::Returned), a, gone(Presence::Returned)]).unwrap();
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
    fn late_members_are_named_with_all_calls_that_wait_for_them() {
        let a = Standing::waiting(call(Operation::AllReduce, ""));
        let b = Standing::waiting(call(Operation::AllGather, ""));
        let text = Blame::late(1, &[Standing::running(), a, b, Standing::running()], Duration::from_secs(1))
            .to_string();
        for part in [
            "replica 1 waited 1s in all_reduce",
            "replica 2 waited 1s in all_gather",
            "replicas 0 and 3 have not",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_replica_that_returned_is_named_with_its_history() {
        let a = Standing::waiting(call(Operation::MergeCall, ""));
        let blame = Blame::judge(1, &[a.clone(), gone(Presence::Returned), a]).unwrap();
        assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Returned, &[1][..]));
        let text = blame.to_string();
        assert!(text.contains("replicas 0 and 2 wait in merge_call"), "{text}");
        assert!(
            text.contains("replica 1 returned without making this call (its last call was barrier"),
            "{text}"
        );
    }

    #[test]
    fn where_a_step_is_left_out_the_text_names_what_to_call_instead() {
        let step = Standing::waiting(call(Operation::Minimize, "adam 1"));
        let sum = Standing::waiting(call(Operation::AllReduce, "SUM float32[]"));
        let text = |standings: &[Standing]| Blame::judge(1, standings).unwrap().to_string();
        for standings in [
            vec![step.clone(), gone(Presence::Returned)],
            vec![step.clone(), sum.clone()],
            vec![sum.clone(), sum.clone(), step.clone()],
        ] {
            assert!(text(&standings).contains("calls the optimizer's skip"), "{}", text(&standings));
        }
        let other = Standing::waiting(call(Operation::Minimize, "adam 2"));
        for standings in [
            vec![sum.clone(), gone(Presence::Returned)],
            vec![step.clone(), gone(Presence::Failed)],
            vec![step, other],
        ] {
            assert!(!text(&standings).contains("skip"), "{}", text(&standings));
        }
    }

    // INV-5
    #[test]
    fn a_failure_is_the_cause_before_a_return() {
        let a = Standing::waiting(call(Operation::MergeCall, ""));
        let blame = Blame::judge(1, &[a, gone(Presence::Returned), gone(Presence::Failed)]).unwrap();
        assert_eq!(blame.fault, Fault::Failed);
        assert!(blame.to_string().contains("replica 2 failed"), "{blame}");
    }

    #[test]
    fn lateness_names_who_did_not_come_and_what_to_do() {
        let a = Standing::waiting(call(Operation::AllReduce, "SUM float32[2]"));
        let blame = Blame::late(3, &[Standing::running(), a], Duration::from_secs(60));
        assert_eq!(blame.culprits, [0]);
        let text = blame.to_string();
        for part in
            ["replica 1 waited 60s in all_reduce", "replica 0 has not come", "made no call", "timeout"]
        {
            assert!(text.contains(part), "{text}");
        }
    }
}
