//! Where the tensors of a piece should be: moved to the replica's device, made there, or anywhere.

use super::InputOptions;
use crate::strategy::{DeviceKind, DeviceName};
use crate::{Error, Result, Strategy};
use candle_core::{Device, DeviceLocation};
use distribute_tensor::{Leaf, Tree};

/// What to do with each replica's piece.
pub(super) enum Bring {
    /// Nothing: it may be anywhere, or there is only one device.
    Nowhere,
    /// Its candle tensors are moved to these devices.
    To(Vec<Device>),
    /// It has to be on these devices already.
    IsOn(Vec<DeviceName>),
}

impl Bring {
    pub(super) fn new(strategy: &Strategy, options: &InputOptions) -> Result<Self> {
        let names = strategy.devices();
        if options.place_dataset_on_device {
            return Ok(Bring::IsOn(names));
        }
        let is_elsewhere = candle_core::utils::cuda_is_available()
            || candle_core::utils::metal_is_available()
            || names.iter().any(|name| name.kind != DeviceKind::Cpu);
        if !(options.fetches() && is_elsewhere) {
            return Ok(Bring::Nowhere);
        }
        let open = |name: &DeviceName| {
            name.to_candle().map_err(|error| Error::Device {
                name: name.to_string(),
                reason: format!(
                    "tensors of a dataset cannot be brought there: {error}; with fetch_to_device: Some(false) they stay \
                     where they are"
                ),
            })
        };
        names.iter().map(open).collect::<Result<_>>().map(Bring::To)
    }

    /// The piece of one local replica, where it is to be.
    pub(super) fn piece(
        &self,
        operation: &'static str,
        replica: usize,
        piece: Tree<Leaf>,
    ) -> Result<Tree<Leaf>> {
        match self {
            Bring::Nowhere => Ok(piece),
            Bring::To(devices) => piece.try_map(&mut |leaf| match (leaf, devices.get(replica)) {
                (Leaf::Candle(tensor), Some(device)) => Ok(Leaf::Candle(tensor.to_device(device)?)),
                (other, _) => Ok(other),
            }),
            Bring::IsOn(names) => match names.get(replica) {
                Some(device) => {
                    piece
                        .leaves()
                        .into_iter()
                        .try_for_each(|leaf| require(operation, replica, leaf, *device))?;
                    Ok(piece)
                }
                None => Ok(piece),
            },
        }
    }
}

fn require(operation: &'static str, replica: usize, leaf: &Leaf, device: DeviceName) -> Result<()> {
    let place = match leaf {
        Leaf::Candle(tensor) => tensor.device().location(),
        _ => DeviceLocation::Cpu,
    };
    let is_there = match (place, device.kind) {
        (DeviceLocation::Cpu, DeviceKind::Cpu) => true,
        (DeviceLocation::Cuda { gpu_id } | DeviceLocation::Metal { gpu_id }, DeviceKind::Gpu) => {
            gpu_id == device.index
        }
        _ => false,
    };
    if is_there {
        Ok(())
    } else {
        Err(Error::invalid(
            operation,
            format!(
                "place_dataset_on_device: the dataset of local replica {replica} gives {} {} on {place:?}, but its device \
                 is {device}; make candle tensors there (input_pipeline_id is the replica), or leave the option out: \
                 fetch_to_device brings them",
                leaf.kind(),
                leaf.describe()
            ),
        ))
    }
}
