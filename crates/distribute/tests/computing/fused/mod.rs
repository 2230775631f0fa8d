//! Checks that fast layers compute the same as candle's, over random shapes, dtypes and layouts, with parameters of
//! every kind, inside and outside `minimize`. The gradients that they write into the optimizer's bucket are those that
//! candle would return.

mod conv;
mod deposit;
mod functions;
mod linear;
mod losses;
mod norm;
mod training;

use crate::support::flat;
use candle_core::{D, DType, Device, Result, Tensor, Var};

/// Returns numbers between -1 and 1 without a visible pattern, which depend on the seed.
fn numbers(shape: &[usize], dtype: DType, seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| ((i * 7919 + seed * 104_729 + 13) as f64 * 0.618).sin()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

/// The layout of a tensor in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lies {
    Plain,
    Transposed,
    /// A range within a larger tensor.
    Inside,
}

/// Returns a variable, and a function that returns a view of it with the values of `tensor` in the given layout.
fn with_layout(tensor: &Tensor, lies: Lies) -> (Var, impl Fn(&Var) -> Tensor) {
    let (rank, last) = (tensor.rank(), tensor.dim(D::Minus1).unwrap_or(0));
    let stored = match lies {
        Lies::Transposed if rank > 1 => tensor.transpose(rank - 2, rank - 1).unwrap().contiguous().unwrap(),
        Lies::Inside => tensor.pad_with_zeros(D::Minus1, 2, 1).unwrap(),
        _ => tensor.clone(),
    };
    let view = move |var: &Var| match lies {
        Lies::Transposed if rank > 1 => var.transpose(rank - 2, rank - 1).unwrap(),
        Lies::Inside => var.narrow(D::Minus1, 2, last).unwrap(),
        _ => var.as_tensor().clone(),
    };
    (Var::from_tensor(&stored).unwrap(), view)
}

/// Returns the result of `layer` for the inputs, and the gradients of the inputs, for a loss in which each element has
/// a different weight.
fn results(inputs: &[(Tensor, Lies)], layer: impl Fn(&[Tensor]) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let lying: Vec<_> = inputs.iter().map(|(tensor, lies)| with_layout(tensor, *lies)).collect();
    let seen: Vec<Tensor> = lying.iter().map(|(var, view)| view(var)).collect();
    let out = layer(&seen)?;
    let loss = (&out * numbers(out.dims(), out.dtype(), 99))?.sum_all()?;
    let store = loss.backward()?;
    let gradients = lying.iter().map(|(var, _)| Ok(store.get(var).cloned().unwrap_or(var.zeros_like()?)));
    [Ok(out.detach())].into_iter().chain(gradients).collect()
}

/// Returns the maximum difference of results of a dtype, relative to their size.
fn limit(dtype: DType) -> f64 {
    if dtype == DType::F64 { 1e-12 } else { 1e-5 }
}

/// Checks that results and gradients are equal, up to [`limit`] times the largest element of the tensor or 1, if that
/// is larger.
fn assert_same(fast: &[Tensor], stock: &[Tensor], what: &str) {
    assert_eq!(fast.len(), stock.len(), "{what}");
    for (number, (fast, stock)) in fast.iter().zip(stock).enumerate() {
        assert_eq!((fast.dims(), fast.dtype()), (stock.dims(), stock.dtype()), "{what}, {number}");
        let limit = limit(stock.dtype());
        let size = flat(stock).into_iter().fold(1f64, |size, x| size.max(x.abs()));
        for (fast, stock) in flat(fast).into_iter().zip(flat(stock)) {
            let near = (fast - stock).abs() <= limit * size;
            assert!(near, "{what}, {number}: {fast}, not {stock}");
        }
    }
}
