//! Gradients of operations on one or two elements.

use super::NodeGradients;
use candle_core::op::{BinaryOp, UnaryOp};
use candle_core::{Result, Tensor};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

/// Adds the gradients of both arguments to `all`. For `maximum` and `minimum`, equal elements share the gradient
/// equally.
pub(super) fn binary(
    op: BinaryOp,
    [left, right]: [&Tensor; 2],
    result: &Tensor,
    up: &Tensor,
    all: &mut NodeGradients,
) -> Result<()> {
    match op {
        BinaryOp::Add => {
            all.add(left, || Ok(up.clone()))?;
            all.add(right, || Ok(up.clone()))
        }
        BinaryOp::Sub => {
            all.add(left, || Ok(up.clone()))?;
            all.add(right, || up.neg())
        }
        BinaryOp::Mul => {
            all.add(left, || up * right)?;
            all.add(right, || up * left)
        }
        BinaryOp::Div => {
            all.add(left, || up / right)?;
            all.add(right, || ((up * left)? / right.sqr()?)?.neg())
        }
        BinaryOp::Maximum | BinaryOp::Minimum => {
            let is_result = |x: &Tensor| result.eq(x)?.to_dtype(up.dtype());
            let share = |of: &Tensor, other: &Tensor| (is_result(of)? * up)? / (is_result(other)? + 1.)?;
            all.add(left, || share(left, right))?;
            all.add(right, || share(right, left))
        }
    }
}

/// A function that computes the gradient of an argument from the argument, the result and the gradient of the
/// result.
type Rule = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

/// Returns the rule of an operation, or `None` if the operation's derivative is 0 wherever it is defined.
pub(super) fn unary(op: UnaryOp) -> Option<Rule> {
    Some(match op {
        UnaryOp::Exp => |_, y, up| up * y,
        UnaryOp::Log => |x, _, up| up / x,
        UnaryOp::Sin => |x, _, up| up * x.cos()?,
        UnaryOp::Cos => |x, _, up| (up * x.sin()?)?.neg(),
        UnaryOp::Tanh => |_, y, up| up * (1. - y.sqr()?)?,
        // 0 at 0, as in TensorFlow and PyTorch; candle has 1.
        UnaryOp::Abs => |x, _, up| up * x.sign()?,
        UnaryOp::Relu => |x, _, up| up * x.gt(0.)?.to_dtype(up.dtype())?,
        UnaryOp::Neg => |_, _, up| up.neg(),
        UnaryOp::Recip => |x, _, up| (up / x.sqr()?)?.neg(),
        UnaryOp::Sqr => |x, _, up| (x * up)? * 2.,
        UnaryOp::Sqrt => |_, y, up| (up / y)? * 0.5,
        UnaryOp::Erf => |x, _, up| up * (x.sqr()?.neg()?.exp()? * FRAC_2_SQRT_PI)?,
        UnaryOp::Gelu => gelu,
        UnaryOp::GeluErf => gelu_erf,
        UnaryOp::Silu => silu,
        UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Sign => return None,
    })
}

/// Returns the gradient through x/2 · (1 + t) with t = tanh(c (x + a x³)). The derivative is (1 + t + x (1 - t²) c (1 +
/// 3 a x²)) / 2.
fn gelu(x: &Tensor, _: &Tensor, up: &Tensor) -> Result<Tensor> {
    const A: f64 = 0.044715;
    let c = (2. / PI).sqrt();
    let square = x.sqr()?;
    let t = (x * square.affine(c * A, c)?)?.tanh()?;
    let inner = (x * square.affine(3. * c * A, c)?)?;
    let slope = (inner * (1. - t.sqr()?)?)?;
    up * ((slope + t)? + 1.)?.affine(0.5, 0.)?
}

/// Returns the gradient through x Φ(x). The derivative is Φ(x) + x φ(x).
fn gelu_erf(x: &Tensor, _: &Tensor, up: &Tensor) -> Result<Tensor> {
    let distribution = (x * FRAC_1_SQRT_2)?.erf()?.affine(0.5, 0.5)?;
    let density = ((x.sqr()? * -0.5)?.exp()? * (FRAC_1_SQRT_2 * FRAC_2_SQRT_PI / 2.))?;
    up * (distribution + (x * density)?)?
}

/// Returns the gradient through y = x σ(x). The derivative is σ(x) (1 - y) + y.
fn silu(x: &Tensor, y: &Tensor, up: &Tensor) -> Result<Tensor> {
    let sigmoid = (x.neg()?.exp()? + 1.)?.recip()?;
    up * ((sigmoid * (1. - y)?)? + y)?
}

/// Returns the gradient through y, which is x for x > 0 and α (eˣ - 1) otherwise. The derivative is 1 or y + α,
/// respectively.
pub(super) fn elu(x: &Tensor, alpha: f64, y: &Tensor, up: &Tensor) -> Result<Tensor> {
    x.gt(0.)?.where_cond(up, &(up * (y + alpha)?)?)
}

/// Returns the gradient through xᵉ. The derivative is e xᵉ⁻¹, or 0 everywhere if e is 0.
pub(super) fn powf(x: &Tensor, exponent: f64, up: &Tensor) -> Result<Tensor> {
    if exponent == 0. {
        return up.zeros_like();
    }
    (up * x.powf(exponent - 1.)?)? * exponent
}
