//! Linear layers: product, bias and activation in one operation.

use super::gemm::{Matrix, new_product, product, product_then};
use crate::deposit;
use crate::number::{Number, operand, with_elements};
use candle_core::{CpuStorage, CustomOp2, CustomOp3, D, DType, Layout, Module, Result, Shape, Tensor};
use candle_nn::{Activation, VarBuilder};
use std::marker::PhantomData;

/// `activation(x wᵀ + b)`: candle_nn's `Linear`, with the bias and mostly the activation in the same operation, and a
/// backward that writes the gradients of weight and bias straight to where [`minimize`](crate::Optimizer::minimize) reduces
/// them.
///
/// `x` has shape `[…, in]` and the result `[…, out]`; the weight is `[out, in]`, the bias `[out]`. Of f32 and f64 on the CPU
/// this is faster than candle_nn's; other dtypes and devices take its way, and all give its numbers, save for the order in
/// which a product is added up, and for the slope of relu at 0 itself: none, where candle's is 1 (and of leaky relu the
/// lower one, where candle's is the mean of both).
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_nn::{Activation, VarBuilder};
/// use distribute::nn::{Linear, linear};
///
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let model = strategy.replicate(|vb: VarBuilder| {
///     linear(8, 4, vb.pp("hidden")).map(|layer| layer.with_activation(Activation::Relu))
/// })?;
/// let optimizer = Sgd::new(&model.variables, 0.1)?;
/// let x = Tensor::ones((3, 8), DType::F32, &Device::Cpu)?;
/// strategy.run(&model, |ctx, model| optimizer.minimize(ctx, model.forward(&x)?.mean_all()?, 3))?;
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.keras.layers.Dense")]
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    activation: Option<Activation>,
}

/// A layer with a bias, of variables `weight` and `bias`, initialised as candle_nn's.
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    candle_nn::linear(in_dim, out_dim, vb).map(Linear::from)
}

/// A layer without a bias, of the variable `weight`, initialised as candle_nn's.
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    candle_nn::linear_no_bias(in_dim, out_dim, vb).map(Linear::from)
}

/// A layer with or without a bias.
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: VarBuilder) -> Result<Linear> {
    candle_nn::linear_b(in_dim, out_dim, bias, vb).map(Linear::from)
}

impl From<candle_nn::Linear> for Linear {
    fn from(layer: candle_nn::Linear) -> Self {
        Self::new(layer.weight().clone(), layer.bias().cloned())
    }
}

impl Linear {
    /// A layer of a weight `[out, in]` and a bias `[out]`.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight, bias, activation: None }
    }

    /// The same with an activation after it. Relu, sigmoid and leaky relu cost no pass of their own.
    pub fn with_activation(mut self, activation: Activation) -> Self {
        self.activation = Some(activation);
        self
    }

    /// The weight, `[out, in]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, `[out]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Whether the fused operation can do it; what it can't, the stock one does or says why not.
    fn fuses(&self, x: &Tensor) -> bool {
        let dtype = x.dtype();
        let same = |t: &Tensor| t.device().is_cpu() && t.dtype() == dtype;
        let (Ok((out, width)), Ok(last)) = (self.weight.dims2(), x.dim(D::Minus1)) else { return false };
        x.device().is_cpu()
            && (last == width && x.rank() >= 2 && x.elem_count() > 0 && out > 0)
            && same(&self.weight)
            && self.bias.as_ref().is_none_or(|bias| same(bias) && bias.dims() == [out])
    }

    fn fused<T: Number>(&self, x: &Tensor, activation: Option<FromOutput>) -> Result<Tensor> {
        let operation = Fused { activation, number: PhantomData::<T> };
        let rows = x.contiguous()?.flatten_to(D::Minus2)?;
        let weight = self.weight.contiguous()?;
        let y = match &self.bias {
            Some(bias) => rows.apply_op3(&weight, &bias.contiguous()?, operation)?,
            None => rows.apply_op2(&weight, operation)?,
        };
        match x.rank() {
            2 => Ok(y),
            rank => y.reshape([&x.dims()[..rank - 1], &[self.weight.dim(0)?]].concat()),
        }
    }
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let fused = self.activation.and_then(FromOutput::of);
        let (y, finished) = match (x.dtype(), self.fuses(x)) {
            (DType::F32, true) => (self.fused::<f32>(x, fused)?, fused.is_some()),
            (DType::F64, true) => (self.fused::<f64>(x, fused)?, fused.is_some()),
            _ => {
                // candle 0.11's own product of a transposed batch and a transposed weight has wrong numbers.
                let stock = candle_nn::Linear::new(self.weight.clone(), self.bias.clone());
                (stock.forward(&x.contiguous()?)?, false)
            }
        };
        match self.activation {
            Some(activation) if !finished => activation.forward(&y),
            _ => Ok(y),
        }
    }
}

/// An activation whose derivative is known from its output, so that its input need not be kept.
#[derive(Clone, Copy, Debug)]
enum FromOutput {
    Relu,
    Sigmoid,
    /// With the slope below zero, which is positive.
    LeakyRelu(f64),
}

impl FromOutput {
    fn of(activation: Activation) -> Option<Self> {
        match activation {
            Activation::Relu => Some(Self::Relu),
            Activation::Sigmoid => Some(Self::Sigmoid),
            Activation::LeakyRelu(slope) if slope > 0. => Some(Self::LeakyRelu(slope)),
            _ => None,
        }
    }

    /// The gradient of inputs from that of outputs.
    fn backward<T: Number>(self, outputs: &[T], gradient: &[T]) -> Vec<T> {
        let (zero, one, pairs) = (T::of(0.), T::of(1.), gradient.iter().zip(outputs));
        match self {
            Self::Relu => pairs.map(|(g, y)| if *y > zero { *g } else { zero }).collect(),
            Self::Sigmoid => pairs.map(|(g, y)| *g * *y * (one - *y)).collect(),
            Self::LeakyRelu(slope) => {
                let slope = T::of(slope);
                pairs.map(|(g, y)| if *y > zero { *g } else { *g * slope }).collect()
            }
        }
    }
}

/// The operation on rows `[n, in]` of numbers `T`.
#[derive(Clone, Copy)]
struct Fused<T> {
    activation: Option<FromOutput>,
    number: PhantomData<T>,
}

impl<T: Number> Fused<T> {
    fn forward(
        &self,
        (x, of_x): (&CpuStorage, &Layout),
        (w, of_w): (&CpuStorage, &Layout),
        bias: Option<&[T]>,
    ) -> Result<(CpuStorage, Shape)> {
        let ((n, width), (out, _)) = (of_x.shape().dims2()?, of_w.shape().dims2()?);
        let (x, w) = (Matrix::new(operand(x, of_x)?, n, width), Matrix::new(operand(w, of_w)?, out, width));
        Ok((T::to_cpu_storage_owned(self.outputs(x, w, bias)), (n, out).into()))
    }

    fn outputs(&self, x: Matrix<'_, T>, w: Matrix<'_, T>, bias: Option<&[T]>) -> Vec<T> {
        let none = match bias {
            Some(_) => Vec::new(),
            None => vec![T::of(0.); w.rows()],
        };
        let (w, bias, zero, one) = (w.t(), bias.unwrap_or(&none), T::of(0.), T::of(1.));
        match self.activation {
            None => product_then(x, w, bias, |y| y),
            Some(FromOutput::Relu) => product_then(x, w, bias, |y| if y > zero { y } else { zero }),
            Some(FromOutput::Sigmoid) => product_then(x, w, bias, |y| one / (one + (zero - y).exp())),
            Some(FromOutput::LeakyRelu(slope)) => {
                let slope = T::of(slope);
                product_then(x, w, bias, |y| if y > zero { y } else { y * slope })
            }
        }
    }

    /// The gradients of input, weight and bias.
    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        y: &Tensor,
        upstream: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let ((n, width), (out, _)) = (x.dims2()?, weight.dims2()?);
        let upstream = upstream.contiguous()?;
        let changed = match self.activation {
            Some(activation) => {
                Some(with_elements(y, |y| with_elements(&upstream, |g| activation.backward(y, g)))??)
            }
            None => None,
        };
        with_elements(&upstream, |upstream: &[T]| {
            let gradient = changed.as_deref().unwrap_or(upstream);
            let g = Matrix::new(gradient, n, out);
            let of_bias = bias.map(|bias| {
                deposit::gradient(bias, |place: &mut [T], add| {
                    if !add {
                        place.fill(T::of(0.));
                    }
                    for row in gradient.chunks_exact(out) {
                        place.iter_mut().zip(row).for_each(|(sum, x)| *sum = sum.plus(*x));
                    }
                })
            });
            let of_weight = with_elements(x, |x| {
                deposit::gradient(weight, |place: &mut [T], add| {
                    product(place, add, g.t(), Matrix::new(x, n, width));
                })
            })??;
            let of_input = match x.track_op() {
                false => None,
                true => Some(with_elements(weight, |weight| {
                    let gradient = new_product(g, Matrix::new(weight, out, width));
                    Tensor::from_vec(gradient, (n, width), x.device())
                })??),
            };
            Ok([of_input, of_weight, of_bias.transpose()?.flatten()])
        })?
    }
}

impl<T: Number> CustomOp3 for Fused<T> {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        w: &CpuStorage,
        of_w: &Layout,
        b: &CpuStorage,
        of_b: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward((x, of_x), (w, of_w), Some(operand(b, of_b)?))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        b: &Tensor,
        y: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [x, w, b] = self.backward(x, w, Some(b), y, upstream)?;
        Ok((x, w, b))
    }
}

impl<T: Number> CustomOp2 for Fused<T> {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        w: &CpuStorage,
        of_w: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward((x, of_x), (w, of_w), None)
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        y: &Tensor,
        upstream: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [x, w, _] = self.backward(x, w, None, y, upstream)?;
        Ok((x, w))
    }
}
