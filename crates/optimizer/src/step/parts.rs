//! A step that calls code of users, in parts: no replica waits for such code beyond the deadline.

use super::Step;
use super::decide::{StepDecision, StepLog, Verdict};
use crate::progress::Change;
use crate::reduce::operands::Operands;
use crate::sync::StepSync;
use crate::{Inner, Transform, reduce};
use distribute_base::internal::ReplicaGradient;
use distribute_base::{Error, Result};
use distribute_core::internal::{Mode, enter};
use std::sync::Arc;

impl Inner {
    /// Returns whether gradients are needed whole after the reduction: by closures, or by the backend.
    pub(super) fn needs_whole_gradients(&self) -> bool {
        !self.backend.is_one_pass(self) || self.closures() > 0
    }

    /// Decides, exchanges gradients, reduces and updates, as [`decide_and_apply`](Self::decide_and_apply) does, if
    /// whole gradients are needed. Parts end at closures; a one-pass backend applies the transforms after the last
    /// closure by itself.
    pub(super) fn apply_in_parts(&self, log: &mut StepLog, step: Step<'_>) -> Result<StepDecision> {
        let (closures, rest) = self.after_reduce.split_at(self.closures());
        let mut parts: Vec<&[Transform]> = reduce::parts(closures).collect();
        if !self.backend.is_one_pass(self) && (parts.is_empty() || !rest.is_empty()) {
            parts.push(rest);
        }
        let Some((first, others)) = parts.split_first() else {
            return Err(Error::invalid(log.operation, "there is nothing that needs whole gradients"));
        };
        // Replica 0's right to make the step, from the first part to the last.
        let mut change = None;
        let (right, caller) = (&mut change, &mut *log);
        let Step { sync, copies, .. } = step;
        let (decision, mut gradients) = sync.run_on_leader(move |threads| {
            let headers = step.gathered.headers();
            let decision = self.decide(caller, &step, &headers)?;
            let mut reduced = Vec::new();
            if decision.verdict == Verdict::Apply {
                let weights = decision.weights(&headers);
                let replicas = &step.weighted(&weights);
                let (change, operands) =
                    self.exchange(caller, &step, &headers, &weights, replicas, threads)?;
                *right = Some(change);
                reduced = reduce::reduced(first, &self.parameters, &operands, threads)?;
            }
            Ok((decision, Arc::new(reduced)))
        })?;
        if decision.verdict == Verdict::Skip {
            return Ok(decision);
        }
        gradients = self.call_closure(sync, first, gradients, change.as_ref())?;
        for part in others {
            let all = gradients;
            gradients = sync.run_on_leader(move |threads| {
                let all = Operands::new(&self.parameters, &[(1., all.as_slice())], 1)?;
                Ok(Arc::new(reduce::reduced(part, &self.parameters, &all, threads)?))
            })?;
            gradients = self.call_closure(sync, part, gradients, change.as_ref())?;
        }
        let update = self.update(log, copies, &decision, rest);
        self.backend.apply(&update, sync, &gradients, change.as_ref())?;
        Ok(decision)
    }

    /// The gradients after the closure at the end of a part, if there is one.
    fn call_closure(
        &self,
        sync: &StepSync<'_>,
        part: &[Transform],
        gradients: Arc<Vec<Option<ReplicaGradient>>>,
        change: Option<&Change<'_>>,
    ) -> Result<Arc<Vec<Option<ReplicaGradient>>>> {
        let Some(closure) = part.last().and_then(Transform::closure) else { return Ok(gradients) };
        sync.call_on_leader("a closure of after_reduce on replica 0", || {
            // Slots that are looked at here would be those of half a step.
            let _slots = change.map(Change::slots);
            let _once = enter(Mode::CrossReplica(self.parameters.strategy.clone()));
            Ok(Arc::new(reduce::changed(closure, &self.parameters, Arc::unwrap_or_clone(gradients))?))
        })
    }

    /// The number of transforms after the reduction up to the last closure.
    fn closures(&self) -> usize {
        self.after_reduce
            .iter()
            .rposition(|transform| transform.closure().is_some())
            .map_or(0, |last| last + 1)
    }
}
