//! Error feedback in a checkpoint.

use super::{Feedback, Residuals};
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

/// The description of the residuals in a checkpoint.
#[derive(Serialize, Deserialize)]
enum Saved {
    /// The number of replicas whose residuals are saved.
    Replicas(usize),
    /// The number of workers whose residuals are saved. They are those of local steps.
    Workers(usize),
    /// The checkpoint has no residuals, because it is sent to another worker, which keeps its own.
    Kept,
}

impl Saved {
    /// Describes the residuals of `count` replicas or, after local steps, workers.
    fn of(parameters: &Parameters, count: usize) -> Self {
        if parameters.strategy.local_steps().is_some() { Self::Workers(count) } else { Self::Replicas(count) }
    }

    /// Returns the number of replicas, or workers, whose residuals can be restored; `None` if each worker keeps its
    /// own. Residuals of gradients are of no use after local steps, and vice versa.
    fn count(&self, parameters: &Parameters) -> Option<usize> {
        match (self, parameters.strategy.local_steps()) {
            (Self::Kept, _) => None,
            (Self::Replicas(count), None) | (Self::Workers(count), Some(_)) => Some(*count),
            _ => Some(0),
        }
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

impl Feedback {
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
        let world = parameters.senders();
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
                Saved::of(parameters, world.num_replicas_in_sync())
            }
            Gathered::Here(all) => {
                for (replica, number, residual) in all {
                    let (name, _) = &parameters.variables[number];
                    writer.insert(residual_name(prefix, replica, name), HostTensor::vector(residual))?;
                }
                Saved::of(parameters, world.num_replicas_in_sync())
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
        let world = parameters.senders();
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
    /// finished steps, or outer steps after local steps, in the checkpoint.
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
        let saved = saved.map_or(Ok(Saved::of(parameters, 0)), |saved| {
            serde_json::from_value(saved.clone()).map_err(|error| {
                let reason =
                    format!("{} has damaged residuals of {prefix:?}: {error}", from.path().display());
                Error::invalid("Checkpoint::restore", reason)
            })
        })?;
        let count = saved.count(parameters);
        let mut factors = Vec::new();
        for (name, variable) in variables() {
            let len = match parameters.compression().codec(variable.dims()) {
                Some(distribute_tensor::compression::Codec::LowRank(shape)) => shape.len_q(),
                _ => 0,
            };
            let is_there = len > 0 && count != Some(0);
            factors.push(if is_there { read(&factor_name(prefix, name), len)? } else { Vec::new() });
        }
        let replicas = match count {
            None => None,
            Some(count) => {
                let world = parameters.senders();
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

    #[test]
    fn each_saved_residual_goes_to_one_replica() {
        let receivers: Vec<_> = (0..7).map(|saved| receiver(saved, 3)).collect();
        assert_eq!(receivers, [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(sum(vec![vec![], vec![1., 2.], vec![], vec![3., 4.]]), [4., 6.]);
        assert!(sum(vec![vec![], vec![]]).is_empty());
    }
}
