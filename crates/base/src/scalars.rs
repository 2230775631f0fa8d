//! Operations on scalars that candle does not support on CUDA, because it cannot pass a shape without dimensions to the
//! GPU.

use candle_core::{Result, Tensor};

/// Selects elements of `then` if the condition is not 0, and of `otherwise` if it is 0. All three must have the same
/// shape.
pub fn choose(condition: &Tensor, then: &Tensor, otherwise: &Tensor) -> Result<Tensor> {
    if condition.rank() > 0 {
        return condition.where_cond(then, otherwise);
    }
    let vector = |scalar: &Tensor| scalar.reshape(1);
    vector(condition)?.where_cond(&vector(then)?, &vector(otherwise)?)?.reshape(())
}

/// Returns the sum of all elements, as a scalar.
pub fn sum(tensor: &Tensor) -> Result<Tensor> {
    if tensor.rank() > 0 { tensor.sum_all() } else { Ok(tensor.clone()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn scalars_stay_scalars() {
        let number = |x: f32| Tensor::new(x, &Device::Cpu).unwrap();
        let (zero, one) = (number(0.), number(1.));
        let chosen = |a: &Tensor, b: &Tensor| {
            choose(&a.lt(b).unwrap(), &number(7.), &number(8.)).unwrap().to_scalar::<f32>().unwrap()
        };
        assert_eq!((chosen(&zero, &one), chosen(&one, &zero)), (7., 8.));
        assert_eq!(sum(&one).unwrap().to_scalar::<f32>().unwrap(), 1.);
    }
}
