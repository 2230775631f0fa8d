//! The factors of a matrix, as PowerSGD sends them.
//!
//! A step of the power method approximates the sum of the replicas' matrices `M` by `P·Qᵀ`, where `P` has orthonormal
//! columns. Each replica sends `M·Q` with the `Q` of the last step. All orthogonalize the sum of these, and get the
//! same `P`. Then each replica sends `Mᵀ·P`, whose sum is the new `Q`. The residual of a replica is `M − P·(Mᵀ·P)ᵀ`:
//! the sum of all residuals is the part that the approximation lacks.
//!
//! Matrices are stored by row, factors by column. Sums have a fixed order, so results are the same on all machines.

use super::{MIN_ELEMENTS, finite};
use crate::random::Draws;

/// The shape of a matrix that is sent as two factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of rows of the matrix.
    pub rows: usize,
    /// The number of columns of the matrix.
    pub columns: usize,
    /// The number of columns of each factor.
    pub rank: usize,
}

/// The threshold of linear dependence. A column depends on those before it if orthogonalization leaves less than this
/// share of its norm.
const DEPENDENT: f64 = 1e-6;

/// The number of sums that [`dot`] computes at the same time.
const LANES: usize = 8;

impl Shape {
    /// Returns the shape of a variable as a matrix. Returns `None` if the variable has fewer than two axes or fewer
    /// than [`MIN_ELEMENTS`] elements, if `rank` is 0, or if the factors would not have fewer numbers than the matrix.
    pub fn of(dims: &[usize], rank: usize) -> Option<Self> {
        let (rows, rest) = dims.split_first().filter(|(_, rest)| !rest.is_empty())?;
        let columns = rest.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim))?;
        let factors = rows.checked_add(columns)?.checked_mul(rank)?;
        let elements = rows.checked_mul(columns)?;
        (elements >= MIN_ELEMENTS && rank > 0 && factors < elements).then_some(Self {
            rows: *rows,
            columns,
            rank,
        })
    }

    /// Returns the number of elements of the matrix.
    pub fn elements(self) -> usize {
        self.rows * self.columns
    }

    /// Returns the number of elements of the factor `P`, which has the shape `[rows, rank]`.
    pub fn len_p(self) -> usize {
        self.rows * self.rank
    }

    /// Returns the number of elements of the factor `Q`, which has the shape `[columns, rank]`.
    pub fn len_q(self) -> usize {
        self.columns * self.rank
    }

    /// Returns the `Q` of the first step. It depends only on the shape, and on the name of the variable.
    pub fn initial_q(self, name: &str) -> Vec<f32> {
        (0..self.rank).flat_map(|k| self.initial_column(name, k)).collect()
    }

    fn initial_column(self, name: &str, k: usize) -> impl Iterator<Item = f32> {
        let stream = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let draws = Draws::new(0, stream).at(k as u64);
        (0..self.columns).map(move |at| (2. * draws.uniform(at as u64) - 1.) as f32)
    }

    /// Writes `M·Q` to `p`.
    pub fn multiply(self, m: &[f32], q: &[f32], p: &mut [f32]) {
        for (row, m) in m.chunks_exact(self.columns).enumerate() {
            for (k, q) in q.chunks_exact(self.columns).enumerate() {
                p[k * self.rows + row] = dot(m, q);
            }
        }
    }

    /// Writes `Mᵀ·P` to `q`.
    pub fn multiply_transposed(self, m: &[f32], p: &[f32], q: &mut [f32]) {
        q.fill(0.);
        for (row, m) in m.chunks_exact(self.columns).enumerate() {
            for (k, q) in q.chunks_exact_mut(self.columns).enumerate() {
                let factor = p[k * self.rows + row];
                q.iter_mut().zip(m).for_each(|(q, m)| *q += factor * m);
            }
        }
    }

    /// Writes rows of `P·Qᵀ` to `into`, beginning with row `first`. `into` must consist of complete rows.
    pub fn product(self, p: &[f32], q: &[f32], first: usize, into: &mut [f32]) {
        into.fill(0.);
        for (row, into) in into.chunks_exact_mut(self.columns).enumerate() {
            for (k, q) in q.chunks_exact(self.columns).enumerate() {
                let factor = p[k * self.rows + first + row];
                into.iter_mut().zip(q).for_each(|(x, q)| *x += factor * q);
            }
        }
    }

    /// Replaces the matrix `m` of a replica by its residual `M − P·Qᵀ`. The residual of a number that is not finite is
    /// 0.
    pub fn subtract(self, m: &mut [f32], p: &[f32], q: &[f32]) {
        let mut product = vec![0.; self.columns];
        for (row, m) in m.chunks_exact_mut(self.columns).enumerate() {
            self.product(p, q, row, &mut product);
            m.iter_mut().zip(&product).for_each(|(m, product)| *m = finite(*m - product));
        }
    }

    /// Makes the columns of `p` orthonormal. A column that is a linear combination of the columns before it becomes
    /// zero.
    pub fn orthogonalize(self, p: &mut [f32]) {
        for k in 0..self.rank {
            let (before, rest) = p.split_at_mut(k * self.rows);
            let column = &mut rest[..self.rows];
            let norm = squares(column).sqrt();
            // Twice, because rounding leaves a small component after the first time.
            for _ in 0..2 {
                for other in before.chunks_exact(self.rows) {
                    let along: f64 =
                        column.iter().zip(other).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
                    column
                        .iter_mut()
                        .zip(other)
                        .for_each(|(x, y)| *x = (f64::from(*x) - along * f64::from(*y)) as f32);
                }
            }
            let rest = squares(column).sqrt();
            if rest <= DEPENDENT * norm || rest == 0. {
                column.fill(0.);
            } else {
                column.iter_mut().for_each(|x| *x = (f64::from(*x) / rest) as f32);
            }
        }
    }

    /// Prepares `q` for the next step. Scales its columns to length 1, so that large gradients do not overflow in the
    /// next product. Replaces columns that are zero or not finite by those of the first step, because they would never
    /// change.
    pub fn renew(self, q: &mut [f32], name: &str) {
        for (k, column) in q.chunks_exact_mut(self.columns).enumerate() {
            let length = squares(column).sqrt();
            if length > 0. && length.is_finite() {
                column.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
            } else {
                column.iter_mut().zip(self.initial_column(name, k)).for_each(|(x, initial)| *x = initial);
            }
        }
    }
}

fn squares(column: &[f32]) -> f64 {
    column.iter().map(|x| f64::from(*x) * f64::from(*x)).sum()
}

/// Returns the sum of the products of two vectors, in an order that can be vectorized.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(x, y)| x * y).sum();
    for (a, b) in a.zip(b) {
        for ((sum, x), y) in sums.iter_mut().zip(a).zip(b) {
            *sum += x * y;
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matrix(shape: Shape, seed: u64) -> Vec<f32> {
        let draws = Draws::new(seed, 1);
        (0..shape.elements()).map(|at| (2. * draws.uniform(at as u64) - 1.) as f32).collect()
    }

    /// Runs a step for the matrices of some replicas. Returns the sum that is received, and replaces each matrix by its
    /// residual.
    fn step(shape: Shape, all: &mut [Vec<f32>], q: &mut Vec<f32>) -> Vec<f32> {
        let sum = |of: &mut dyn FnMut(&[f32], &mut [f32]), all: &[Vec<f32>], len| {
            let (mut total, mut one) = (vec![0.; len], vec![0.; len]);
            for m in all {
                of(m, &mut one);
                total.iter_mut().zip(&one).for_each(|(total, x)| *total += x);
            }
            total
        };
        let mut p = sum(&mut |m, p| shape.multiply(m, q, p), all, shape.len_p());
        shape.orthogonalize(&mut p);
        *q = sum(&mut |m, q| shape.multiply_transposed(m, &p, q), all, shape.len_q());
        for m in all.iter_mut() {
            let mut own = vec![0.; shape.len_q()];
            shape.multiply_transposed(m, &p, &mut own);
            shape.subtract(m, &p, &own);
        }
        let mut product = vec![0.; shape.elements()];
        shape.product(&p, q, 0, &mut product);
        shape.renew(q, "w");
        product
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn the_sum_and_the_residuals_are_the_sum_of_the_matrices(rows in 33usize..70, columns in 33usize..70, rank in 1usize..5, seed: u64) {
            let shape = Shape { rows, columns, rank };
            let all: Vec<_> = (0..3).map(|replica| matrix(shape, seed ^ replica)).collect();
            let (mut residuals, mut q) = (all.clone(), shape.initial_q("w"));
            let product = step(shape, &mut residuals, &mut q);
            for at in 0..shape.elements() {
                let expected: f32 = all.iter().map(|m| m[at]).sum();
                let sent: f32 = product[at] + residuals.iter().map(|m| m[at]).sum::<f32>();
                prop_assert!((expected - sent).abs() < 1e-4, "{expected} {sent}");
            }
        }
    }

    #[test]
    fn a_matrix_of_the_rank_is_received_after_two_steps() {
        let shape = Shape { rows: 40, columns: 50, rank: 2 };
        let (p, q) =
            (matrix(Shape { columns: 2, ..shape }, 1), matrix(Shape { rows: 50, columns: 2, rank: 2 }, 2));
        let mut m = vec![0.; shape.elements()];
        shape.product(&p, &q, 0, &mut m);
        let mut factor = shape.initial_q("w");
        step(shape, &mut [m.clone()], &mut factor);
        let mut all = [m.clone()];
        let product = step(shape, &mut all, &mut factor);
        for ((x, sent), residual) in m.iter().zip(&product).zip(&all[0]) {
            assert!((x - sent).abs() < 1e-4 && residual.abs() < 1e-4, "{x} {sent}");
        }
    }

    #[test]
    fn columns_are_orthonormal_or_zero() {
        let shape = Shape { rows: 100, columns: 100, rank: 3 };
        let mut p = matrix(Shape { columns: 3, ..shape }, 3);
        let (first, rest) = p.split_at_mut(100);
        rest[100..].iter_mut().zip(first).for_each(|(x, first)| *x = 2. * *first);
        shape.orthogonalize(&mut p);
        let columns: Vec<&[f32]> = p.chunks(100).collect();
        let product = |a: usize, b: usize| columns[a].iter().zip(columns[b]).map(|(x, y)| x * y).sum::<f32>();
        assert!((product(0, 0) - 1.).abs() < 1e-5 && (product(1, 1) - 1.).abs() < 1e-5);
        assert!(product(0, 1).abs() < 1e-6);
        assert!(columns[2].iter().all(|x| *x == 0.));
    }

    #[test]
    fn zeros_and_numbers_that_are_not_finite_do_not_stay() {
        let shape = Shape { rows: 64, columns: 64, rank: 2 };
        for x in [0., f32::NAN, f32::INFINITY] {
            let (mut all, mut q) = ([vec![x; shape.elements()]], shape.initial_q("w"));
            let product = step(shape, &mut all, &mut q);
            assert_eq!(product.iter().all(|sent| *sent == 0.), x == 0.);
            assert!(all[0].iter().all(|residual| *residual == 0.) && q == shape.initial_q("w"));
        }
        assert_ne!(shape.initial_q("w"), shape.initial_q("v"));
    }
}
