//! Matrix products written where they are wanted: into a gradient's place, or on top of what is there.

use crate::number::Number;
use std::any::TypeId;

/// A matrix whose elements lie in a slice, row by row or (transposed) column by column.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    elements: &'a [T],
    rows: usize,
    columns: usize,
    transposed: bool,
}

impl<'a, T: Copy> Matrix<'a, T> {
    /// Row by row.
    ///
    /// # Panics
    /// When there are not so many elements.
    pub(super) fn new(elements: &'a [T], rows: usize, columns: usize) -> Self {
        assert_eq!(elements.len(), rows * columns, "a matrix of {rows} rows and {columns} columns");
        Self { elements, rows, columns, transposed: false }
    }

    /// The same elements as a matrix of `columns` rows.
    pub(super) fn t(self) -> Self {
        Self { rows: self.columns, columns: self.rows, transposed: !self.transposed, ..self }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// From one column to the next, and from one row to the next.
    fn strides(&self) -> (isize, isize) {
        match self.transposed {
            false => (1, self.columns as isize),
            true => (self.rows as isize, 1),
        }
    }
}

/// `out = a b`, or `out += a b` if `add`; `out` lies row by row.
///
/// As many threads take part as candle's own products have: `RAYON_NUM_THREADS`, which [`init`](crate::init) sets to one,
/// since replicas are what uses the cores.
///
/// # Panics
/// When the shapes don't fit.
pub(super) fn product<T: Number>(out: &mut [T], add: bool, a: Matrix<'_, T>, b: Matrix<'_, T>) {
    assert_eq!(a.columns, b.rows, "columns of the first factor and rows of the second");
    assert_eq!(out.len(), a.rows * b.columns, "elements of the product");
    // Only these have kernels.
    assert!([TypeId::of::<f32>(), TypeId::of::<f64>()].contains(&TypeId::of::<T>()), "f32 or f64");
    let parallelism = match candle_core::utils::get_num_threads() {
        0 | 1 => gemm::Parallelism::None,
        threads => gemm::Parallelism::Rayon(threads),
    };
    let ((a_columns, a_rows), (b_columns, b_rows)) = (a.strides(), b.strides());
    // SAFETY: each pointer is to the start of a slice that holds all elements of its matrix, in the steps that its strides
    // say: `Matrix::new` and the assertions above have compared their numbers. `out` is borrowed alone, so it is neither
    // `a` nor `b`. All elements are initialised.
    unsafe {
        gemm::gemm(
            a.rows,
            b.columns,
            a.columns,
            out.as_mut_ptr(),
            1,
            b.columns as isize,
            add,
            a.elements.as_ptr(),
            a_columns,
            a_rows,
            b.elements.as_ptr(),
            b_columns,
            b_rows,
            T::of(1.),
            T::of(1.),
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_may_be_transposed_and_the_product_added() {
        let (a, b) = ([1., 2., 3., 4., 5., 6.], [1., 0., 2., 1., 0., 1.]);
        let (a, b) = (Matrix::new(&a, 2, 3), Matrix::new(&b, 3, 2));
        let mut out = [f64::NAN; 4];
        product(&mut out, false, a, b);
        assert_eq!(out, [5., 5., 14., 11.]);
        product(&mut out, true, a, b);
        assert_eq!(out, [10., 10., 28., 22.]);
        product(&mut out, false, b.t(), a.t());
        assert_eq!(out, [5., 14., 5., 11.]);
        let (row, column) = ([1f32, 2.], [3f32, 4., 5.]);
        let mut out = [0f32; 6];
        product(&mut out, false, Matrix::new(&row, 1, 2).t(), Matrix::new(&column, 1, 3));
        assert_eq!(out, [3., 4., 5., 6., 8., 10.]);
        product::<f32>(&mut [], false, Matrix::new(&[], 0, 3), Matrix::new(&column, 3, 1));
    }

    #[test]
    #[should_panic(expected = "columns of the first factor")]
    fn shapes_have_to_fit() {
        product(&mut [0f32], false, Matrix::new(&[1.], 1, 1), Matrix::new(&[1., 2.], 2, 1));
    }
}
