//! Transforms of gradients with candle's operations. Norms are tensors on the device.

use super::compute::select_rows;
use crate::transform::{Transform, TransformKind};
use candle_core::{DType, Tensor, Var};
use distribute_base::Result;
use distribute_base::internal::{ReplicaGradient, choose, to_host};
use distribute_kernels::program::full;

/// Transforms a replica's gradients on its device. `copies` are the variables with which the replica computes.
/// Transforms that are closures are skipped.
pub(crate) fn transform(
    transforms: &[Transform],
    gradients: &mut [Option<ReplicaGradient>],
    copies: &[Option<&Var>],
) -> Result<()> {
    for transform in transforms {
        match *transform.kind() {
            TransformKind::ClipByValue { min, max } => change(gradients, |values| {
                // This form of the comparison keeps NaN.
                let values = choose(&values.lt(min)?, &full(min, values)?, values)?;
                Ok(choose(&values.gt(max)?, &full(max, &values)?, &values)?)
            })?,
            TransformKind::WeightDecay(rate) => {
                for (gradient, copy) in gradients.iter_mut().zip(copies) {
                    let (Some(gradient), Some(copy)) = (gradient, copy) else { continue };
                    let index = gradient.index_on_device()?;
                    gradient.change_on_device(|values| {
                        let decayed =
                            select_rows(&copy.as_detached_tensor(), index.as_ref())?.affine(rate, 0.)?;
                        Ok((values + decayed)?)
                    })?;
                }
            }
            TransformKind::ClipByNorm(max) => {
                change(gradients, |values| scaled(values, &factor(&square(values)?, max)?))?
            }
            TransformKind::ClipByGlobalNorm(max) => {
                let all = gradients.iter().flatten().filter_map(ReplicaGradient::on_device);
                let squares = all.map(square).collect::<Result<Vec<_>>>()?;
                if !squares.is_empty() {
                    let factor = factor(&Tensor::stack(&squares, 0)?.sum_all()?, max)?;
                    change(gradients, |values| scaled(values, &factor))?;
                }
            }
            // Closures get gradients on the host.
            TransformKind::Each(_) => {}
        }
    }
    Ok(())
}

fn change(
    gradients: &mut [Option<ReplicaGradient>],
    change: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<()> {
    gradients.iter_mut().flatten().try_for_each(|gradient| gradient.change_on_device(&change))
}

/// Multiplies a replica's gradients on its device by `weight`.
pub(crate) fn weigh(gradients: &mut [Option<ReplicaGradient>], weight: f64) -> Result<()> {
    if weight == 1. {
        return Ok(());
    }
    change(gradients, |values| Ok(values.affine(weight, 0.)?))
}

/// Returns the sum of the squares of all elements, as f64.
fn square(values: &Tensor) -> Result<Tensor> {
    total(values.to_dtype(DType::F64)?.sqr()?)
}

/// Returns the sum of all elements. A GPU sums each row in a single block, so the elements are first split into many
/// rows.
fn total(values: Tensor) -> Result<Tensor> {
    const ROW: usize = 1024;
    let mut sums = values.flatten_all()?;
    while sums.elem_count() >= 2 * ROW {
        let (rows, rest) = (sums.elem_count() / ROW, sums.elem_count() % ROW);
        let of_rows = sums.narrow(0, 0, rows * ROW)?.reshape((rows, ROW))?.sum(1)?;
        sums = match rest {
            0 => of_rows,
            _ => Tensor::cat(&[&of_rows, &sums.narrow(0, rows * ROW, rest)?], 0)?,
        };
    }
    Ok(sums.sum_all()?)
}

/// Returns the factor that reduces a norm to at most `max`. `square` is the square of the norm. If the norm is NaN, the
/// factor is 1, so that the NaN remains visible.
fn factor(square: &Tensor, max: f64) -> Result<Tensor> {
    let norm = square.sqrt()?;
    let one = full(1., &norm)?;
    Ok(choose(&norm.gt(max)?, &(full(max, &norm)? / &norm)?, &one)?)
}

fn scaled(values: &Tensor, factor: &Tensor) -> Result<Tensor> {
    Ok(values.broadcast_mul(&factor.to_dtype(values.dtype())?)?)
}

/// Returns `true` if all gradients on the device are finite. Waits for the device to read one number.
pub(crate) fn are_finite(gradients: &[Option<ReplicaGradient>]) -> Result<bool> {
    let tensors = gradients.iter().flatten().filter_map(ReplicaGradient::on_device);
    // A finite number times 0 is 0; the product of any other number is NaN.
    let zeros = tensors.map(|tensor| total(tensor.to_dtype(DType::F64)?.affine(0., 0.)?));
    let zeros = zeros.collect::<Result<Vec<_>>>()?;
    if zeros.is_empty() {
        return Ok(true);
    }
    Ok(to_host(&Tensor::stack(&zeros, 0)?.sum_all()?)?.to_scalar::<f64>()? == 0.)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn totals_are_of_all_elements_however_many_there_are() {
        for count in [1usize, 1023, 2048, 2049, 5000, 3 << 20] {
            let ones = Tensor::ones(count, DType::F64, &Device::Cpu).unwrap();
            assert_eq!(total(ones).unwrap().to_scalar::<f64>().unwrap(), count as f64);
        }
    }
}
