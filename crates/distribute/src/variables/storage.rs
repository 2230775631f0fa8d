//! Where one copy of a variable is: in a candle variable, or in a tensor in host memory.

use super::checksum;
use crate::{DeviceName, Result};
use candle_core::{CpuStorage, InplaceOp1, Layout, Var};
use distribute_tensor::dtype::Buffer;
use distribute_tensor::kernel;
use distribute_tensor::{HostTensor, IndexedSlices, Leaf, Write};
use std::ops::Range;
use std::sync::{PoisonError, RwLock};

/// Where one copy of a variable is. A [`Variable`](super::Variable) reads and writes its copies through it; layers and optimizers
/// take the candle variable in it.
pub(super) struct Storage {
    pub(super) device: DeviceName,
    memory: Memory,
}

enum Memory {
    Candle(Var),
    /// For the dtypes that candle lacks, and plain numbers.
    Host(RwLock<HostTensor>),
}

impl Storage {
    pub(super) fn new(initial: &Leaf, device: DeviceName) -> Result<Self> {
        let memory = match initial {
            Leaf::Candle(tensor) => {
                Memory::Candle(Var::from_tensor(&tensor.detach().to_device(&device.to_candle()?)?.copy()?)?)
            }
            other => Memory::Host(RwLock::new(other.to_host()?)),
        };
        Ok(Self { device, memory })
    }

    /// candle's variable, if it is one.
    pub(super) fn var(&self) -> Option<&Var> {
        match &self.memory {
            Memory::Candle(var) => Some(var),
            Memory::Host(_) => None,
        }
    }

    /// The value now; later writes leave it as it is.
    pub(super) fn read(&self) -> Result<Leaf> {
        match &self.memory {
            Memory::Candle(var) => Ok(Leaf::Candle(var.as_detached_tensor().copy()?)),
            // Whoever writes copies the elements first, if they are still shared.
            Memory::Host(tensor) => {
                Ok(Leaf::Host(tensor.read().unwrap_or_else(PoisonError::into_inner).clone()))
            }
        }
    }

    /// CRC-32C of some elements' bytes, going on from `sum`.
    pub(super) fn checksum(&self, elements: Range<usize>, sum: u32) -> Result<u32> {
        match &self.memory {
            Memory::Candle(var) => Ok(checksum::of_candle(var.as_tensor(), elements, sum)?),
            Memory::Host(tensor) => {
                let tensor = tensor.read().unwrap_or_else(PoisonError::into_inner);
                Ok(checksum::of_host(tensor.buffer(), elements, sum))
            }
        }
    }

    /// Writes a value that fits, and that shares no elements with a variable of candle: two locks would be held at once.
    pub(super) fn write(&self, how: Write, value: &HostTensor) -> Result<()> {
        match &self.memory {
            Memory::Candle(var) => on_candle(var, how, value, None),
            Memory::Host(tensor) => {
                Ok(tensor.write().unwrap_or_else(PoisonError::into_inner).write(how, value)?)
            }
        }
    }

    /// Writes rows that fit, one after another.
    pub(super) fn write_rows(&self, how: Write, rows: &IndexedSlices) -> Result<()> {
        match &self.memory {
            Memory::Candle(var) => on_candle(var, how, &rows.values, Some(rows.to_rows()?)),
            Memory::Host(tensor) => {
                Ok(tensor.write().unwrap_or_else(PoisonError::into_inner).write_rows(how, rows)?)
            }
        }
    }
}

/// Writes into a candle variable: in place on the CPU, by way of a copy elsewhere.
fn on_candle(var: &Var, how: Write, values: &HostTensor, rows: Option<Vec<usize>>) -> Result<()> {
    if var.device().is_cpu() && var.is_contiguous() {
        return Ok(var.inplace_op1(&InPlace { how, values, rows })?);
    }
    let mut whole = HostTensor::from_candle(var.as_tensor())?;
    match rows {
        None => whole.write(how, values)?,
        Some(rows) => {
            let indices = HostTensor::vector(rows.into_iter().map(|row| row as i64).collect::<Vec<_>>());
            whole.write_rows(how, &IndexedSlices { values: values.clone(), indices, dense_shape: None })?;
        }
    }
    Ok(var.set(&whole.to_candle(var.device())?)?)
}

struct InPlace<'a> {
    how: Write,
    values: &'a HostTensor,
    rows: Option<Vec<usize>>,
}

impl InplaceOp1 for InPlace<'_> {
    fn name(&self) -> &'static str {
        "variable write"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("the variable is not contiguous")
        };
        macro_rules! by_type {
            ($($candle:ident $ours:ident,)*) => {
                match (storage, self.values.buffer()) {
                    $((CpuStorage::$candle(to), Buffer::$ours(from)) => {
                        self.how.check(from).map_err(candle_core::Error::msg)?;
                        let Some(operation) = self.how.of() else {
                            candle_core::bail!("{} is not for {:?}", self.how.name(), self.values.dtype())
                        };
                        match &self.rows {
                            None => kernel::write(&mut to[start..end], from, operation),
                            Some(rows) => kernel::write_rows(&mut to[start..end], rows, from, operation),
                        }
                        Ok(())
                    })*
                    _ => candle_core::bail!("the value is {}, the variable is not", self.values.dtype()),
                }
            };
        }
        by_type!(U8 U8, U32 U32, I16 I16, I32 I32, I64 I64, BF16 Bf16, F16 F16, F32 F32, F64 F64,)
    }
}
