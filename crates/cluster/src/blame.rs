//! Who did not do what the others waited for: a pure function of where everybody stands.

use crate::Fingerprint;
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
    /// Judges a group of which every member waits or is gone. `None` if all wait in equal calls: nobody is to blame.
    pub fn judge(step: u64, standings: &[Standing]) -> Option<Self> {
        let waiting = waiting(standings);
        let (first, call) = *waiting.first()?;
        if let Some((other, differs)) = waiting.iter().find(|(_, f)| !f.matches(call)) {
            let n = standings[first].completed + 1;
            let culprits = waiting.iter().filter(|(_, f)| !f.matches(call)).map(|(r, _)| *r).collect();
            return Some(Self {
                fault: Fault::Mismatch,
                step,
                culprits,
                text: format!(
                    "step {step}, call {n}: replica {first} called {call}, but replica {other} called {differs}; \
                     all replicas have to make the same calls in the same order, with equal dtypes, shapes and structure"
                ),
            });
        }
        let gone: Vec<_> = (0..standings.len()).filter(|r| standings[*r].is_gone()).collect();
        let (who, standing) = (*gone.first()?, &standings[*gone.first()?]);
        let failed = gone.iter().any(|r| matches!(standings[*r].presence, Presence::Failed));
        let (fault, did) = if failed { (Fault::Failed, "failed") } else { (Fault::Returned, "returned") };
        let who = gone
            .iter()
            .copied()
            .find(|r| failed == matches!(standings[*r].presence, Presence::Failed))
            .unwrap_or(who);
        let history = if who == gone[0] { standing.history() } else { standings[who].history() };
        Some(Self {
            fault,
            step,
            culprits: gone,
            text: format!(
                "step {step}, call {}: {} in {call}, but replica {who} {did} without making this call ({history}); \
                 all replicas have to make the same number of calls",
                standings[first].completed + 1,
                names(&waiting.iter().map(|(r, _)| *r).collect::<Vec<_>>(), "waits", "wait"),
            ),
        })
    }

    /// Judges a group whose deadline has passed while some members still run.
    pub fn late(step: u64, standings: &[Standing], timeout: Duration) -> Self {
        let waiting = waiting(standings);
        let culprits: Vec<_> = (0..standings.len()).filter(|r| !standings[*r].is_settled()).collect();
        let call = waiting.first().map_or_else(|| "a call".into(), |(_, f)| f.to_string());
        let histories: Vec<_> =
            culprits.iter().map(|r| format!("replica {r}: {}", standings[*r].history())).collect();
        Self {
            fault: Fault::Late,
            step,
            text: format!(
                "step {step}: {} {timeout:?} in {call}, but {} not come ({}); \
                 look for a loop, a lock or slow input there, or raise the strategy's timeout",
                names(&waiting.iter().map(|(r, _)| *r).collect::<Vec<_>>(), "waited", "waited"),
                names(&culprits, "has", "have"),
                histories.join("; "),
            ),
            culprits,
        }
    }
}

impl Blame {
    /// Members made equal calls with values of different Rust types.
    pub fn other_types(step: u64, call: &Fingerprint) -> Self {
        let text = format!(
            "step {step}: replicas called {call} with values of different types; give all the same type"
        );
        Self { fault: Fault::Mismatch, step, culprits: Vec::new(), text }
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

fn waiting(standings: &[Standing]) -> Vec<(usize, &Fingerprint)> {
    standings
        .iter()
        .enumerate()
        .filter_map(|(r, s)| match &s.presence {
            Presence::Waiting(f) => Some((r, f)),
            _ => None,
        })
        .collect()
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
    use crate::Operation;
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
            "replica 0 called all_reduce (SUM float32[2])",
            "replica 2 called",
            "[3]",
            "blame.rs",
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
