//! The memory of one copy of a variable: a candle variable, a tensor in host memory, or parameter servers.

use super::{cache, checksum};
use crate::strategy::Strategy;
use candle_core::{Device, Tensor, Var};
use distribute_base::internal::{DeviceCopies, in_candle, to_device};
use distribute_base::{DeviceName, Error, Result};
use distribute_ps_client::internal::RemoteVariable;
use distribute_ps_tables::RowPartition;
use distribute_tensor::{HostTensor, IndexedSlices, Leaf, Write};
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

/// The memory of one copy of a variable. A [`Variable`](super::Variable) reads and writes its copies through
/// it; layers and optimizers use its candle variable.
pub(super) struct Storage {
    pub(super) device: DeviceName,
    memory: Memory,
    /// Its copies for replicas whose devices have separate memory.
    device_copies: Option<Arc<DeviceCopies>>,
}

enum Memory {
    Candle(Var),
    /// A tensor on the host, for the dtypes that candle lacks and for plain numbers.
    Host(RwLock<HostTensor>),
    Servers(Arc<RemoteVariable>),
}

impl Storage {
    /// Creates a copy on servers.
    pub(super) fn on_servers(variable: RemoteVariable) -> Self {
        // If it has several shards, colocated variables go next to the last.
        let server = variable.tables().shards().last().map_or(0, |shard| shard.server);
        let memory = Memory::Servers(Arc::new(variable));
        Self { device: DeviceName::of_server(server), memory, device_copies: None }
    }

    pub(super) fn new(initial: &Leaf, device: DeviceName) -> Result<Self> {
        let memory = match initial {
            Leaf::Candle(tensor) => {
                Memory::Candle(Var::from_tensor(&to_device(&tensor.detach(), &device.to_candle()?)?.copy()?)?)
            }
            other => Memory::Host(RwLock::new(other.to_host()?)),
        };
        Ok(Self { device, memory, device_copies: None })
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

    /// Returns its copies for replicas whose devices have separate memory, if there are any.
    pub(super) fn device_copies(&self) -> Option<&Arc<DeviceCopies>> {
        self.device_copies.as_ref()
    }

    /// Refreshes it from its copies on devices, if these were written. Called before each read or write.
    pub(super) fn bring_back(&self) -> Result<()> {
        self.device_copies.iter().try_for_each(|copies| copies.bring_back())
    }

    /// Records that it was written, perhaps in part.
    fn written(&self) {
        self.device_copies.iter().for_each(|copies| copies.written());
    }

    /// Returns its candle variable, if it has one.
    pub(super) fn var(&self) -> Option<&Var> {
        match &self.memory {
            Memory::Candle(var) => Some(var),
            Memory::Servers(remote) => remote.var(),
            Memory::Host(_) => None,
        }
    }

    /// Returns its variable on servers, if it is there.
    pub(super) fn remote(&self) -> Option<&Arc<RemoteVariable>> {
        match &self.memory {
            Memory::Servers(remote) => Some(remote),
            Memory::Candle(_) | Memory::Host(_) => None,
        }
    }

    /// Returns the current value; later writes do not change it.
    pub(super) fn read(&self) -> Result<Leaf> {
        self.bring_back()?;
        match &self.memory {
            Memory::Candle(var) => Ok(Leaf::Candle(var.as_detached_tensor().copy()?)),
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

    /// Returns the rows of some ids, in their order.
    ///
    /// # Errors
    /// An error for an id that is no row, and for a scalar.
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

    /// Computes CRC-32C of the bytes of some elements, continuing from `sum`.
    pub(super) fn checksum(&self, elements: Range<usize>, sum: u32) -> Result<u32> {
        self.bring_back()?;
        match &self.memory {
            Memory::Candle(var) => Ok(checksum::of_candle(var.as_tensor(), elements, sum)?),
            Memory::Host(tensor) => {
                let tensor = tensor.read().unwrap_or_else(PoisonError::into_inner);
                Ok(checksum::of_host(tensor.buffer(), elements, sum))
            }
            Memory::Servers(remote) => {
                Ok(checksum::of_host(remote.value("checksum")?.read()?.buffer(), elements, sum))
            }
        }
    }

    /// Writes a value that fits and that shares no elements with a candle variable: two locks would be held at
    /// once.
    pub(super) fn write(&self, how: Write, value: &HostTensor) -> Result<()> {
        self.bring_back()?;
        let written = match &self.memory {
            Memory::Candle(var) => in_candle::write(var, how, value, None),
            Memory::Servers(remote) => remote.value(how.name()).and_then(|tables| tables.write(how, value)),
            Memory::Host(tensor) => {
                Ok(tensor.write().unwrap_or_else(PoisonError::into_inner).write(how, value)?)
            }
        };
        self.written();
        written
    }

    /// Sets it to a candle tensor that fits. A tensor that shares its elements is refused.
    pub(super) fn set(&self, value: &Tensor) -> Result<()> {
        self.bring_back()?;
        match &self.memory {
            Memory::Candle(var) => {
                let set = to_device(value, var.device()).and_then(|value| var.set(&value));
                self.written();
                Ok(set?)
            }
            _ => self.write(Write::Assign, &HostTensor::from_candle(value)?),
        }
    }

    /// Writes rows that fit, one after another.
    pub(super) fn write_rows(&self, how: Write, rows: &IndexedSlices) -> Result<()> {
        self.bring_back()?;
        let written = match &self.memory {
            Memory::Candle(var) => in_candle::write(var, how, &rows.values, Some(rows.to_rows()?)),
            Memory::Servers(remote) => {
                remote.value(how.name()).and_then(|tables| tables.write_rows(how, rows))
            }
            Memory::Host(tensor) => {
                Ok(tensor.write().unwrap_or_else(PoisonError::into_inner).write_rows(how, rows)?)
            }
        };
        self.written();
        written
    }
}
