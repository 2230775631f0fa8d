//! The devices of the tensors of a per-replica batch: copied to the replica's device, created there, or any.

use super::InputOptions;
use super::carry::Carrier;
use crate::strategy::Strategy;
use candle_core::{Device, Tensor};
use distribute_base::{DeviceKind, DeviceName, Error, Result};
use distribute_data::Distribution;
use distribute_tensor::{Leaf, Nest, Tree};
use std::sync::Arc;

/// The way in which a per-replica batch gets to its device.
pub(super) enum Bring {
    /// No copy: the batch may be on any device, or there is only one.
    Nowhere,
    /// Its candle tensors are copied to these devices when it is created.
    To(Vec<DeviceName>, Arc<Carry>),
    /// It has to be on these devices already.
    IsOn(Vec<DeviceName>),
}

/// Copies a tensor to the device of a local replica.
pub(super) type Carry = dyn Fn(usize, &Tensor) -> candle_core::Result<Tensor> + Send + Sync;

impl Bring {
    pub(super) fn new(strategy: &Strategy, options: &InputOptions) -> Result<Self> {
        let names = strategy.devices();
        if options.place_dataset_on_device {
            return Ok(Bring::IsOn(names));
        }
        let is_elsewhere = candle_core::utils::cuda_is_available()
            || candle_core::utils::metal_is_available()
            || names.iter().any(|name| name.has_own_memory());
        if !(options.fetches() && is_elsewhere) {
            return Ok(Bring::Nowhere);
        }
        let open = |name: &DeviceName| {
            name.to_candle().map(Carrier::new).map_err(|error| Error::Device {
                name: name.to_string(),
                reason: format!(
                    "tensors of a dataset cannot be brought there: {error}; with fetch_to_device: Some(false) they stay \
                     where they are"
                ),
            })
        };
        let carriers = names.iter().map(open).collect::<Result<Vec<_>>>()?;
        let carry = move |replica: usize, tensor: &Tensor| match carriers.get(replica) {
            Some(carrier) => carrier.carry(tensor),
            None => Ok(tensor.clone()),
        };
        Ok(Bring::To(names, Arc::new(carry)))
    }

    /// Returns the plan with a copy of each per-replica batch to its device when it is created. If steps are
    /// prepared ahead, that is while replicas compute the previous step. It is worth a thread if a device has
    /// separate memory.
    pub(super) fn with<T: Nest>(&self, plan: Distribution<T>) -> Distribution<T> {
        let Bring::To(names, carry) = self else { return plan };
        let copies = names.iter().any(|name| name.has_own_memory());
        let (names, carry) = (names.clone(), carry.clone());
        plan.prepared(copies, move |replica, piece| {
            piece.try_map(&mut |leaf| match leaf {
                Leaf::Candle(tensor) => match carry(replica, &tensor) {
                    Ok(brought) => Ok(Leaf::Candle(brought)),
                    Err(error) => Err(not_brought(&names, replica, &Leaf::Candle(tensor), &error).into()),
                },
                other => Ok(other),
            })
        })
    }

    /// Checks that the batch of one local replica is on the device where it had to be created.
    pub(super) fn check(&self, operation: &'static str, replica: usize, piece: &Tree<Leaf>) -> Result<()> {
        let Bring::IsOn(names) = self else { return Ok(()) };
        let Some(device) = names.get(replica) else { return Ok(()) };
        piece.leaves().into_iter().try_for_each(|leaf| require(operation, replica, leaf, *device))
    }
}

fn not_brought(names: &[DeviceName], replica: usize, leaf: &Leaf, error: &candle_core::Error) -> Error {
    let error = error.to_string();
    let (kind, what, why) = (leaf.kind(), leaf.describe(), error.lines().next().unwrap_or_default());
    Error::Device {
        name: names.get(replica).map_or_else(|| "(none)".into(), ToString::to_string),
        reason: format!("{kind} {what} of the dataset cannot be brought there: {why}"),
    }
}

fn require(operation: &'static str, replica: usize, leaf: &Leaf, device: DeviceName) -> Result<()> {
    let at = match leaf {
        Leaf::Candle(tensor) => tensor.device(),
        _ => &Device::Cpu,
    };
    let place = at.location();
    let is_there = match device.kind {
        DeviceKind::Cpu => at.is_cpu(),
        // Compared by this process's handle of the device: work of another handle is not ordered with ours.
        DeviceKind::Gpu => !at.is_cpu() && device.to_candle().is_ok_and(|own| own.same_device(at)),
    };
    if is_there {
        Ok(())
    } else {
        Err(Error::invalid(
            operation,
            format!(
                "place_dataset_on_device: the dataset of local replica {replica} gives {} {} on {place:?}, but its device \
                 is {device}; make candle tensors there, on what DeviceName::to_candle gives (input_pipeline_id is the replica), \
                 or leave the option out: fetch_to_device brings them",
                leaf.kind(),
                leaf.describe()
            ),
        ))
    }
}

#[cfg(test)]
mod tests;
