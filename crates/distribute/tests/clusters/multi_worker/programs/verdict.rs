//! What all workers have to be told of a fault.

use super::program::{Call, Fault, Kind, Mistake, Program, Wrong};
use distribute::Error;
use distribute::cluster::{Blame, Fault as What};

/// What one worker got for the act of the fault.
pub struct Told {
    pub worker: usize,
    /// None where it knows of none.
    pub error: Option<Error>,
}

impl Told {
    fn blame(&self) -> Option<&Blame> {
        self.error.as_ref()?.blame()
    }

    /// What has to be the same on all workers: not around it which replica of this worker got it.
    fn text(&self) -> Option<String> {
        let error = self.error.as_ref()?;
        Some(self.blame().map_or_else(|| error.to_string(), ToString::to_string))
    }
}

impl Program {
    /// One text on all that got no error of their own, which names the one that is to blame.
    pub fn judge(&self, told: &[Told]) -> Result<(), String> {
        let own = self.has_an_error_of_its_own();
        let culprit = self.culprit();
        let others: Vec<&Told> = told.iter().filter(|told| told.worker != culprit).collect();
        let its = told.iter().find(|told| told.worker == culprit);
        // Of one worker there are no others.
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

    /// Whether the faulty worker's own error is another one: the cause.
    fn has_an_error_of_its_own(&self) -> bool {
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
            // Told by the worker itself, in what all of them do together.
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
        // Of two that differ, nobody can say which is wrong.
        let tie = blame.fault == What::Mismatch && of == 2;
        let exact = blame.culprits == expected;
        // Where the others' deadline passes before that of its own worker, they know of no replica that it has not
        // come.
        let late =
            blame.fault == What::Late && blame.culprits.iter().all(|replica| all_of_it.contains(replica));
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

    /// Where a call of one worker's replicas, in which it would then call the others, meets another call: the replicas
    /// of that worker that do the right thing are elsewhere than those of others, which are inside of it already.
    fn may_name_more(&self, blame: &Blame) -> bool {
        let Kind::Replica(at, wrong) = &self.fault.kind else { return false };
        let super::program::Act::Run(calls) = self.planted() else { return false };
        let differs = matches!(wrong, Wrong::Other(_) | Wrong::Additional(_) | Wrong::Missing);
        let local = calls[*at..].iter().find(|call| call.meets()).is_some_and(Call::is_local_first);
        blame.fault == What::Mismatch && differs && local && self.replicas > 1
    }

    fn faults(&self) -> &'static [What] {
        match &self.fault.kind {
            Kind::Replica(_, Wrong::Returns) => &[What::Returned],
            Kind::Replica(_, Wrong::Fails | Wrong::Panics | Wrong::Backward { .. }) => &[What::Failed],
            // Those after it may be like it: then it is through too early.
            Kind::Replica(_, Wrong::Missing) => &[What::Mismatch, What::Returned],
            Kind::Replica(_, Wrong::Late) | Kind::Worker(Mistake::Late) => &[What::Late],
            Kind::Replica(..) | Kind::Worker(Mistake::Other(_) | Mistake::Shape | Mistake::DType) => {
                &[What::Mismatch]
            }
            Kind::Worker(Mistake::Unable) => &[What::Failed],
            Kind::Worker(Mistake::Ends | Mistake::Fails | Mistake::Panics) => &[What::Lost],
        }
    }
}
