//! The storage of one copy of a variable: a candle variable, a tensor in host memory, or parameter servers.

use super::live::LiveVar;
use super::{cache, checksum};
use crate::strategy::Strategy;
use candle_core::{Device, Tensor, Var};
use distribute_base::internal::{DeviceCopies, candle_write, to_device};
use distribute_base::{DeviceName, Error, Result};
use distribute_checkpoint::LiveTensors;
use distribute_ps_client::internal::{RemoteVariable, StochasticRounding};
use distribute_ps_tables::RowPartition;
use distribute_tensor::{HostTensor, IndexedSlices, Leaf, Write};
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

/// The storage of one copy of a variable. A [`Variable`](super::Variable) reads and writes its copies through their
/// storage. Layers and optimizers access the candle variable directly.
pub(super) struct Storage {
    pub(super) device: DeviceName,
    memory: Memory,
    /// The copies for replicas whose devices have separate memory.
    device_copies: Option<Arc<DeviceCopies>>,
    /// The rounding of updated values to bf16; `None` if values are not stored in bf16, or if they are on servers,
    /// which round them.
    rounding: Option<StochasticRounding>,
}

enum Memory {
    Candle(Arc<LiveVar>),
    /// A tensor in host memory, for variables created from plain numbers and for dtypes that candle does not support.
    Host(RwLock<HostTensor>),
    Servers(Arc<RemoteVariable>),
}

impl Storage {
    /// Creates the storage of a variable on parameter servers.
    pub(super) fn on_servers(variable: RemoteVariable) -> Self {
        // If it has several shards, colocated variables go next to the last.
        let server = variable.tables().shards().last().map_or(0, |shard| shard.server);
        let memory = Memory::Servers(Arc::new(variable));
        Self { device: DeviceName::of_server(server), memory, device_copies: None, rounding: None }
    }

    pub(super) fn new(initial: &Leaf, device: DeviceName) -> Result<Self> {
        let memory = match initial {
            Leaf::Candle(tensor) => {
                let tensor = to_device(&tensor.detach(), &device.to_candle()?)?.copy()?;
                Memory::Candle(Arc::new(LiveVar(Var::from_tensor(&tensor)?)))
            }
            other => Memory::Host(RwLock::new(other.to_host()?)),
        };
        Ok(Self { device, memory, device_copies: None, rounding: None })
    }

    /// Adds copies for the strategy's replicas whose devices have separate memory.
    pub(super) fn on_devices_of(self, strategy: &Strategy) -> Result<Self> {
        let device_copies = match self.var() {
            // If rows are ids, only rows are copied to devices, never the table.
            Some(var) if self.remote().is_none_or(|remote| remote.ids().is_none()) => {
                strategy.device_copies(var)?
            }
            _ => None,
        };
        if let (Some(copies), Some(cache)) = (&device_copies, self.remote().and_then(|on| on.cache())) {
            cache.set_device_copies(copies.clone());
        }
        Ok(Self { device_copies, ..self })
    }

    /// Rounds the values to the nearest bf16, now and after each write, and lets optimizers round updated values by
    /// `rounding`. Does nothing if `rounding` is `None`, or if the values are on servers.
    ///
    /// # Errors
    /// - [`Error::NotSupported`]: replicas on devices with separate memory update their copies there.
    pub(super) fn rounded(self, strategy: &Strategy, rounding: Option<StochasticRounding>) -> Result<Self> {
        if rounding.is_none() || self.remote().is_some() {
            return Ok(self);
        }
        if self.device_copies.is_some() {
            return Err(Error::NotSupported {
                operation: "replicate",
                strategy: strategy.extended().kind(),
                what: "RowFormat::Bf16 for mirrored tables on devices with separate memory",
                advice: "store the tables on the workers, by TableHosts::Workers",
            });
        }
        let rounded = Self { rounding, ..self };
        rounded.round_nearest(None)?;
        Ok(rounded)
    }

    /// Returns the rounding by which optimizers round updated values.
    pub(super) fn rounding(&self) -> Option<StochasticRounding> {
        self.rounding
    }

    // INV-95
    /// Rounds all values, or the given rows, to the nearest bf16. Does nothing if there is no rounding, or if the value
    /// is not in a candle variable.
    fn round_nearest(&self, rows: Option<&[usize]>) -> Result<()> {
        let (Memory::Candle(var), Some(_)) = (&self.memory, self.rounding) else { return Ok(()) };
        let width: usize = var.0.dims().get(1..).unwrap_or_default().iter().product();
        candle_write::change_f32(&var.0, |values| match rows {
            None => StochasticRounding::round_nearest(values),
            Some(rows) => rows.iter().for_each(|row| {
                StochasticRounding::round_nearest(&mut values[row * width..(row + 1) * width]);
            }),
        })
    }

    /// Returns the copies for replicas whose devices have separate memory, if there are any.
    pub(super) fn device_copies(&self) -> Option<&Arc<DeviceCopies>> {
        self.device_copies.as_ref()
    }

    /// Copies the value back from a device if a copy there has been written. Must be called before each read or write.
    pub(super) fn sync_to_host(&self) -> Result<()> {
        self.device_copies.iter().try_for_each(|copies| copies.sync_to_host())
    }

    /// Records that the value was written, at least partially.
    fn mark_written(&self) {
        self.device_copies.iter().for_each(|copies| copies.mark_written());
    }

    /// Returns the candle variable, if this storage has one.
    pub(super) fn var(&self) -> Option<&Var> {
        match &self.memory {
            Memory::Candle(var) => Some(&var.0),
            Memory::Servers(remote) => remote.var(),
            Memory::Host(_) => None,
        }
    }

    /// Returns the variable on parameter servers, if it is stored there.
    pub(super) fn remote(&self) -> Option<&Arc<RemoteVariable>> {
        match &self.memory {
            Memory::Servers(remote) => Some(remote),
            Memory::Candle(_) | Memory::Host(_) => None,
        }
    }

    /// Returns a copy of the current value, which later writes do not change.
    pub(super) fn read(&self) -> Result<Leaf> {
        self.sync_to_host()?;
        match &self.memory {
            Memory::Candle(var) => Ok(Leaf::Candle(var.0.as_detached_tensor().copy()?)),
            // A writer copies the elements first, if they are still shared.
            Memory::Host(tensor) => {
                Ok(Leaf::Host(tensor.read().unwrap_or_else(PoisonError::into_inner).clone()))
            }
            Memory::Servers(remote) => {
                let value = cache::read(remote.value("read")?)?;
                Ok(if remote.cache().is_some() {
                    Leaf::Candle(value.to_candle(&Device::Cpu)?)
                } else {
                    Leaf::Host(value)
                })
            }
        }
    }

    /// Returns the value as a live tensor of a checkpoint. Returns `None` unless the value is a contiguous candle
    /// variable in CPU memory.
    ///
    /// # Errors
    /// Returns candle's error if a newer value cannot be copied from a device.
    pub(super) fn live(&self) -> Result<Option<Arc<dyn LiveTensors>>> {
        self.sync_to_host()?;
        Ok(match &self.memory {
            Memory::Candle(var) if var.0.device().is_cpu() && var.0.is_contiguous() => Some(var.clone()),
            Memory::Candle(_) | Memory::Host(_) | Memory::Servers(_) => None,
        })
    }

    /// Returns the rows with the given ids, in the same order.
    ///
    /// # Errors
    /// Returns an error if an id is not the index of a row, or if the variable is a scalar.
    pub(super) fn read_rows(&self, operation: &'static str, ids: &[i64]) -> Result<HostTensor> {
        if let Memory::Servers(remote) = &self.memory {
            return remote.read_rows(operation, ids);
        }
        let whole = self.read()?.to_host()?;
        let Some(height) = whole.dims().first() else {
            return Err(Error::invalid(operation, "a scalar has no rows"));
        };
        let rows = RowPartition::div(*height, 1).split(operation, ids)?;
        Ok(whole.take_rows(rows.of(0))?)
    }

    /// Computes the CRC-32C of the bytes of a range of elements, continuing from `sum`.
    pub(super) fn checksum(&self, elements: Range<usize>, sum: u32) -> Result<u32> {
        self.sync_to_host()?;
        match &self.memory {
            Memory::Candle(var) => Ok(checksum::candle_checksum(var.0.as_tensor(), elements, sum)?),
            Memory::Host(tensor) => {
                let tensor = tensor.read().unwrap_or_else(PoisonError::into_inner);
                Ok(checksum::host_checksum(tensor.buffer(), elements, sum))
            }
            Memory::Servers(remote) => {
                Ok(checksum::host_checksum(remote.value("checksum")?.read()?.buffer(), elements, sum))
            }
        }
    }

    /// Writes a value of the same shape and dtype. The value must not share elements with a candle variable, because
    /// two locks would be held at the same time.
    pub(super) fn write(&self, how: Write, value: &HostTensor) -> Result<()> {
        self.sync_to_host()?;
        let written = match &self.memory {
            Memory::Candle(var) => {
                candle_write::write(&var.0, how, value, None).and_then(|()| self.round_nearest(None))
            }
            Memory::Servers(remote) => remote.value(how.name()).and_then(|tables| tables.write(how, value)),
            Memory::Host(tensor) => {
                Ok(tensor.write().unwrap_or_else(PoisonError::into_inner).write(how, value)?)
            }
        };
        self.mark_written();
        written
    }

    /// Assigns a candle tensor of the same shape and dtype. Fails if the tensor shares memory with this
    /// variable.
    pub(super) fn set(&self, value: &Tensor) -> Result<()> {
        self.sync_to_host()?;
        match &self.memory {
            Memory::Candle(var) => {
                let set = to_device(value, var.0.device()).and_then(|value| var.0.set(&value));
                self.mark_written();
                set?;
                self.round_nearest(None)
            }
            _ => self.write(Write::Assign, &HostTensor::from_candle(value)?),
        }
    }

    /// Writes rows, one after another. They must have the variable's dtype and row shape.
    pub(super) fn write_rows(&self, how: Write, rows: &IndexedSlices) -> Result<()> {
        self.sync_to_host()?;
        let written = match &self.memory {
            Memory::Candle(var) => {
                let indices = rows.to_rows()?;
                candle_write::write(&var.0, how, &rows.values, Some(indices.clone()))
                    .and_then(|()| self.round_nearest(Some(&indices)))
            }
            Memory::Servers(remote) => {
                remote.value(how.name()).and_then(|tables| tables.write_rows(how, rows))
            }
            Memory::Host(tensor) => {
                Ok(tensor.write().unwrap_or_else(PoisonError::into_inner).write_rows(how, rows)?)
            }
        };
        self.mark_written();
        written
    }
}
