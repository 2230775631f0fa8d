//! The placement of per-replica batches: copied to a device, created on a device, or unrestricted.

use super::InputOptions;
use crate::strategy::Strategy;
use candle_core::{Device, Tensor};
use distribute_base::internal::DeviceCopier;
use distribute_base::{DeviceKind, DeviceName, Error, Result};
use distribute_data::Distribution;
use distribute_tensor::{Leaf, Nest, Tree};
use std::sync::Arc;

/// The rule by which a per-replica batch gets to its device.
pub(super) enum DevicePlacement {
    /// Batches are not copied, because the options exclude it or because all devices use the memory of the host.
    Any,
    /// The candle tensors are copied to the replicas' devices when the batch is created.
    Copied(Vec<DeviceName>, Arc<CopyFn>),
    /// The batch must have been created on these devices, one per local replica.
    Required(Vec<DeviceName>),
}

/// A function that copies a tensor to the device of the given local replica.
pub(super) type CopyFn = dyn Fn(usize, &Tensor) -> candle_core::Result<Tensor> + Send + Sync;

impl DevicePlacement {
    pub(super) fn new(strategy: &Strategy, options: &InputOptions) -> Result<Self> {
        let names = strategy.devices();
        if options.place_dataset_on_device {
            return Ok(DevicePlacement::Required(names));
        }
        let may_need_copies = candle_core::utils::cuda_is_available()
            || candle_core::utils::metal_is_available()
            || names.iter().any(|name| name.has_separate_memory());
        if !(options.fetches_to_device() && may_need_copies) {
            return Ok(DevicePlacement::Any);
        }
        let open = |name: &DeviceName| {
            name.to_candle().map(DeviceCopier::new).map_err(|error| Error::Device {
                name: name.to_string(),
                reason: format!(
                    "tensors of a dataset cannot be copied there: {error}; with fetch_to_device: Some(false) they are \
                     not copied"
                ),
            })
        };
        let copiers = names.iter().map(open).collect::<Result<Vec<_>>>()?;
        let copy = move |replica: usize, tensor: &Tensor| match copiers.get(replica) {
            Some(copier) => copier.copy(tensor),
            None => Ok(tensor.clone()),
        };
        Ok(DevicePlacement::Copied(names, Arc::new(copy)))
    }

    /// Extends the plan so that each per-replica batch is copied to its device when it is created. Returns the plan
    /// unchanged if batches are not copied. If steps are prepared in advance, the copies are made while the replicas
    /// compute an earlier step. Copies to a device with separate memory are expensive enough to justify a thread for
    /// this.
    pub(super) fn apply<T: Nest>(&self, plan: Distribution<T>) -> Distribution<T> {
        let DevicePlacement::Copied(names, copy) = self else { return plan };
        let copies = names.iter().any(|name| name.has_separate_memory());
        let (names, copy) = (names.clone(), copy.clone());
        plan.prepared(copies, move |replica, batch| {
            batch.try_map(&mut |leaf| match leaf {
                Leaf::Candle(tensor) => match copy(replica, &tensor) {
                    Ok(copied) => Ok(Leaf::Candle(copied)),
                    Err(error) => Err(copy_error(&names, replica, &Leaf::Candle(tensor), &error).into()),
                },
                other => Ok(other),
            })
        })
    }

    /// Checks that the batch of a local replica is on the device on which it must have been created.
    pub(super) fn check(&self, operation: &'static str, replica: usize, batch: &Tree<Leaf>) -> Result<()> {
        let DevicePlacement::Required(names) = self else { return Ok(()) };
        let Some(device) = names.get(replica) else { return Ok(()) };
        batch.leaves().into_iter().try_for_each(|leaf| require_on_device(operation, replica, leaf, *device))
    }
}

fn copy_error(names: &[DeviceName], replica: usize, leaf: &Leaf, error: &candle_core::Error) -> Error {
    let error = error.to_string();
    let (kind, what, why) = (leaf.kind(), leaf.describe(), error.lines().next().unwrap_or_default());
    Error::Device {
        name: names.get(replica).map_or_else(|| "(none)".into(), ToString::to_string),
        reason: format!("{kind} {what} of the dataset cannot be copied there: {why}"),
    }
}

fn require_on_device(operation: &'static str, replica: usize, leaf: &Leaf, device: DeviceName) -> Result<()> {
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
                "place_dataset_on_device: the dataset of local replica {replica} yields {} {} on {place:?}, but its \
                 device is {device}; create candle tensors on the device from DeviceName::to_candle \
                 (input_pipeline_id is the replica), or leave the option out: fetch_to_device copies them",
                leaf.kind(),
                leaf.describe()
            ),
        ))
    }
}

#[cfg(test)]
mod tests;
