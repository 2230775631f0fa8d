//! Steps that need complete gradients, split into parts so that no replica waits for the program's code beyond the
//! deadline.

use super::StepContext;
use super::decide::{StepAction, StepDecision, StepLog};
use crate::progress::Change;
use crate::reduce::operands::Operands;
use crate::reduce::routed;
use crate::sync::{StepSync, Threads};
use crate::{Inner, Transform, reduce};
use distribute_base::internal::ReplicaGradient;
use distribute_base::{Error, Result};
use distribute_core::internal::{Mode, enter};
use std::sync::Arc;

impl Inner {
    /// Acts like [`decide_and_apply`](Self::decide_and_apply), for steps that need complete gradients. A part ends
    /// after each closure. Transforms after the last closure form the last part, unless the backend applies them in its
    /// single pass.
    pub(super) fn apply_in_parts(&self, log: &mut StepLog, step: StepContext<'_>) -> Result<StepDecision> {
        let (with_closures, rest) = self.after_reduce.split_at(self.end_of_closures());
        let mut parts: Vec<&[Transform]> = reduce::split_after_closures(with_closures).collect();
        if !self.backend.is_one_pass(self) && (parts.is_empty() || !rest.is_empty()) {
            parts.push(rest);
        }
        let Some((first, others)) = parts.split_first() else {
            return Err(Error::invalid(log.operation, "nothing needs complete gradients"));
        };
        // Replica 0's right to make the step, from the first part to the last.
        let mut change = None;
        let (right, caller) = (&mut change, &mut *log);
        let StepContext { sync, copies, .. } = step;
        let (decision, mut gradients) = sync.run_on_leader(move |threads| {
            let headers = step.gathered.headers();
            let decision = self.decide(caller, &step, &headers)?;
            let mut reduced = Vec::new();
            if decision.action == StepAction::Apply {
                let weights = decision.weights(&headers);
                let replicas = &step.weighted(&weights);
                let (change, operands) =
                    self.exchange(caller, &step, &headers, &weights, replicas, threads)?;
                *right = Some(change);
                reduced = self.reduce(first, &operands, sync, threads)?;
            }
            Ok((decision, Arc::new(reduced)))
        })?;
        if decision.action == StepAction::Skip {
            return Ok(decision);
        }
        gradients = self.call_closure(sync, first, gradients, change.as_ref())?;
        for part in others {
            let all = gradients;
            gradients = sync.run_on_leader(move |threads| {
                let all = Operands::new(&self.parameters, &[(1., all.as_slice())], 1)?;
                Ok(Arc::new(self.reduce(part, &all, sync, threads)?))
            })?;
            gradients = self.call_closure(sync, part, gradients, change.as_ref())?;
        }
        let update = self.update(log, copies, &decision, rest);
        self.backend.apply(&update, sync, &gradients, change.as_ref())?;
        Ok(decision)
    }

    /// Reduces and transforms gradients. Norms include the rows that other workers own.
    fn reduce(
        &self,
        part: &[Transform],
        all: &Operands<'_>,
        sync: &StepSync<'_>,
        threads: &Threads<'_>,
    ) -> Result<Vec<Option<ReplicaGradient>>> {
        reduce::reduce_with_norms(part, &self.parameters, all, threads, |variables, mine| {
            routed::all_squares(|| sync.group_call("its norms"), &self.parameters, variables, mine)
        })
    }

    /// Calls the closure at the end of a part, and returns the gradients that it has changed. If the part has no
    /// closure, returns the gradients unchanged.
    fn call_closure(
        &self,
        sync: &StepSync<'_>,
        part: &[Transform],
        gradients: Arc<Vec<Option<ReplicaGradient>>>,
        change: Option<&Change<'_>>,
    ) -> Result<Arc<Vec<Option<ReplicaGradient>>>> {
        let Some(closure) = part.last().and_then(Transform::closure) else { return Ok(gradients) };
        sync.call_on_leader("a closure of after_reduce on replica 0", || {
            // Slots that are read here would belong to an incomplete step.
            let _slots = change.map(Change::slots);
            let _once = enter(Mode::CrossReplica(self.parameters.strategy.clone()));
            Ok(Arc::new(reduce::apply_closure(closure, &self.parameters, Arc::unwrap_or_clone(gradients))?))
        })
    }
}
