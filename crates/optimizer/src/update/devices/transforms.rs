//! Transforms of gradients by candle's operations: norms are tensors on the device.

use super::compute::part_of;
use super::program::full;
use crate::transform::{Kind, Transform};
use candle_core::{DType, Tensor, Var};
use distribute_base::Result;
use distribute_base::internal::{ReplicaGradient, choose, to_host};

/// Transforms a replica's gradients that are on its device: `copies` are the variables that it computes with. Closures
/// are left out.
pub(crate) fn transform(
    transforms: &[Transform],
    gradients: &mut [Option<ReplicaGradient>],
    copies: &[Option<&Var>],
) -> Result<()> {
    for transform in transforms {
        match *transform.kind() {
            Kind::ClipByValue { min, max } => change(gradients, |values| {
                // Asked this way, NaN stays NaN.
                let values = choose(&values.lt(min)?, &full(min, values)?, values)?;
                Ok(choose(&values.gt(max)?, &full(max, &values)?, &values)?)
            })?,
            Kind::WeightDecay(rate) => {
                for (gradient, copy) in gradients.iter_mut().zip(copies) {
                    let (Some(gradient), Some(copy)) = (gradient, copy) else { continue };
                    let index = gradient.index_on_device()?;
                    gradient.change_on_device(|values| {
                        let decayed =
                            part_of(&copy.as_detached_tensor(), index.as_ref())?.affine(rate, 0.)?;
                        Ok((values + decayed)?)
                    })?;
                }
            }
            Kind::ClipByNorm(max) => {
                change(gradients, |values| scaled(values, &factor(&square(values)?, max)?))?
            }
            Kind::ClipByGlobalNorm(max) => {
                let all = gradients.iter().flatten().filter_map(ReplicaGradient::on_device);
                let squares = all.map(square).collect::<Result<Vec<_>>>()?;
                if !squares.is_empty() {
                    let factor = factor(&Tensor::stack(&squares, 0)?.sum_all()?, max)?;
                    change(gradients, |values| scaled(values, &factor))?;
                }
            }
            // Gradients go to closures by way of the host.
            Kind::Each(_) => {}
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

/// Multiplies a replica's gradients that are on its device by a number.
pub(crate) fn weigh(gradients: &mut [Option<ReplicaGradient>], weight: f64) -> Result<()> {
    if weight == 1. {
        return Ok(());
    }
    change(gradients, |values| Ok(values.affine(weight, 0.)?))
}

/// The sum of squares, as f64.
fn square(values: &Tensor) -> Result<Tensor> {
    total(values.to_dtype(DType::F64)?.sqr()?)
}

/// The sum of all elements. A GPU sums a row in one of its blocks, so there are many rows.
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

/// Returns the factor that makes a norm at most `max`. A norm that is NaN clips nothing, so that the NaN is seen.
fn factor(square: &Tensor, max: f64) -> Result<Tensor> {
    let norm = square.sqrt()?;
    let one = full(1., &norm)?;
    Ok(choose(&norm.gt(max)?, &(full(max, &norm)? / &norm)?, &one)?)
}

fn scaled(values: &Tensor, factor: &Tensor) -> Result<Tensor> {
    Ok(values.broadcast_mul(&factor.to_dtype(values.dtype())?)?)
}

/// Returns whether all gradients on the device are finite: one number is read, for which this waits.
pub(crate) fn are_finite(gradients: &[Option<ReplicaGradient>]) -> Result<bool> {
    let tensors = gradients.iter().flatten().filter_map(ReplicaGradient::on_device);
    // A finite number times 0 is 0, all others are NaN.
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
