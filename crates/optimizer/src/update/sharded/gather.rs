//! Complete slots, assembled from the ranges of all workers.

use super::Sharded;
use crate::Inner;
use crate::progress::Incomplete;
use bytes::Bytes;
use candle_core::{DType, Device, Tensor};
use distribute_base::{Error, Result};
use distribute_checkpoint::Writer;
use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::group::{GroupCall, numbers};
use distribute_core::internal::require_outside_of_run;
use distribute_tensor::{Element, HostTensor};
use std::panic::Location;

/// The workers that receive the gathered slots.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Recipients {
    All,
    /// Only the chief.
    Chief,
}

impl Sharded {
    /// Returns one complete slot of a variable. All workers must make this call.
    pub(super) fn slot_of_all(
        &self,
        optimizer: &Inner,
        variable: usize,
        slot: usize,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        const OPERATION: &str = "slot";
        require_outside_of_run(
            OPERATION,
            "the state is sharded, so all workers read it together, between runs",
        )?;
        require_complete(optimizer, OPERATION, at)?;
        match self.gather(OPERATION, optimizer, variable, slot, Recipients::All, at)? {
            Some(all) => Ok(all.to_candle(&Device::Cpu)?),
            None => Err(Error::invalid(OPERATION, "it was gathered on another worker")),
        }
    }

    /// Adds all slots to the checkpoint on the chief, which gathers them one after another.
    pub(super) fn save_on_chief(&self, optimizer: &Inner, prefix: &str, writer: &mut Writer) -> Result<()> {
        const OPERATION: &str = "Checkpoint::save";
        let at = Location::caller();
        require_complete(optimizer, OPERATION, at)?;
        for (index, slot) in optimizer.slot_names().iter().enumerate() {
            for (number, (name, _)) in optimizer.parameters.variables.iter().enumerate() {
                if let Some(value) =
                    self.gather(OPERATION, optimizer, number, index, Recipients::Chief, at)?
                {
                    writer.insert(format!("{prefix}/{slot}/{name}"), value)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn gather(
        &self,
        operation: &'static str,
        optimizer: &Inner,
        number: usize,
        index: usize,
        gets: Recipients,
        at: &'static Location<'static>,
    ) -> Result<Option<HostTensor>> {
        let Self { partition } = self;
        let (name, variable) = &optimizer.parameters.variables[number];
        let strategy = &optimizer.parameters.strategy;
        let width = variable.dtype().size_in_bytes();
        let shape = optimizer.groups.rule().slots()[index].shape;
        let size = |worker| partition.share(number, worker).elements(shape, variable.dims()) * width;
        let slots = optimizer.progress.read(operation)?;
        let call = || {
            let slot = optimizer.slot_names()[index];
            inspect_call(optimizer, format_args!("{slot} of {name}"), at)
        };
        let received = strategy.worker_call(operation, call, |mut calling: GroupCall<'_>| {
            let mut mine = calling.buffers().take(size(partition.worker()));
            // Sharded slots are on the host.
            let elements = slots[number].elements(index).unwrap_or_default();
            mine.bytes_mut().iter_mut().zip(elements).for_each(|(place, byte)| *place = *byte);
            let mine = mine.freeze();
            match gets {
                Recipients::All => calling.all_gather_sized("its slots", mine, size).map(Some),
                Recipients::Chief => calling.gather_to(0, "its slots", mine, size),
            }
        })?;
        let Some(received) = received.flatten() else { return Ok(None) };
        let received: Vec<_> = partition.in_order(number).map(|worker| received[worker].clone()).collect();
        let dims = shape.dims(variable.dims());
        let whole = match variable.dtype() {
            DType::F64 => concat_parts::<f64>(&received, &dims),
            _ => concat_parts::<f32>(&received, &dims),
        };
        whole.map(Some)
    }
}

/// Returns an error on all workers if the slots of any worker belong to an incomplete step.
pub(super) fn require_complete(
    optimizer: &Inner,
    operation: &'static str,
    at: &'static Location<'static>,
) -> Result<()> {
    let strategy = &optimizer.parameters.strategy;
    let mine = optimizer.progress.read(operation).and_then(|_| {
        if !optimizer.progress.is_incomplete() && !optimizer.backend.is_incomplete(optimizer) {
            return Ok(());
        }
        let (worker, partition) = (strategy.world().worker(), optimizer.parameters.partition.as_ref());
        let state = partition.map_or(Incomplete::Sharded, |partition| Incomplete::with_partition(partition));
        Err(state.since(operation, optimizer.finished_steps() + 1, &[worker]))
    });
    strategy
        .exchange_results(operation, || inspect_call(optimizer, "state", at), mine, |()| Bytes::new())
        .map(drop)
}

pub(super) fn inspect_call(
    optimizer: &Inner,
    what: impl std::fmt::Display,
    at: &'static Location<'static>,
) -> Fingerprint {
    let detail = format!("{} {}: {what}", optimizer.groups.rule().name(), optimizer.number);
    Fingerprint::new(Operation::ReadVariable, detail, at)
}

fn concat_parts<F: Element + bytemuck::Pod>(parts: &[Bytes], dims: &[usize]) -> Result<HostTensor> {
    let mut all = Vec::with_capacity(dims.iter().product());
    parts.iter().for_each(|part| all.extend_from_slice(&numbers::<F>(part)));
    Ok(HostTensor::new(all, dims)?)
}
