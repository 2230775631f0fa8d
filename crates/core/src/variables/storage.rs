//! Where one copy of a variable is: in a candle variable, in a tensor in host memory, or on parameter servers.

use super::{cache, checksum, dynamic};
use crate::strategy::Strategy;
use candle_core::{Device, Tensor, Var};
use distribute_base::internal::{DeviceCopies, in_candle, to_device};
use distribute_base::{DeviceName, Error, Result};
use distribute_params::RowPartition;
use distribute_ps_client as servers;
use distribute_ps_client::internal::{Dynamic, Sharded, Staged};
use distribute_tensor::{HostTensor, IndexedSlices, Leaf, Write};
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

/// Where one copy of a variable is. A [`Variable`](super::Variable) reads and writes its copies through it; layers and optimizers
/// take the candle variable in it.
pub(super) struct Storage {
    pub(super) device: DeviceName,
    memory: Memory,
    /// Copies of it for replicas whose devices have memory of their own.
    device_copies: Option<Arc<DeviceCopies>>,
}

enum Memory {
    Candle(Var),
    /// For the dtypes that candle lacks, and plain numbers.
    Host(RwLock<HostTensor>),
    Servers(Arc<OnServers>),
    Dynamic(Box<Ids>),
}

/// A variable on parameter servers.
pub(super) struct OnServers {
    pub(super) rows: Sharded,
    /// Where it is computed with, if it was made of a candle tensor.
    pub(super) staged: Option<Staged>,
}

/// A variable on parameter servers whose rows are ids.
pub(super) struct Ids {
    pub(super) rows: Dynamic,
    /// One row, which stands for all of them in candle's graph. Nobody reads it.
    row: Var,
}

impl Storage {
    /// Ids on servers, with rows of `row`, which is one.
    pub(super) fn of_ids(rows: Dynamic, row: Var) -> Self {
        let server = rows.tables().shards().last().map_or(0, |shard| shard.server);
        let memory = Memory::Dynamic(Box::new(Ids { rows, row }));
        Self { device: DeviceName::of_server(server), memory, device_copies: None }
    }

    /// On servers, and first of all on this one's device.
    pub(super) fn on_servers(rows: Sharded, staged: Option<Staged>) -> Self {
        // Of several shards what is made beside them goes beside the last.
        let server = rows.shards().last().map_or(0, |shard| shard.server);
        Self {
            device: DeviceName::of_server(server),
            memory: Memory::Servers(Arc::new(OnServers { rows, staged })),
            device_copies: None,
        }
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

    /// The same, of which the strategy's replicas have copies where their devices have memory of their own.
    pub(super) fn on_devices_of(self, strategy: &Strategy) -> Result<Self> {
        let device_copies = match (&self.memory, self.var()) {
            // Its rows are brought to devices, never the table.
            (Memory::Dynamic(_), _) | (_, None) => None,
            (_, Some(var)) => strategy.device_copies(var)?,
        };
        if let (Some(copies), Some(staged)) =
            (&device_copies, self.servers().and_then(|on| on.staged.as_ref()))
        {
            staged.has_copies(copies.clone());
        }
        Ok(Self { device_copies, ..self })
    }

    /// Copies of it for replicas whose devices have memory of their own, where there are such.
    pub(super) fn device_copies(&self) -> Option<&Arc<DeviceCopies>> {
        self.device_copies.as_ref()
    }

    /// Brings it up to date, if its copies on devices were written in its place: before it is read or written.
    pub(super) fn bring_back(&self) -> Result<()> {
        self.device_copies.iter().try_for_each(|copies| copies.bring_back())
    }

    /// It was written, perhaps in part.
    fn written(&self) {
        self.device_copies.iter().for_each(|copies| copies.written());
    }

    /// candle's variable, if it is one.
    pub(super) fn var(&self) -> Option<&Var> {
        match &self.memory {
            Memory::Candle(var) => Some(var),
            Memory::Servers(on) => on.staged.as_ref().map(Staged::var),
            Memory::Dynamic(ids) => Some(&ids.row),
            Memory::Host(_) => None,
        }
    }

    /// What of it is on servers, if it is.
    pub(super) fn servers(&self) -> Option<&Arc<OnServers>> {
        match &self.memory {
            Memory::Servers(on) => Some(on),
            Memory::Candle(_) | Memory::Host(_) | Memory::Dynamic(_) => None,
        }
    }

    /// Its rows, if they are ids.
    pub(super) fn ids(&self) -> Option<&Dynamic> {
        match &self.memory {
            Memory::Dynamic(ids) => Some(&ids.rows),
            Memory::Candle(_) | Memory::Host(_) | Memory::Servers(_) => None,
        }
    }

    /// Brings what candle computes with up to date. Nobody may be computing with it.
    pub(super) fn pull(&self, operation: &'static str) -> Result<()> {
        match self.servers().map(|on| (&on.rows, on.staged.as_ref())) {
            Some((rows, Some(staged))) => servers::pull(operation, &[(rows, staged)]),
            _ => Ok(()),
        }
    }

    /// The value now; later writes leave it as it is.
    pub(super) fn read(&self) -> Result<Leaf> {
        self.bring_back()?;
        match &self.memory {
            Memory::Candle(var) => Ok(Leaf::Candle(var.as_detached_tensor().copy()?)),
            // Whoever writes copies the elements first, if they are still shared.
            Memory::Host(tensor) => {
                Ok(Leaf::Host(tensor.read().unwrap_or_else(PoisonError::into_inner).clone()))
            }
            Memory::Servers(on) => {
                let value = cache::read(&on.rows)?;
                Ok(if on.staged.is_some() {
                    Leaf::Candle(value.to_candle(&Device::Cpu)?)
                } else {
                    Leaf::Host(value)
                })
            }
            Memory::Dynamic(_) => Err(dynamic::no_value("read")),
        }
    }

    /// The rows of some ids, in their order.
    ///
    /// # Errors
    /// For an id that is no row, and of a scalar.
    pub(super) fn read_rows(&self, operation: &'static str, ids: &[i64]) -> Result<HostTensor> {
        if let Memory::Servers(on) = &self.memory {
            return on.rows.read_rows(operation, ids);
        }
        if let Memory::Dynamic(of) = &self.memory {
            return of.rows.read_each(operation, ids)?.in_order();
        }
        let whole = self.read()?.to_host()?;
        let Some(height) = whole.dims().first() else {
            return Err(Error::invalid(operation, "a scalar has no rows"));
        };
        let rows = RowPartition::div(*height, 1).split(operation, ids)?;
        Ok(whole.take_rows(rows.of(0))?)
    }

    /// CRC-32C of some elements' bytes, going on from `sum`.
    pub(super) fn checksum(&self, elements: Range<usize>, sum: u32) -> Result<u32> {
        self.bring_back()?;
        match &self.memory {
            Memory::Candle(var) => Ok(checksum::of_candle(var.as_tensor(), elements, sum)?),
            Memory::Host(tensor) => {
                let tensor = tensor.read().unwrap_or_else(PoisonError::into_inner);
                Ok(checksum::of_host(tensor.buffer(), elements, sum))
            }
            Memory::Servers(on) => Ok(checksum::of_host(on.rows.read()?.buffer(), elements, sum)),
            Memory::Dynamic(_) => Err(dynamic::no_value("checksum")),
        }
    }

    /// Writes a value that fits, and that shares no elements with a variable of candle: two locks would be held at once.
    pub(super) fn write(&self, how: Write, value: &HostTensor) -> Result<()> {
        self.bring_back()?;
        let written = match &self.memory {
            Memory::Candle(var) => in_candle::write(var, how, value, None),
            Memory::Servers(on) => on.rows.write(how, value),
            Memory::Dynamic(_) => Err(dynamic::no_value(how.name())),
            Memory::Host(tensor) => {
                Ok(tensor.write().unwrap_or_else(PoisonError::into_inner).write(how, value)?)
            }
        };
        self.written();
        written
    }

    /// Sets it to a candle tensor that fits. One that shares its elements is refused.
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
            Memory::Servers(on) => on.rows.write_rows(how, rows),
            Memory::Dynamic(_) => Err(dynamic::no_value(how.name())),
            Memory::Host(tensor) => {
                Ok(tensor.write().unwrap_or_else(PoisonError::into_inner).write_rows(how, rows)?)
            }
        };
        self.written();
        written
    }
}
