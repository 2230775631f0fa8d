//! The transposed convolution as an operation, with gradients. Its result is computed like the gradient of a
//! convolution's input.

use super::patches::Patches;
use super::{Fused, Operation};
use crate::operation;
use crate::operation::Operand;
use candle_core::{DType, Result, Shape, Tensor};
use candle_nn::Conv2dConfig;
use distribute_base::internal::{Number, with_elements};

/// The transposed convolution as an operation. Its result has the shape of the convolution's input.
struct Transposed {
    convolution: Fused,
    /// The shape of the images that the operation computes.
    image: [usize; 4],
}

impl Transposed {
    /// Returns the operation that computes images of the given size. `x` has shape `[n, in, height, width]`, and the
    /// weight has shape `[in, out / groups, …, …]`.
    ///
    /// Returns `None` if this crate's loops do not support the operands, or if a convolution of images of this size
    /// would have a result with a different shape than `x`.
    fn new(
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        size: [usize; 2],
        config: &Conv2dConfig,
    ) -> Option<Self> {
        let (&[images, ..], &[_, channels, ..]) = (x.dims(), weight.dims()) else { return None };
        let image = [images, channels * config.groups, size[0], size[1]];
        let patches = Patches::new(&image, weight.dims(), config)?;
        let fits = patches.output_dims() == x.dims() && bias.is_none_or(|bias| bias.dims() == [image[1]]);
        let computed = fits && operation::is_supported(x, weight, bias) && patches.require_size().is_ok();
        computed.then_some(Self { convolution: Fused { patches }, image })
    }
}

/// Computes images of the given size with a transposed convolution, in a single operation. Returns `None` if this
/// crate's loops do not support the operands, or if `size` does not match them.
pub(crate) fn transposed(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    size: [usize; 2],
    config: &Conv2dConfig,
) -> Result<Option<Tensor>> {
    let operation = Transposed::new(x, weight, bias, size, config);
    operation.map(|operation| operation::apply(operation, x, weight, bias)).transpose()
}

/// Computes the gradients of `x` and the weight. `upstream` is the gradient of the images, and must be contiguous. The
/// third element, for a bias, is `None`. Returns `None` if this crate's loops do not support the operands.
pub(super) fn gradients(
    x: &Tensor,
    weight: &Tensor,
    upstream: &Tensor,
    config: &Conv2dConfig,
) -> Result<Option<[Option<Tensor>; 3]>> {
    let (_, _, height, width) = upstream.dims4()?;
    let Some(operation) = Transposed::new(x, weight, None, [height, width], config) else { return Ok(None) };
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    match x.dtype() {
        DType::F32 => operation.backward::<f32>(&x, &weight, None, upstream, upstream).map(Some),
        _ => operation.backward::<f64>(&x, &weight, None, upstream, upstream).map(Some),
    }
}

impl Operation for Transposed {
    const NAME: &'static str = "conv_transpose2d";

    fn forward<T: Number>(
        &self,
        x: Operand<'_, T>,
        weight: Operand<'_, T>,
        bias: Option<&[T]>,
    ) -> Result<(Vec<T>, Shape)> {
        let mut y = self.convolution.input_gradient(weight.elements, x.elements);
        if let Some(bias) = bias {
            let plane = self.image[2] * self.image[3];
            for (plane, bias) in y.chunks_exact_mut(plane).zip(bias.iter().cycle()) {
                plane.iter_mut().for_each(|y| *y += *bias);
            }
        }
        Ok((y, Shape::from(&self.image)))
    }

    fn backward<T: Number>(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        _: &Tensor,
        upstream: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        with_elements(upstream, |up: &[T]| {
            let weight_gradient =
                |x: &[T], place: &mut [T], add| self.convolution.weight_gradient(up, x, place, add);
            let input_gradient = |elements: &[T]| {
                let image = Operand { elements: up, shape: upstream.shape() };
                let (gradient, _) =
                    self.convolution.forward(image, Operand { elements, shape: weight.shape() }, None)?;
                Ok(gradient)
            };
            super::gradients(
                [x, weight],
                bias,
                (up, self.image[2] * self.image[3]),
                weight_gradient,
                input_gradient,
            )
        })?
    }
}
