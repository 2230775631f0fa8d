//! The execution of a coordinator's program.

use super::chief::call;
use super::plan::Act;
use super::world::{Event, World};
use distribute_coordinator::ResourceId;
use distribute_coordinator::dispatch::Refusal;

impl World {
    /// Continues the program until it must wait or has finished.
    pub fn proceed(&mut self, chief: usize) {
        loop {
            let now = self.agenda.now();
            let state = &mut self.chiefs[chief];
            if state.is_gone || state.has_finished || !state.beginning.is_empty() || now < state.rests {
                return;
            }
            let act = self.plan.acts.get(state.next).copied();
            let is_over = match act {
                None | Some(Act::Join) => self.join(chief),
                Some(Act::Create(which)) => {
                    self.create(chief, which);
                    true
                }
                Some(Act::Forget(which)) => {
                    if let Some(id) = state.resources[which].take() {
                        state.dispatch.forget(id);
                    }
                    true
                }
                Some(Act::Schedule(which)) => state.next < state.skipped || self.schedule(chief, which),
                Some(Act::Rest(time)) => {
                    state.rests = now + time;
                    self.agenda.at(now + time, Event::Act(chief));
                    true
                }
            };
            if !is_over {
                return;
            }
            let state = &mut self.chiefs[chief];
            state.has_finished = act.is_none();
            state.next += 1;
        }
    }

    /// Returns the resources that have the indices `uses` in the program, or `None` if one of them does not exist.
    fn resources(&self, chief: usize, uses: &[usize]) -> Option<Vec<ResourceId>> {
        uses.iter().map(|which| self.chiefs[chief].resources[*which]).collect()
    }

    fn create(&mut self, chief: usize, which: usize) {
        let Some(uses) = self.resources(chief, &self.plan.resources[which].uses) else { return };
        let state = &mut self.chiefs[chief];
        match state.dispatch.create(call(which, uses.into_iter())) {
            Ok(id) => {
                state.resources[which] = Some(id);
                state.variables.insert(id, (None, false));
            }
            Err(refusal) => self.checks.breaks(format!("a resource is refused: {refusal:?}")),
        }
    }

    /// Schedules a closure, unless one of its resources does not exist. Returns `true` if the program can continue, and
    /// `false` if it must wait for other closures to end.
    fn schedule(&mut self, chief: usize, which: usize) -> bool {
        let Some(uses) = self.resources(chief, &self.plan.closures[which].uses) else { return true };
        let state = &mut self.chiefs[chief];
        match state.dispatch.schedule(call(which, uses.into_iter())) {
            Ok(id) => {
                state.open.insert(id, which);
                let queued = state.dispatch.queued();
                if queued > self.plan.limits.queue {
                    self.checks.breaks(format!("{queued} closures wait"));
                }
                true
            }
            Err(Refusal::Full) => false,
            // The program receives the failure, and schedules the closure again.
            Err(Refusal::Failing) => self.settle(chief) && self.schedule(chief, which),
            Err(refusal) => {
                self.checks.breaks(format!("a closure is refused: {refusal:?}"));
                true
            }
        }
    }

    fn join(&mut self, chief: usize) -> bool {
        if self.chiefs[chief].dispatch.has_failed() && !self.settle(chief) {
            return false;
        }
        self.chiefs[chief].dispatch.is_idle()
    }

    /// Cancels all closures after one has failed, unless they are already cancelled. Returns `true` if all of them have
    /// ended, so that the program has now received the failure.
    fn settle(&mut self, chief: usize) -> bool {
        let now = self.agenda.now();
        let state = &mut self.chiefs[chief];
        if !state.dispatch.is_cancelling() {
            state.dispatch.cancel();
            // Running closures get some time from now on.
            state.busy.iter_mut().flatten().for_each(|(_, since)| *since = now);
            self.take_outcomes(chief);
        }
        let told = self.chiefs[chief].dispatch.take_failure();
        if let Some(failure) = &told {
            self.check_told(chief, failure);
        }
        told.is_some()
    }
}
