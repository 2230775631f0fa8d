//! The error feedback of compressed gradients: the residual of each replica, and the factors that all replicas share.
//!
//! A residual is the part of a replica's contributions that has not been sent. A contribution is a gradient, multiplied
//! by its weight in the sum. All applied gradients and the residuals of all replicas therefore add up to the sum of all
//! contributions.

// - INV-94: a residual changes in the same step as the variables, or not at all: not in a step that fails or is
//   skipped. Tests: `optimizer/src/feedback.rs`, `multi_worker/compression/feedback.rs`.

use crate::Inner;
use crate::parameters::Parameters;
use bytes::Bytes;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_checkpoint::{Reader, Writer};
use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::group::numbers;
use distribute_core::internal::{read_as, require_names};
use distribute_tensor::HostTensor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::panic::Location;
use std::sync::Mutex;

/// The residuals of one replica, by variable. They are empty for a variable that has not been compressed yet.
pub(crate) type Residuals = Vec<Vec<f32>>;

/// The error feedback of the replicas of this process.
#[derive(Debug, Default)]
pub(crate) struct Feedback(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The residuals of the replicas of this process. The list is empty before the first step.
    replicas: Vec<Residuals>,
    /// The factor `Q` with which each variable's gradient is compressed, which is the same on all workers; empty before
    /// the variable has been compressed.
    factors: Vec<Vec<f32>>,
    /// The step that the residuals belong to, from 1; 0 before the first step.
    step: u64,
    /// The result of the step in progress.
    pending: Option<Pending>,
    /// Memory that is reused in the next step.
    spare: Vec<Vec<f32>>,
}

/// The error feedback after a step that is not complete yet.
#[derive(Debug)]
struct Pending {
    /// The sequence number of the step, from 1.
    step: u64,
    /// The new residuals of the replicas of this process: the local replica, the variable and the residual.
    residuals: Vec<Residual>,
    /// The new factors of variables.
    factors: Vec<(usize, Vec<f32>)>,
}

/// A local replica, a variable, and the residual of the variable's gradients on the replica.
pub(crate) type Residual = (usize, usize, Vec<f32>);

/// The description of the residuals in a checkpoint.
#[derive(Serialize, Deserialize)]
enum Saved {
    /// The number of replicas whose residuals are saved.
    Replicas(usize),
    /// The checkpoint has no residuals, because it is sent to another worker, which keeps its own.
    Kept,
}

impl Feedback {
    /// Calls `then` with the residual of a variable on a local replica, and returns the result of `then`. The residual
    /// is empty if there is none.
    pub(crate) fn with_residual<R>(
        &self,
        replica: usize,
        variable: usize,
        then: impl FnOnce(&[f32]) -> R,
    ) -> R {
        let residual = {
            let mut state = lock(&self.0);
            state.residual(replica, variable).map(std::mem::take).unwrap_or_default()
        };
        // Not under the lock, because the replicas' threads do this at the same time.
        let result = then(&residual);
        if let Some(place) = lock(&self.0).residual(replica, variable) {
            *place = residual;
        }
        result
    }

    /// Returns the factor of a variable, or `initial` if it has none.
    pub(crate) fn factor(&self, variable: usize, initial: impl FnOnce() -> Vec<f32>) -> Vec<f32> {
        let factor = lock(&self.0).factors.get(variable).filter(|factor| !factor.is_empty()).cloned();
        factor.unwrap_or_else(initial)
    }

    /// Returns memory for `len` numbers, whose contents are arbitrary.
    pub(crate) fn memory(&self, len: usize) -> Vec<f32> {
        let mut state = lock(&self.0);
        let found = state.spare.iter().position(|vector| vector.len() == len);
        found.map_or_else(|| vec![0.; len], |at| state.spare.swap_remove(at))
    }

    /// Begins step number `step`. Discards the result of an earlier attempt.
    pub(crate) fn begin(&self, step: u64) {
        let mut state = lock(&self.0);
        state.discard();
        state.pending = Some(Pending { step, residuals: Vec::new(), factors: Vec::new() });
    }

    /// Sets the residuals in the result of the step in progress. Call this before the gradients are sent: once the
    /// other workers have them, they can complete the step even if this worker fails.
    // INV-94
    pub(crate) fn prepare(&self, residuals: impl IntoIterator<Item = Residual>) {
        if let Some(pending) = &mut lock(&self.0).pending {
            pending.residuals = residuals.into_iter().collect();
        }
    }

    /// Sets the factors in the result of the step in progress.
    pub(crate) fn prepare_factors(&self, factors: Vec<(usize, Vec<f32>)>) {
        if let Some(pending) = &mut lock(&self.0).pending {
            pending.factors = factors;
        }
    }

    /// Makes the result of step number `step` the current state, if there is such a result. Discards the result of any
    /// other step.
    // INV-94
    pub(crate) fn commit(&self, step: u64) {
        lock(&self.0).complete(step);
    }

    /// Continues after step number `step`, which the other workers have completed. If this worker has sent its
    /// contribution to that step, it keeps the residuals of that step. It discards residuals of any other step: they
    /// were sent in a step that this worker has not seen, or belong to an older checkpoint.
    // INV-42, INV-94
    fn keep(&self, step: u64) {
        let mut state = lock(&self.0);
        let has_sent = state.pending.as_ref().is_some_and(|pending| pending.step == step);
        if !has_sent && state.step != step {
            state.replicas.clear();
        }
        state.complete(step);
    }

    /// Adds the state to a checkpoint. On the chief, this includes the residuals of all replicas if workers make calls.
    pub(crate) fn save(&self, optimizer: &Inner, prefix: &str, writer: &mut Writer) -> Result<()> {
        let parameters = &*optimizer.parameters;
        if !parameters.compression().has_feedback() {
            return Ok(());
        }
        let names = || parameters.variables.iter().map(|(name, _)| name).enumerate();
        for (number, name) in names() {
            let factor = self.factor(number, Vec::new);
            if !factor.is_empty() {
                writer.insert(factor_name(prefix, name), HostTensor::vector(factor))?;
            }
        }
        let world = parameters.strategy.world();
        let saved = match self.gather(optimizer)? {
            Gathered::ToOther => return Ok(()),
            // Workers that agree on a position after a failure do not make calls.
            Gathered::NoCalls if world.is_multi_worker() => Saved::Kept,
            Gathered::NoCalls => {
                let state = lock(&self.0);
                for (replica, residuals) in state.replicas.iter().enumerate() {
                    for (residual, (_, name)) in residuals.iter().zip(names()) {
                        if !residual.is_empty() {
                            let residual = HostTensor::vector(residual.clone());
                            writer.insert(residual_name(prefix, replica, name), residual)?;
                        }
                    }
                }
                Saved::Replicas(world.replicas())
            }
            Gathered::Here(all) => {
                for (replica, number, residual) in all {
                    let (name, _) = &parameters.variables[number];
                    writer.insert(residual_name(prefix, replica, name), HostTensor::vector(residual))?;
                }
                Saved::Replicas(world.num_replicas_in_sync())
            }
        };
        writer.metadata(metadata_key(prefix), serde_json::to_value(saved).unwrap_or_default());
        Ok(())
    }

    /// Gathers the residuals of all replicas on the chief, one variable after another.
    fn gather(&self, optimizer: &Inner) -> Result<Gathered> {
        const OPERATION: &str = "Checkpoint::save";
        let parameters = &*optimizer.parameters;
        let (strategy, at) = (&parameters.strategy, Location::caller());
        let world = strategy.world();
        let call = |what: &str| {
            let detail = format!("{} {}: {what}", optimizer.groups.rule().name(), optimizer.number);
            Fingerprint::new(Operation::ReadVariable, detail, at)
        };
        let has = |number: usize| -> u8 {
            let state = lock(&self.0);
            let is_there = |residuals: &Residuals| residuals.get(number).is_some_and(|one| !one.is_empty());
            state.replicas.iter().any(is_there).into()
        };
        // A worker that has replaced another may have none yet.
        let mine: Bytes = (0..parameters.variables.len()).map(has).collect::<Vec<_>>().into();
        let count = mine.len();
        let flags = strategy.worker_call(
            OPERATION,
            || call("residuals"),
            |mut calling| calling.all_gather_sized("its residuals", mine, |_| count),
        )?;
        let Some(flags) = flags else { return Ok(Gathered::NoCalls) };
        let mut all = Vec::new();
        for number in (0..count).filter(|number| flags.iter().any(|flags| flags[*number] != 0)) {
            let (name, variable) = &parameters.variables[number];
            let len = variable.elem_count();
            let received = strategy.worker_call(
                OPERATION,
                || call(name),
                |mut calling| {
                    let mut mine = calling.buffers().take(world.replicas() * len * size_of::<f32>());
                    mine.bytes_mut().fill(0);
                    let places = mine.bytes_mut().chunks_exact_mut((len * size_of::<f32>()).max(1));
                    for (residuals, place) in lock(&self.0).replicas.iter().zip(places) {
                        let residual = residuals.get(number).map_or(&[][..], Vec::as_slice);
                        let residual: &[u8] = bytemuck::cast_slice(residual);
                        place.iter_mut().zip(residual).for_each(|(place, byte)| *place = *byte);
                    }
                    let size = |_| world.replicas() * len * size_of::<f32>();
                    calling.gather_to(0, "its residuals", mine.freeze(), size)
                },
            )?;
            for (worker, bytes) in received.flatten().unwrap_or_default().into_iter().enumerate() {
                let elements = numbers::<f32>(&bytes);
                for (replica, residual) in world.replicas_of(worker).zip(elements.chunks_exact(len.max(1))) {
                    all.push((replica, number, residual.to_vec()));
                }
            }
        }
        Ok(if world.worker() == 0 { Gathered::Here(all) } else { Gathered::ToOther })
    }

    /// Reads the state from a checkpoint. Returns a closure that sets it. The argument of the closure is the number of
    /// finished steps in the checkpoint.
    pub(crate) fn restore<'a>(
        &'a self,
        parameters: &'a Parameters,
        prefix: &str,
        from: &Reader,
    ) -> Result<Box<dyn FnOnce(u64) + 'a>> {
        if !parameters.compression().has_feedback() {
            return Ok(Box::new(|_| {}));
        }
        let read = |name: &String, len: usize| -> Result<Vec<f32>> {
            if !from.contains(name) {
                return Ok(Vec::new());
            }
            require_names(from, std::slice::from_ref(name))?;
            Ok(read_as(from, name, distribute_tensor::DType::F32, &[len])?.into_vec()?)
        };
        let variables = || parameters.variables.iter();
        let saved = from.metadata(&metadata_key(prefix));
        // A training that was not compressed has no residuals.
        let saved = saved.map_or(Ok(Saved::Replicas(0)), |saved| {
            serde_json::from_value(saved.clone()).map_err(|error| {
                let reason =
                    format!("{} has damaged residuals of {prefix:?}: {error}", from.path().display());
                Error::invalid("Checkpoint::restore", reason)
            })
        })?;
        let mut factors = Vec::new();
        for (name, variable) in variables() {
            let len = match parameters.compression().codec(variable.dims()) {
                Some(distribute_tensor::compression::Codec::LowRank(shape)) => shape.len_q(),
                _ => 0,
            };
            factors.push(if len == 0 { Vec::new() } else { read(&factor_name(prefix, name), len)? });
        }
        let replicas = match saved {
            Saved::Kept => None,
            Saved::Replicas(count) => {
                let world = parameters.strategy.world();
                let saved = saved_replicas(from, prefix, count);
                let of = |replica: usize| -> Result<Residuals> {
                    let replicas = world.num_replicas_in_sync();
                    let mine = saved.iter().copied().filter(|saved| receiver(*saved, replicas) == replica);
                    let one = |(name, variable): &(String, candle_core::Var)| {
                        let all = mine
                            .clone()
                            .map(|saved| read(&residual_name(prefix, saved, name), variable.elem_count()));
                        Ok(sum(all.collect::<Result<Vec<_>>>()?))
                    };
                    variables().map(one).collect()
                };
                Some(world.local_replicas().map(of).collect::<Result<Vec<_>>>()?)
            }
        };
        Ok(Box::new(move |finished| {
            match replicas {
                Some(replicas) => {
                    let mut state = lock(&self.0);
                    state.discard();
                    (state.replicas, state.step) = (replicas, finished);
                }
                None => self.keep(finished),
            }
            lock(&self.0).factors = factors;
        }))
    }
}

/// The residuals of all replicas, after the workers have sent them.
enum Gathered {
    /// This worker has received them: the replica, the variable and the residual.
    Here(Vec<(usize, usize, Vec<f32>)>),
    /// Another worker, the chief, has received them.
    ToOther,
    /// The workers did not exchange residuals: there are no other workers, or this worker does not make calls with
    /// them.
    NoCalls,
}

impl State {
    fn complete(&mut self, step: u64) {
        match self.pending.take() {
            Some(pending) if pending.step == step => self.apply(pending),
            pending => {
                self.pending = pending;
                self.discard();
            }
        }
        self.step = step;
    }

    fn residual(&mut self, replica: usize, variable: usize) -> Option<&mut Vec<f32>> {
        self.replicas.get_mut(replica)?.get_mut(variable)
    }

    fn apply(&mut self, Pending { residuals, factors, .. }: Pending) {
        for (replica, variable, residual) in residuals {
            grow(&mut self.replicas, replica);
            grow(&mut self.replicas[replica], variable);
            let before = std::mem::replace(&mut self.replicas[replica][variable], residual);
            self.reuse(before);
        }
        for (variable, factor) in factors {
            grow(&mut self.factors, variable);
            self.factors[variable] = factor;
        }
    }

    /// Discards the result of a step that was not completed, and keeps its memory for reuse.
    fn discard(&mut self) {
        for (_, _, residual) in self.pending.take().into_iter().flat_map(|pending| pending.residuals) {
            self.reuse(residual);
        }
    }

    fn reuse(&mut self, vector: Vec<f32>) {
        if !vector.is_empty() {
            self.spare.push(vector);
        }
    }
}

/// Makes a vector long enough to contain an element at `at`.
fn grow<T: Default>(vector: &mut Vec<T>, at: usize) {
    if vector.len() <= at {
        vector.resize_with(at + 1, T::default);
    }
}

/// Returns the replica, of `replicas`, that receives the residuals of a saved replica. Each saved replica has one
/// receiver, so the sum of all residuals stays the same.
fn receiver(saved: usize, replicas: usize) -> usize {
    saved % replicas.max(1)
}

/// Returns the replicas below `count` whose residuals a checkpoint contains.
fn saved_replicas(from: &Reader, prefix: &str, count: usize) -> BTreeSet<usize> {
    let start = residual_name(prefix, "", "");
    let start = start.trim_end_matches('/');
    let replica = |name: &str| name.strip_prefix(start)?.strip_prefix('/')?.split('/').next()?.parse().ok();
    from.names().filter_map(replica).filter(|replica| *replica < count).collect()
}

/// Returns the sum of vectors, added in order. Empty vectors are treated as zeros.
fn sum(all: Vec<Vec<f32>>) -> Vec<f32> {
    let mut all = all.into_iter().filter(|one| !one.is_empty());
    let mut sum = all.next().unwrap_or_default();
    for one in all {
        sum.iter_mut().zip(one).for_each(|(sum, x)| *sum += x);
    }
    sum
}

fn residual_name(prefix: &str, replica: impl Display, variable: &str) -> String {
    format!("{prefix}/compression/residual/{replica}/{variable}")
}

fn factor_name(prefix: &str, variable: &str) -> String {
    format!("{prefix}/compression/factor/{variable}")
}

fn metadata_key(prefix: &str) -> String {
    format!("{prefix}:compression")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins a step with `x` as its residual and factor, up to the point at which gradients are sent.
    fn send(feedback: &Feedback, step: u64, x: f32) {
        feedback.begin(step);
        feedback.prepare([(1, 2, vec![x; 3])]);
        feedback.prepare_factors(vec![(2, vec![x])]);
    }

    fn residual(feedback: &Feedback) -> Vec<f32> {
        feedback.with_residual(1, 2, <[f32]>::to_vec)
    }

    // INV-94
    #[test]
    fn a_residual_changes_only_with_its_step() {
        let feedback = Feedback::default();
        send(&feedback, 1, 1.);
        assert!(residual(&feedback).is_empty());
        feedback.commit(1);
        assert_eq!(residual(&feedback), [1.; 3]);
        // A step that fails is made again.
        send(&feedback, 2, 5.);
        send(&feedback, 2, 2.);
        feedback.commit(2);
        assert_eq!((residual(&feedback), feedback.factor(2, Vec::new)), (vec![2.; 3], vec![2.]));
    }

    // INV-42, INV-94
    #[test]
    fn residuals_are_those_of_the_step_that_the_other_workers_have_completed() {
        let at_two = || {
            let feedback = Feedback::default();
            send(&feedback, 2, 2.);
            feedback.commit(2);
            send(&feedback, 3, 3.);
            feedback
        };
        // The others have completed step 3, which this worker has sent, or they have not.
        let feedback = at_two();
        feedback.keep(3);
        assert_eq!(residual(&feedback), [3.; 3]);
        let feedback = at_two();
        feedback.keep(2);
        assert_eq!(residual(&feedback), [2.; 3]);
        feedback.commit(3);
        assert_eq!(residual(&feedback), [2.; 3], "step 3 is made again");
        // A process that has restored an older checkpoint, or has not sent the last step.
        for step in [1, 4, 9] {
            let feedback = at_two();
            feedback.keep(step);
            assert!(residual(&feedback).is_empty(), "step {step}");
        }
    }

    #[test]
    fn each_saved_residual_goes_to_one_replica() {
        let receivers: Vec<_> = (0..7).map(|saved| receiver(saved, 3)).collect();
        assert_eq!(receivers, [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(sum(vec![vec![], vec![1., 2.], vec![], vec![3., 4.]]), [4., 6.]);
        assert!(sum(vec![vec![], vec![]]).is_empty());
    }
}
