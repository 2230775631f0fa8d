//! Matrix products that are written to, or added to, existing memory.

// - INV-16: sizes on which an `unsafe` relies are compared as products that cannot wrap. Tests: `nn/src/gemm.rs`.

use super::transpose::transpose;
use distribute_base::internal::Number;
use distribute_collective::threads::threads_of_replica;
use gemm::Parallelism;
use std::any::TypeId;
use std::mem::MaybeUninit;

/// A matrix in a slice, in row-major order or, if it is transposed, in column-major order.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    elements: &'a [T],
    rows: usize,
    columns: usize,
    order: Order,
}

/// The order in which the elements of a matrix are stored.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    RowByRow,
    ColumnByColumn,
}

impl Order {
    /// Returns the distance in elements from one column to the next, and from one row to the next.
    fn strides(self, rows: usize, columns: usize) -> (isize, isize) {
        match self {
            Order::RowByRow => (1, columns as isize),
            Order::ColumnByColumn => (rows as isize, 1),
        }
    }
}

impl<'a, T: Copy> Matrix<'a, T> {
    /// Creates a matrix in row-major order.
    ///
    /// # Panics
    /// Panics if the number of elements is not `rows * columns`.
    pub(super) fn new(elements: &'a [T], rows: usize, columns: usize) -> Self {
        assert_eq!(
            Some(elements.len()),
            rows.checked_mul(columns),
            "a matrix of {rows} rows and {columns} columns"
        );
        Self { elements, rows, columns, order: Order::RowByRow }
    }

    /// Transposes the matrix without moving its elements.
    pub(super) fn t(self) -> Self {
        let order = match self.order {
            Order::RowByRow => Order::ColumnByColumn,
            Order::ColumnByColumn => Order::RowByRow,
        };
        Self { rows: self.columns, columns: self.rows, order, ..self }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }
}

/// Computes `out = a b`, or `out += a b` if `add` is `true`. `out` is in row-major order.
///
/// In a replica, a large product uses the threads that are reserved for the replica, and a small one only the calling
/// thread. Without replicas, or with a single one, a product uses as many threads as candle's own products:
/// `RAYON_NUM_THREADS`, which `distribute::init` sets to 1. On a thread of a rayon pool, it uses only that thread.
///
/// # Panics
/// Panics if the shapes do not match.
pub(super) fn product<T: Number>(out: &mut [T], add: bool, a: Matrix<'_, T>, b: Matrix<'_, T>) {
    let (start, len) = (out.as_mut_ptr(), out.len());
    // SAFETY: the same elements, borrowed exclusively; `multiply` writes only initialized ones.
    let out = unsafe { std::slice::from_raw_parts_mut(start.cast(), len) };
    multiply(out, Order::RowByRow, add, a, b);
}

/// Computes `a b` in row-major order. The memory of the result is not zeroed first, which saves a pass.
///
/// # Panics
/// Panics if the shapes do not match.
pub(super) fn new_product<T: Number>(a: Matrix<'_, T>, b: Matrix<'_, T>) -> Vec<T> {
    matrix_product(Order::RowByRow, a, b)
}

fn matrix_product<T: Number>(order: Order, a: Matrix<'_, T>, b: Matrix<'_, T>) -> Vec<T> {
    // A length that overflows is refused as a capacity.
    let len = a.rows.saturating_mul(b.columns);
    let mut out = Vec::with_capacity(len);
    multiply(&mut out.spare_capacity_mut()[..len], order, false, a, b);
    // SAFETY: `multiply` has written all `len` elements.
    unsafe { out.set_len(len) };
    out
}

/// Computes `finish(a b + bias)`. `bias` contains one number per column, and `finish` is applied to each element.
///
/// If `b` is in column-major order, like the weight of a layer, the library first transposes it. With few rows in `a`,
/// the transposition takes a third of the time. The product is then computed in column-major order instead, which needs
/// no transposed copy, and the result is transposed here. Times in µs for f32 on one core (AVX-512), this way / the
/// library's:
///
/// | rows of a | 784 × 512 | 512 × 256 | 256 × 128 |
/// |---|---|---|---|
/// | 64 | 337 / 422 | 131 / 183 | 39 / 39 |
/// | 128 | 659 / 708 | 248 / 271 | 74 / 62 |
/// | 512 | 2628 / 2588 | 1025 / 866 | 293 / 215 |
///
/// # Panics
/// Panics like [`product`], or if `bias` does not contain one number per column.
pub(super) fn product_then<T: Number>(
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    bias: &[T],
    finish: impl Fn(T) -> T,
) -> Vec<T> {
    let (rows, columns) = (a.rows, b.columns);
    assert_eq!(bias.len(), columns, "a bias for each column");
    if !by_columns(a, b) {
        let mut out = new_product(a, b);
        for row in out.chunks_exact_mut(columns.max(1)) {
            row.iter_mut().zip(bias).for_each(|(x, bias)| *x = finish(x.plus(*bias)));
        }
        return out;
    }
    transposed(&matrix_product(Order::ColumnByColumn, a, b), rows, bias, finish)
}

/// The minimum number of result columns for which a product is computed in column-major order.
const FEW: usize = 16;

/// Returns whether [`product_then`] computes the product in column-major order.
pub(super) fn by_columns<T: Copy>(a: Matrix<'_, T>, b: Matrix<'_, T>) -> bool {
    b.order == Order::ColumnByColumn && b.columns >= FEW && a.columns >= 4 * a.rows
}

/// Converts a matrix with `rows` rows from column-major to row-major order, and applies `bias` and `finish`.
fn transposed<T: Number>(by_column: &[T], rows: usize, bias: &[T], finish: impl Fn(T) -> T) -> Vec<T> {
    let len = rows * bias.len();
    let mut out = Vec::with_capacity(len);
    transpose(by_column, rows, bias, &mut out.spare_capacity_mut()[..len], finish);
    // SAFETY: `transpose` has written all `len` elements.
    unsafe { out.set_len(len) };
    out
}

/// Computes `out = a b`, or `out += a b` if `add` is `true`; `order` is that of `out`. Every element of `out` is
/// written. If `add` is `true`, all of them must be initialized.
fn multiply<T: Number>(
    out: &mut [MaybeUninit<T>],
    order: Order,
    add: bool,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
) {
    assert_eq!(a.columns, b.rows, "columns of the first factor and rows of the second");
    // Factors without columns may have any number of rows: the product must not overflow.
    assert_eq!(Some(out.len()), a.rows.checked_mul(b.columns), "elements of the product");
    // gemm has kernels for these types only.
    assert!([TypeId::of::<f32>(), TypeId::of::<f64>()].contains(&TypeId::of::<T>()), "f32 or f64");
    let work = a.rows.saturating_mul(a.columns).saturating_mul(b.columns);
    multiply_by(parallelism(work), out, order, add, a, b);
}

fn parallelism(multiplications: usize) -> Parallelism {
    let threads = match threads_of_replica() {
        Some(threads) if multiplications >= WORTH_THREADS => threads,
        Some(_) => 1,
        // A thread of some pool would execute other tasks of that pool while it waits for the product: another
        // run, or another backward, in the middle of this one.
        None if rayon::current_thread_index().is_some() => 1,
        None => candle_core::utils::get_num_threads(),
    };
    if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None }
}

/// The number of multiplications from which a product uses several threads of a replica.
const WORTH_THREADS: usize = 1 << 21;

fn multiply_by<T: Number>(
    parallelism: Parallelism,
    out: &mut [MaybeUninit<T>],
    order: Order,
    add: bool,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
) {
    let strides = |matrix: &Matrix<'_, T>| matrix.order.strides(matrix.rows, matrix.columns);
    let ((a_columns, a_rows), (b_columns, b_rows)) = (strides(&a), strides(&b));
    let (out_columns, out_rows) = order.strides(a.rows, b.columns);
    // SAFETY: each pointer is to the start of a slice that holds all elements of its matrix, at the distances
    // that its strides give: `Matrix::new` and `multiply` have checked the lengths without overflow. `out` is
    // borrowed exclusively, so it is neither `a` nor `b`. The elements of the factors are initialized, and so
    // are those of `out` if `add`, which is the only case in which they are read. The elements have one of the
    // types that gemm has kernels for. Without `add`, gemm writes every element, even for a sum of no terms
    // (its `alpha` is zero then).
    unsafe {
        gemm::gemm(
            a.rows,
            b.columns,
            a.columns,
            out.as_mut_ptr().cast(),
            out_columns,
            out_rows,
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
        // A sum of no terms is written as zero.
        let mut out = [7f32; 2];
        product(&mut out, false, Matrix::new(&[], 2, 0), Matrix::new(&[], 0, 1));
        assert_eq!(out, [0.; 2]);
        assert_eq!(new_product(a, b), [5., 5., 14., 11.]);
        assert_eq!(new_product::<f64>(Matrix::new(&[], 2, 0), Matrix::new(&[], 0, 1)), [0.; 2]);
    }

    #[test]
    fn both_ways_of_a_product_with_few_rows_are_the_product() {
        // Sizes below, at and above the threshold, and no multiples of a tile.
        for (rows, width, columns) in
            [(1, 4, 16), (3, 11, 40), (3, 12, 40), (17, 68, 33), (17, 67, 33), (0, 4, 16), (2, 8, 15)]
        {
            let numbers = |n: usize| (0..n).map(|i| ((i * 37 % 101) as f64) - 50.).collect::<Vec<_>>();
            let (a, b) = (numbers(rows * width), numbers(columns * width));
            let (a, b) = (Matrix::new(&a, rows, width), Matrix::new(&b, columns, width).t());
            let mut expected = vec![0.; rows * columns];
            product(&mut expected, false, a, b);
            let expected: Vec<_> =
                expected.iter().enumerate().map(|(i, x)| 2. * (x + (i % columns) as f64)).collect();
            let bias: Vec<_> = (0..columns).map(|column| column as f64).collect();
            assert_eq!(product_then(a, b, &bias, |x| 2. * x), expected, "{rows} {width} {columns}");
        }
    }

    #[test]
    fn neither_threads_nor_old_memory_change_a_bit() {
        // A bucket may contain values of an earlier step, even a failed one.
        let sizes = [1, 2, 5, 16, 17, 40, 150];
        let numbers = |n: usize| (0..n).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>();
        let bits = |out: &[f32]| out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let all = sizes.iter().flat_map(|m| sizes.iter().flat_map(move |k| sizes.map(|n| (*m, *k, n))));
        for (m, k, n) in all {
            let (a, b) = (numbers(m * k), numbers(k * n));
            for (a, b) in [
                (Matrix::new(&a, m, k), Matrix::new(&b, k, n)),
                (Matrix::new(&a, m, k), Matrix::new(&b, n, k).t()),
                (Matrix::new(&a, k, m).t(), Matrix::new(&b, k, n)),
            ] {
                let [plain, threaded] = [Parallelism::None, Parallelism::Rayon(3)].map(|parallelism| {
                    let mut out = vec![MaybeUninit::new(f32::NAN); m * n];
                    multiply_by(parallelism, &mut out, Order::RowByRow, false, a, b);
                    // SAFETY: all elements were initialized.
                    out.into_iter().map(|x| unsafe { x.assume_init() }).collect::<Vec<_>>()
                });
                assert_eq!(bits(&plain), bits(&threaded), "{m} {k} {n}");
            }
        }
    }

    /// A number whose square overflows to 0.
    const HUGE: usize = 1 << (usize::BITS / 2);

    // INV-16
    #[test]
    #[should_panic(expected = "elements of the product")]
    fn a_product_whose_size_wraps_is_not_written() {
        product::<f32>(&mut [], false, Matrix::new(&[], HUGE, 0), Matrix::new(&[], 0, HUGE));
    }

    #[test]
    #[should_panic(expected = "capacity")]
    fn nor_is_a_new_one() {
        new_product::<f32>(Matrix::new(&[], HUGE, 0), Matrix::new(&[], 0, HUGE));
    }

    #[test]
    #[should_panic(expected = "a matrix of")]
    fn a_matrix_whose_size_wraps_is_none() {
        Matrix::<f32>::new(&[], HUGE, HUGE);
    }

    #[test]
    #[should_panic(expected = "columns of the first factor")]
    fn shapes_have_to_fit() {
        product(&mut [0f32], false, Matrix::new(&[1.], 1, 1), Matrix::new(&[1., 2.], 2, 1));
    }
}
