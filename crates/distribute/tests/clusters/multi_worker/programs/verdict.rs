//! The expected errors of all workers after a fault.

use super::program::{Call, Fault, Kind, Mistake, Program, Wrong};
use distribute::Error;
use distribute::cluster::{Blame, Fault as What};

/// The result of one worker in the act in which the fault occurs.
pub struct Told {
    pub worker: usize,
    /// The error, or `None` if the worker has none.
    pub error: Option<Error>,
}

impl Told {
    fn blame(&self) -> Option<&Blame> {
        self.error.as_ref()?.blame()
    }

    /// Returns the part of the error's message that must be the same on all workers. It omits the local replica that
    /// got the error.
    fn text(&self) -> Option<String> {
        let error = self.error.as_ref()?;
        Some(self.blame().map_or_else(|| error.to_string(), ToString::to_string))
    }
}

impl Program {
    /// Checks the results of all workers: those without a separate error must have the same message, which names the
    /// culprit.
    pub fn check(&self, told: &[Told]) -> Result<(), String> {
        let own = self.has_a_separate_error();
        let culprit = self.culprit();
        let others: Vec<&Told> = told.iter().filter(|told| told.worker != culprit).collect();
        let its = told.iter().find(|told| told.worker == culprit);
        // With one worker, there are no others.
        let first = others.first().copied().or(its).ok_or("nobody was told anything")?;
        let text = first.text().ok_or_else(|| format!("worker {} went on", first.worker))?;
        for told in &others {
            match told.text() {
                None => return Err(format!("worker {} went on, others got: {text}", told.worker)),
                Some(other) if other != text => {
                    return Err(format!(
                        "on worker {}: {other}\non worker {}: {text}",
                        told.worker, first.worker
                    ));
                }
                Some(_) => {}
            }
        }
        if !(own && others.is_empty()) {
            self.names_the_culprit(first)?;
        }
        match (its, own) {
            (None, _) => Ok(()),
            (Some(its), true) => self.is_its_own(its),
            (Some(its), false) => match its.text() {
                None => Err(format!("worker {culprit} went on, others got: {text}")),
                Some(other) if other != text => {
                    Err(format!("on the faulty worker {culprit}: {other}\non others: {text}"))
                }
                Some(_) => Ok(()),
            },
        }
    }

    /// Returns whether the faulty worker's own error is a separate one, which is the cause of the others.
    fn has_a_separate_error(&self) -> bool {
        matches!(
            self.fault.kind,
            Kind::Replica(_, Wrong::Fails | Wrong::Panics | Wrong::Backward { .. })
                | Kind::Worker(Mistake::Unable)
        )
    }

    fn is_its_own(&self, its: &Told) -> Result<(), String> {
        let error = its.error.as_ref().ok_or("the faulty worker went on")?;
        let text = error.to_string();
        let named = match &self.fault.kind {
            Kind::Replica(..) => text.starts_with(&format!("replica {} (", self.fault.replica)),
            Kind::Worker(_) => true,
        };
        let cause = text.contains("planted") || text.contains("parts for");
        if named && cause { Ok(()) } else { Err(format!("on the faulty worker: {text}")) }
    }

    fn names_the_culprit(&self, told: &Told) -> Result<(), String> {
        let Fault { replica, kind, .. } = &self.fault;
        let Some(blame) = told.blame() else {
            // In a call that all workers make, the culprit itself reports its failure.
            let text = told.text().unwrap_or_default();
            let named =
                text.contains(&format!("worker {} failed: ", self.culprit())) && text.contains("planted");
            return if named { Ok(()) } else { Err(format!("no blame in: {text}")) };
        };
        let all_of_it: Vec<usize> =
            (0..self.replicas).map(|local| self.culprit() * self.replicas + local).collect();
        let (expected, of) = match kind {
            Kind::Worker(Mistake::Shape | Mistake::DType) | Kind::Replica(..) => {
                (vec![*replica], self.workers * self.replicas)
            }
            Kind::Worker(_) => (all_of_it.clone(), self.workers),
        };
        // If one of two replicas differs, the culprit is unknown.
        let tie = blame.fault == What::Mismatch && of == 2;
        let exact = blame.culprits == expected;
        // If the deadline of the others passes before that on its worker, they have not received the calls of any
        // replica of this worker, and name all of them.
        let late =
            blame.fault == What::TimedOut && blame.culprits.iter().all(|replica| all_of_it.contains(replica));
        let named = expected.iter().all(|replica| blame.culprits.contains(replica));
        if !named || !(exact || tie || late || self.may_name_more(blame)) {
            return Err(format!("culprits {:?}, not {expected:?}: {blame}", blame.culprits));
        }
        if self.faults().contains(&blame.fault) {
            Ok(())
        } else {
            Err(format!("{:?} is none of {:?}: {blame}", blame.fault, self.faults()))
        }
    }

    /// Returns whether the error may name more replicas than the culprit. This happens if a call in which the replicas
    /// of one worker first meet is replaced: the correct replicas of that worker then have not reached the call that
    /// the other workers wait in.
    fn may_name_more(&self, blame: &Blame) -> bool {
        let Kind::Replica(at, wrong) = &self.fault.kind else { return false };
        let super::program::Act::Run(calls) = self.planted() else { return false };
        let differs = matches!(wrong, Wrong::Other(_) | Wrong::Additional(_) | Wrong::Missing);
        let local = calls[*at..].iter().find(|call| call.is_rendezvous()).is_some_and(Call::is_local_first);
        blame.fault == What::Mismatch && differs && local && self.replicas > 1
    }

    fn faults(&self) -> &'static [What] {
        match &self.fault.kind {
            Kind::Replica(_, Wrong::Returns) => &[What::Returned],
            Kind::Replica(_, Wrong::Fails | Wrong::Panics | Wrong::Backward { .. }) => &[What::Failed],
            // The following calls may be equal to the missing one: then the replica returns before the others.
            Kind::Replica(_, Wrong::Missing) => &[What::Mismatch, What::Returned],
            Kind::Replica(_, Wrong::Late) | Kind::Worker(Mistake::Late) => &[What::TimedOut],
            Kind::Replica(..) | Kind::Worker(Mistake::Other(_) | Mistake::Shape | Mistake::DType) => {
                &[What::Mismatch]
            }
            Kind::Worker(Mistake::Unable) => &[What::Failed],
            Kind::Worker(Mistake::Ends | Mistake::Fails | Mistake::Panics) => &[What::Lost],
        }
    }
}
