//! Slots of which each worker keeps a range, put together.

use super::{Sharded, incomplete};
use crate::Inner;
use bytes::Bytes;
use candle_core::{DType, Device, Tensor};
use distribute_base::{Error, Result};
use distribute_checkpoint::Writer;
use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::group::{GroupCall, numbers};
use distribute_core::internal::require_outside_of_run;
use distribute_tensor::{Element, HostTensor};
use std::panic::Location;

/// The receivers of the gathered slots.
#[derive(Clone, Copy, PartialEq)]
enum Gets {
    All,
    /// The chief alone.
    Chief,
}

impl Sharded {
    /// One slot of a variable, on all workers.
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
            "the state is sharded, and all workers look at it together: between runs",
        )?;
        require_complete(optimizer, OPERATION, at)?;
        match self.gather(OPERATION, optimizer, variable, slot, Gets::All, at)? {
            Some(all) => Ok(all.to_candle(&Device::Cpu)?),
            None => Err(Error::invalid(OPERATION, "it was put together on another worker")),
        }
    }

    /// Adds all slots to the checkpoint of the chief, who gathers them one after another.
    pub(super) fn save_on_chief(&self, optimizer: &Inner, prefix: &str, writer: &mut Writer) -> Result<()> {
        const OPERATION: &str = "Checkpoint::save";
        let at = Location::caller();
        require_complete(optimizer, OPERATION, at)?;
        for (index, slot) in optimizer.slot_names().iter().enumerate() {
            for (number, (name, _)) in optimizer.parameters.variables.iter().enumerate() {
                if let Some(value) = self.gather(OPERATION, optimizer, number, index, Gets::Chief, at)? {
                    writer.insert(format!("{prefix}/{slot}/{name}"), value)?;
                }
            }
        }
        Ok(())
    }

    fn gather(
        &self,
        operation: &'static str,
        optimizer: &Inner,
        number: usize,
        index: usize,
        gets: Gets,
        at: &'static Location<'static>,
    ) -> Result<Option<HostTensor>> {
        let Self { partition } = self;
        let (name, variable) = &optimizer.parameters.variables[number];
        let strategy = &optimizer.parameters.strategy;
        let width = variable.dtype().size_in_bytes();
        let size = |worker| partition.of(number, worker).len() * width;
        let slots = optimizer.progress.read(operation)?;
        let call = || {
            let slot = optimizer.slot_names()[index];
            looking(optimizer, format_args!("{slot} of {name}"), at)
        };
        let come = strategy.among_workers(operation, call, |mut calling: GroupCall<'_>| {
            let mut mine = calling.buffers().take(size(partition.world().worker()));
            // Those that workers share are on the host.
            let elements = slots[number].elements(index).unwrap_or_default();
            mine.bytes_mut().iter_mut().zip(elements).for_each(|(place, byte)| *place = *byte);
            let mine = mine.freeze();
            match gets {
                Gets::All => calling.all_gather_sized("its slots", mine, size).map(Some),
                Gets::Chief => calling.gather_to(0, "its slots", mine, size),
            }
        })?;
        let Some(come) = come.flatten() else { return Ok(None) };
        let come: Vec<_> = partition.in_order(number).map(|worker| come[worker].clone()).collect();
        let whole = match variable.dtype() {
            DType::F64 => joined::<f64>(&come, variable.dims()),
            _ => joined::<f32>(&come, variable.dims()),
        };
        whole.map(Some)
    }
}

/// Refuses slots of a step that was not made, on all workers.
fn require_complete(
    optimizer: &Inner,
    operation: &'static str,
    at: &'static Location<'static>,
) -> Result<()> {
    let strategy = &optimizer.parameters.strategy;
    let mine = optimizer.progress.read(operation).and_then(|_| {
        if !optimizer.progress.is_incomplete() {
            return Ok(());
        }
        let worker = strategy.world().worker();
        Err(incomplete(operation, optimizer.finished_steps() + 1, &[worker]))
    });
    strategy.agree(operation, || looking(optimizer, "state", at), mine, |()| Bytes::new()).map(drop)
}

fn looking(optimizer: &Inner, what: impl std::fmt::Display, at: &'static Location<'static>) -> Fingerprint {
    let detail = format!("{} {}: {what}", optimizer.groups.rule().name(), optimizer.number);
    Fingerprint::new(Operation::ReadVariable, detail, at)
}

fn joined<F: Element + bytemuck::Pod>(parts: &[Bytes], dims: &[usize]) -> Result<HostTensor> {
    let mut all = Vec::with_capacity(dims.iter().product());
    parts.iter().for_each(|part| all.extend_from_slice(&numbers::<F>(part)));
    Ok(HostTensor::new(all, dims)?)
}
