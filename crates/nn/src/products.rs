//! The matrix products of a linear layer's step, without any other work. `distribute-bench` shows their time as the
//! lower limit for the time of a step.

use super::gemm::{Matrix, by_columns, product};

/// The factors and products of a layer on one replica, in f32.
pub struct Products {
    rows: usize,
    width: usize,
    out: usize,
    x: Vec<f32>,
    weight: Vec<f32>,
    gradient: Vec<f32>,
    y: Vec<f32>,
    weight_gradient: Vec<f32>,
    /// The gradient of the input; `None` if it is not computed.
    input_gradient: Option<Vec<f32>>,
}

impl Products {
    /// Creates the matrices of a layer with `width` inputs and `out` outputs, for the given number of rows. If
    /// `input_gradient` is `true`, the gradient of the input is also computed.
    pub fn new(rows: usize, (width, out): (usize, usize), input_gradient: bool) -> Self {
        Self {
            x: vec![1.; rows * width],
            weight: vec![1.; out * width],
            gradient: vec![1.; rows * out],
            y: vec![0.; rows * out],
            weight_gradient: vec![0.; out * width],
            input_gradient: input_gradient.then(|| vec![0.; rows * width]),
            rows,
            width,
            out,
        }
    }

    /// Computes each product once, in the same way as [`Linear`](super::Linear).
    pub fn compute(&mut self) {
        let x = Matrix::new(&self.x, self.rows, self.width);
        let weight = Matrix::new(&self.weight, self.out, self.width);
        let gradient = Matrix::new(&self.gradient, self.rows, self.out);
        if by_columns(x, weight.t()) {
            product(&mut self.y, false, weight, x.t())
        } else {
            product(&mut self.y, false, x, weight.t())
        }
        product(&mut self.weight_gradient, false, gradient.t(), x);
        if let Some(input_gradient) = &mut self.input_gradient {
            product(input_gradient, false, gradient, weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_product_is_made() {
        for (rows, width, out) in [(3, 5, 2), (4, 64, 16), (40, 8, 16)] {
            let mut products = Products::new(rows, (width, out), true);
            products.compute();
            assert!(products.y.iter().all(|x| *x == width as f32));
            assert!(products.weight_gradient.iter().all(|x| *x == rows as f32));
            assert!(products.input_gradient.is_some_and(|all| all.iter().all(|x| *x == out as f32)));
        }
        assert!(Products::new(3, (5, 2), false).input_gradient.is_none());
    }
}
