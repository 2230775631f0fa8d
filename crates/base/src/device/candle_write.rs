//! Writes to candle variables.

use crate::error::{Error, Result};
use candle_core::{CpuStorage, InplaceOp1, Layout, Var};
use distribute_tensor::dtype::Buffer;
use distribute_tensor::kernel;
use distribute_tensor::{HostTensor, IndexedSlices, Write};

/// Writes values to a candle variable: in place if it is contiguous on the CPU, otherwise through a copy on the host.
/// If `rows` is given, writes only these rows of the variable. `values` must have the shape of the variable or of these
/// rows. A variable without elements stays unchanged.
///
/// # Errors
/// - [`Error::Candle`], [`Error::Tensor`]: the dtypes differ, the dtype does not support the operation, an integer
///   would be divided by 0, or a copy fails.
pub fn write(var: &Var, how: Write, values: &HostTensor, rows: Option<Vec<usize>>) -> Result<()> {
    // candle treats rows without columns as repeated elements.
    if var.elem_count() == 0 {
        return Ok(());
    }
    if var.device().is_cpu() && var.is_contiguous() {
        return Ok(var.inplace_op1(&InPlace { how, values, rows, first: 0 })?);
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

/// Writes values to a contiguous candle variable on the CPU, beginning at element `first`.
///
/// # Errors
/// - [`Error::InvalidArgument`]: the values exceed the variable.
/// - [`Error::Candle`]: the dtypes differ, or the variable is not a contiguous tensor on the CPU.
pub fn put(var: &Var, first: usize, values: &HostTensor) -> Result<()> {
    if values.len().checked_add(first).is_none_or(|end| end > var.elem_count()) {
        let reason = format!("{} elements from {first} on exceed {:?}", values.len(), var.dims());
        return Err(Error::invalid("variable write", reason));
    }
    if values.is_empty() {
        return Ok(());
    }
    Ok(var.inplace_op1(&InPlace { how: Write::Assign, values, rows: None, first })?)
}

/// Calls `change` with the elements of an `f32` variable: in place if it is contiguous on the CPU, otherwise with a
/// copy on the host, which is then written back.
///
/// # Errors
/// - [`Error::Candle`], [`Error::Tensor`]: a variable that is changed in place has a different dtype, or a copy fails.
///   A variable of a different dtype that is copied stays unchanged.
pub fn change_f32(var: &Var, change: impl Fn(&mut [f32])) -> Result<()> {
    // candle treats rows without columns as repeated elements.
    if var.elem_count() == 0 {
        return Ok(());
    }
    if var.device().is_cpu() && var.is_contiguous() {
        return Ok(var.inplace_op1(&Change(change))?);
    }
    let mut whole = HostTensor::from_candle(var.as_tensor())?;
    change(whole.as_mut_slice::<f32>().unwrap_or_default());
    Ok(var.set(&whole.to_candle(var.device())?)?)
}

struct Change<F>(F);

impl<F: Fn(&mut [f32])> InplaceOp1 for Change<F> {
    fn name(&self) -> &'static str {
        "variable write"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        match (storage, layout.contiguous_offsets()) {
            (CpuStorage::F32(elements), Some((start, end))) => (self.0)(&mut elements[start..end]),
            _ => candle_core::bail!("the variable is not a contiguous tensor of f32"),
        }
        Ok(())
    }
}

struct InPlace<'a> {
    how: Write,
    values: &'a HostTensor,
    rows: Option<Vec<usize>>,
    /// The index of the first element to write. It is only used if `rows` is `None`.
    first: usize,
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
                            candle_core::bail!("{} does not support {:?}", self.how.name(), self.values.dtype())
                        };
                        match &self.rows {
                            None => {
                                let at = start + self.first..end.min(start + self.first + from.len());
                                kernel::write(&mut to[at], from, operation)
                            }
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
