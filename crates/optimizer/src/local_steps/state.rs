//! Local steps in a checkpoint.
//!
//! A checkpoint that all workers save together contains the slots of each worker: those of the chief under the usual
//! names, and those of the others under names with the worker's number. A checkpoint that one worker sends to another
//! contains only the slots of its sender, and the weights after the last outer step.

use super::flat::Flat;
use super::{LocalTraining, State};
use crate::Inner;
use crate::parameters::Parameters;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_checkpoint::{Reader, Writer};
use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::group::numbers;
use distribute_core::internal::wire;
use distribute_core::strategy::Compression;
use distribute_tensor::HostTensor;
use serde::{Deserialize, Serialize};
use std::panic::Location;
use std::sync::Arc;

const SAVE: &str = "Checkpoint::save";

/// The values in a checkpoint that differ between workers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OwnNumbers {
    pub(crate) finished: u64,
    pub(crate) loss_scale: Option<(f64, u64)>,
}

/// The description of local steps in a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    /// The number of steps since the last outer step.
    since: u64,
    /// The number of outer steps. Earlier versions did not save it.
    #[serde(default)]
    outer: u64,
    /// The values of each worker whose slots are saved.
    workers: Vec<OwnNumbers>,
}

/// The state of local steps that was read from a checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    since: u64,
    /// The number of outer steps.
    pub(crate) outer: u64,
    agreed: Option<Flat>,
    momentum: Option<Flat>,
    /// The values of this worker; `None` if the checkpoint is that of a training in lock step.
    pub(crate) own: Option<OwnNumbers>,
    /// The prefix of the names of this worker's slots.
    pub(crate) slots: String,
}

impl LocalTraining {
    /// Adds the state to a checkpoint. If workers make calls, the chief gathers the slots of the others.
    pub(crate) fn save(&self, optimizer: &Inner, prefix: &str, writer: &mut Writer) -> Result<()> {
        let parameters = &*optimizer.parameters;
        let (since, outer, agreed, momentum) = {
            let state = lock(&self.state);
            (
                state.since,
                state.outer,
                state.agreed.clone().filter(|_| state.since > 0),
                state.momentum.clone(),
            )
        };
        for (what, flat) in [("agreed", agreed.as_deref()), ("momentum", momentum.as_ref())] {
            for (variable, value) in
                flat.map(|flat| flat.tensors(parameters)).transpose()?.unwrap_or_default()
            {
                writer.insert(name(prefix, what, variable), value)?;
            }
        }
        let own =
            OwnNumbers { finished: optimizer.finished_steps(), loss_scale: optimizer.loss_scaling.state() };
        let records = self.strategy.worker_call(
            SAVE,
            || call(optimizer, "local steps"),
            |mut calling| calling.all_gather_bytes(wire::encode(&own)),
        )?;
        let workers = match records {
            // Workers that agree on a position after a failure do not make calls.
            None => vec![own],
            Some(records) => {
                self.gather_slots(optimizer, prefix, writer)?;
                wire::decode_all(SAVE, &records)?
            }
        };
        let saved = serde_json::to_value(Saved { since, outer, workers }).unwrap_or_default();
        writer.metadata(metadata_key(prefix), saved);
        Ok(())
    }

    /// Adds the slots of the other workers to the checkpoint of the chief, one slot after another.
    fn gather_slots(&self, optimizer: &Inner, prefix: &str, writer: &mut Writer) -> Result<()> {
        let all = optimizer.progress.read(SAVE)?;
        for (index, slot) in optimizer.groups.rule().slots().into_iter().enumerate() {
            for (slots, (variable, var)) in all.iter().zip(&optimizer.parameters.variables) {
                // With several workers, slots are on the host.
                let elements = slots.elements(index).unwrap_or_default();
                let received = self.strategy.worker_call(
                    SAVE,
                    || call(optimizer, &format!("{} of {variable}", slot.name)),
                    |mut calling| {
                        let mut mine = calling.buffers().take(elements.len());
                        mine.bytes_mut().copy_from_slice(elements);
                        calling.gather_to(0, "its slots", mine.freeze(), |_| elements.len())
                    },
                )?;
                let dims = slot.shape.dims(var.dims());
                for (worker, bytes) in received.flatten().unwrap_or_default().iter().enumerate().skip(1) {
                    let value = match var.dtype() {
                        candle_core::DType::F64 => {
                            HostTensor::new(numbers::<f64>(bytes).to_vec(), dims.clone())?
                        }
                        _ => HostTensor::new(numbers::<f32>(bytes).to_vec(), dims.clone())?,
                    };
                    writer.insert(format!("{}/{}/{variable}", slots_of(prefix, worker), slot.name), value)?;
                }
            }
        }
        Ok(())
    }

    /// Reads the state of this worker from a checkpoint. If the checkpoint has N workers, worker `w` gets the slots of
    /// worker `w` modulo N.
    pub(crate) fn read(&self, parameters: &Parameters, prefix: &str, from: &Reader) -> Result<Restored> {
        // A training in lock step has only slots.
        let Some(saved) = from.metadata(&metadata_key(prefix)) else {
            return Ok(Restored { slots: prefix.to_owned(), ..Restored::default() });
        };
        let damaged = |error: String| {
            let reason = format!("{} has damaged local steps of {prefix:?}: {error}", from.path().display());
            Error::invalid("Checkpoint::restore", reason)
        };
        let saved: Saved =
            serde_json::from_value(saved.clone()).map_err(|error| damaged(error.to_string()))?;
        let worker = source(self.strategy.world().worker(), saved.workers.len());
        let own = worker.and_then(|worker| saved.workers.get(worker).copied());
        let (Some(worker), Some(own)) = (worker, own) else { return Err(damaged("no worker".into())) };
        let flat =
            |what: &str| Flat::from_checkpoint(from, parameters, |variable| name(prefix, what, variable));
        let agreed = if saved.since > 0 { flat("agreed")? } else { None };
        if saved.since > 0 && agreed.is_none() && self.begins_at_agreed() {
            let form = match parameters.compression() {
                Compression::None => String::new(),
                form => format!(" with compression {form}"),
            };
            let reason = format!(
                "{} was saved {} steps after an outer step without momentum or compression, and does not have the weights \
                 that {:?}{form} needs: use Outer::Average without compression, or a checkpoint that was saved after an \
                 outer step",
                from.path().display(),
                saved.since,
                self.settings.outer
            );
            return Err(Error::invalid("Checkpoint::restore", reason));
        }
        Ok(Restored {
            since: saved.since,
            outer: saved.outer,
            agreed,
            momentum: flat("momentum")?,
            own: Some(own),
            slots: slots_of(prefix, worker),
        })
    }

    /// Replaces the state by the restored one.
    pub(crate) fn set(&self, restored: Restored) {
        let Restored { since, outer, agreed, momentum, .. } = restored;
        self.set_position(since, outer);
        self.strategy.forget_outer_steps();
        let State { since: _, outer: _, agreed: own_agreed, momentum: own_momentum, backup } =
            &mut *lock(&self.state);
        (*own_agreed, *own_momentum, *backup) = (agreed.map(Arc::new), momentum, None);
    }
}

/// Returns the worker of a checkpoint whose slots `worker` gets; `None` if the checkpoint has no workers.
fn source(worker: usize, saved: usize) -> Option<usize> {
    worker.checked_rem(saved)
}

/// Returns the prefix of the names of a worker's slots.
fn slots_of(prefix: &str, worker: usize) -> String {
    match worker {
        0 => prefix.to_owned(),
        _ => format!("{prefix}/local_steps/worker/{worker}"),
    }
}

fn name(prefix: &str, what: &str, variable: &str) -> String {
    format!("{prefix}/local_steps/{what}/{variable}")
}

fn metadata_key(prefix: &str) -> String {
    format!("{prefix}:local_steps")
}

fn call(optimizer: &Inner, what: &str) -> Fingerprint {
    let detail = format!("{} {}: {what}", optimizer.groups.rule().name(), optimizer.number);
    Fingerprint::new(Operation::ReadVariable, detail, Location::caller())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_gets_the_slots_of_one() {
        let sources: Vec<_> = (0..5).map(|worker| source(worker, 2)).collect();
        assert_eq!(sources, [Some(0), Some(1), Some(0), Some(1), Some(0)]);
        assert_eq!(source(3, 0), None);
        assert_eq!((slots_of("o", 0), slots_of("o", 2)), ("o".into(), "o/local_steps/worker/2".into()));
    }
}
