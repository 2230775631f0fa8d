//! The matrix products of a linear layer's step without anything else; `distribute-bench` shows them as the
//! limit of a step.

use super::gemm::{Matrix, by_columns, product};

/// The factors and products of one layer on one replica, in f32.
pub struct Products {
    rows: usize,
    width: usize,
    out: usize,
    x: Vec<f32>,
    weight: Vec<f32>,
    gradient: Vec<f32>,
    y: Vec<f32>,
    of_weight: Vec<f32>,
    /// The gradient of the input, if it has one.
    of_input: Option<Vec<f32>>,
}

impl Products {
    /// Creates the matrices of a layer from `width` to `out` on this number of rows; `of_input` adds the
    /// input's gradient.
    pub fn new(rows: usize, (width, out): (usize, usize), of_input: bool) -> Self {
        Self {
            x: vec![1.; rows * width],
            weight: vec![1.; out * width],
            gradient: vec![1.; rows * out],
            y: vec![0.; rows * out],
            of_weight: vec![0.; out * width],
            of_input: of_input.then(|| vec![0.; rows * width]),
            rows,
            width,
            out,
        }
    }

    /// Computes each product once, in the same way as [`Linear`](super::Linear).
    pub fn make(&mut self) {
        let x = Matrix::new(&self.x, self.rows, self.width);
        let weight = Matrix::new(&self.weight, self.out, self.width);
        let gradient = Matrix::new(&self.gradient, self.rows, self.out);
        if by_columns(x, weight.t()) {
            product(&mut self.y, false, weight, x.t())
        } else {
            product(&mut self.y, false, x, weight.t())
        }
        product(&mut self.of_weight, false, gradient.t(), x);
        if let Some(of_input) = &mut self.of_input {
            product(of_input, false, gradient, weight);
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
            products.make();
            assert!(products.y.iter().all(|x| *x == width as f32));
            assert!(products.of_weight.iter().all(|x| *x == rows as f32));
            assert!(products.of_input.is_some_and(|all| all.iter().all(|x| *x == out as f32)));
        }
        assert!(Products::new(3, (5, 2), false).of_input.is_none());
    }
}
