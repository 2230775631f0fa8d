//! An operation on activations in half precision and parameters in f32.

use super::operation::{Operand, Operation};
use candle_core::{CpuStorage, CustomOp2, CustomOp3, DType, Layout, Result, Shape, Tensor, bail};
use distribute_base::internal::operand;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// An operation in f32 whose input and output are stored in half precision.
///
/// Parameters are not copied, and their gradients go to the bucket in f32.
pub(super) struct Widened<O>(pub(super) O);

impl<O: Operation> Widened<O> {
    fn forward(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        weight: Operand<'_, f32>,
        bias: Option<&[f32]>,
    ) -> Result<(CpuStorage, Shape)> {
        let compute =
            |elements: &[f32]| self.0.forward(Operand { elements, shape: of_x.shape() }, weight, bias);
        match x {
            CpuStorage::BF16(_) => {
                let (y, shape) = compute(&widen(operand::<bf16>(x, of_x)?))?;
                Ok((CpuStorage::BF16(narrow(&y, bf16::ZERO)), shape))
            }
            CpuStorage::F16(_) => {
                let (y, shape) = compute(&widen(operand::<f16>(x, of_x)?))?;
                Ok((CpuStorage::F16(narrow(&y, f16::ZERO)), shape))
            }
            _ => bail!("{}: an input in half precision is required", O::NAME),
        }
    }

    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        y: &Tensor,
        upstream: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let wide = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.contiguous();
        let [input_gradient, weight_gradient, bias_gradient] =
            self.0.backward::<f32>(&wide(x)?, weight, bias, &wide(y)?, &wide(upstream)?)?;
        let input_gradient = input_gradient.map(|gradient| gradient.to_dtype(x.dtype())).transpose()?;
        Ok([input_gradient, weight_gradient, bias_gradient])
    }
}

fn widen<H>(numbers: &[H]) -> Vec<f32>
where
    [H]: HalfFloatSliceExt,
{
    let mut wide = vec![0.; numbers.len()];
    numbers.convert_to_f32_slice(&mut wide);
    wide
}

fn narrow<H: Clone>(numbers: &[f32], zero: H) -> Vec<H>
where
    [H]: HalfFloatSliceExt,
{
    let mut narrow = vec![zero; numbers.len()];
    narrow.convert_from_f32_slice(numbers);
    narrow
}

impl<O: Operation> CustomOp3 for Widened<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        weight: &CpuStorage,
        of_weight: &Layout,
        bias: &CpuStorage,
        of_bias: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward(x, of_x, Operand::new(weight, of_weight)?, Some(operand(bias, of_bias)?))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        y: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        self.backward(x, weight, Some(bias), y, upstream).map(Into::into)
    }
}

impl<O: Operation> CustomOp2 for Widened<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        weight: &CpuStorage,
        of_weight: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward(x, of_x, Operand::new(weight, of_weight)?, None)
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        y: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [x, weight, _] = self.backward(x, weight, None, y, upstream)?;
        Ok((x, weight))
    }
}
