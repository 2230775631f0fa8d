//! Slots of which each worker keeps a range, put together.

use super::shards::Shards;
use super::{Optimizer, sharding};
use bytes::Bytes;
use candle_core::{DType, Device, Tensor};
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::group::{GroupCall, numbers};
use distribute_core::internal::require_outside_of_run;
use distribute_optim::Rule;
use distribute_tensor::Element;
use distribute_tensor::HostTensor;
use std::panic::Location;

/// Who gets what is put together.
#[derive(Clone, Copy, PartialEq)]
enum Gets {
    All,
    /// The chief alone.
    Chief,
}

impl<R: Rule> Optimizer<R> {
    /// One slot of a variable, on all workers.
    pub(super) fn slot_of_all(
        &self,
        shards: &Shards,
        variable: usize,
        slot: usize,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        const OPERATION: &str = "slot";
        require_outside_of_run(
            OPERATION,
            "the state is sharded, and all workers look at it together: between runs",
        )?;
        self.require_complete(OPERATION, at)?;
        match self.gather(OPERATION, shards, variable, slot, Gets::All, at)? {
            Some(all) => Ok(all.to_candle(&Device::Cpu)?),
            None => Err(Error::invalid(OPERATION, "it was put together on another worker")),
        }
    }

    /// One slot of a variable, on the chief.
    pub(super) fn slot_on_chief(
        &self,
        shards: &Shards,
        variable: usize,
        slot: usize,
        at: &'static Location<'static>,
    ) -> Result<Option<HostTensor>> {
        self.gather("Checkpoint::save", shards, variable, slot, Gets::Chief, at)
    }

    /// Refuses slots of a step that was not made, on all workers.
    pub(super) fn require_complete(
        &self,
        operation: &'static str,
        at: &'static Location<'static>,
    ) -> Result<()> {
        let strategy = &self.trained.strategy;
        let mine = self.progress.read(operation).and_then(|_| {
            if !self.progress.is_incomplete() {
                return Ok(());
            }
            let worker = strategy.world().worker();
            Err(sharding::incomplete(operation, self.finished_steps() + 1, &[worker]))
        });
        strategy.agree(operation, || self.looking("state", at), mine, |()| Bytes::new()).map(drop)
    }

    fn looking(&self, what: impl std::fmt::Display, at: &'static Location<'static>) -> Fingerprint {
        let detail = format!("{} {}: {what}", self.rule.name(), self.number);
        Fingerprint::new(Operation::ReadVariable, detail, at)
    }

    fn gather(
        &self,
        operation: &'static str,
        shards: &Shards,
        number: usize,
        index: usize,
        gets: Gets,
        at: &'static Location<'static>,
    ) -> Result<Option<HostTensor>> {
        let (name, variable) = &self.trained.variables[number];
        let strategy = &self.trained.strategy;
        let width = variable.dtype().size_in_bytes();
        let size = |worker| shards.of(number, worker).len() * width;
        let slots = self.progress.read(operation)?;
        let call = || {
            let slot = self.slot_names().nth(index).unwrap_or_default();
            self.looking(format_args!("{slot} of {name}"), at)
        };
        let come = strategy.among_workers(operation, call, |mut calling: GroupCall<'_>| {
            let mut mine = calling.buffers().take(size(shards.world().worker()));
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
        let come: Vec<_> = shards.in_order(number).map(|worker| come[worker].clone()).collect();
        let whole = match variable.dtype() {
            DType::F64 => joined::<f64>(&come, variable.dims()),
            _ => joined::<f32>(&come, variable.dims()),
        };
        whole.map(Some)
    }
}

fn joined<F: Element + bytemuck::Pod>(parts: &[Bytes], dims: &[usize]) -> Result<HostTensor> {
    let mut all = Vec::with_capacity(dims.iter().product());
    parts.iter().for_each(|part| all.extend_from_slice(&numbers::<F>(part)));
    Ok(HostTensor::new(all, dims)?)
}
