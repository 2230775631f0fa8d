//! Conversion of matrices from column-major to row-major order.

use distribute_base::internal::Number;
use std::mem::MaybeUninit;

/// The side length of the squares that are transposed at once: the number of f32 in a register.
const TILE: usize = 8;

/// Converts a column-major matrix with `rows` rows to row-major order, and writes `finish(x + bias)` of each element
/// x to `out`.
///
/// `bias` contains one number per column. All elements of `out` are written.
///
/// # Panics
/// Panics if the lengths do not match.
pub(super) fn transpose<T: Number>(
    by_column: &[T],
    rows: usize,
    bias: &[T],
    out: &mut [MaybeUninit<T>],
    finish: impl Fn(T) -> T,
) {
    let columns = bias.len();
    assert_eq!((by_column.len(), out.len()), (rows * columns, rows * columns), "elements of both");
    for top in (0..rows).step_by(TILE) {
        for left in (0..columns).step_by(TILE) {
            let (source, bias) = (&by_column[left * rows + top..], &bias[left..]);
            let places = &mut out[top * columns + left..];
            let (height, width) = (TILE.min(rows - top), TILE.min(columns - left));
            if (height, width) == (TILE, TILE) {
                transpose_tile(source, rows, bias, places, columns, &finish);
                continue;
            }
            for (row, column) in (0..height).flat_map(|row| (0..width).map(move |column| (row, column))) {
                places[row * columns + column].write(finish(source[column * rows + row].plus(bias[column])));
            }
        }
    }
}

/// Transposes a square of [`TILE`] rows and columns, with `bias` and `finish` as in [`transpose`]. Loops with a
/// constant number of iterations are three times as fast as copying single elements.
#[inline(always)]
fn transpose_tile<T: Number>(
    source: &[T],
    rows: usize,
    bias: &[T],
    places: &mut [MaybeUninit<T>],
    columns: usize,
    finish: impl Fn(T) -> T,
) {
    let mut tile = [[T::of(0.); TILE]; TILE];
    for column in 0..TILE {
        let (source, bias) = (&source[column * rows..][..TILE], bias[column]);
        for row in 0..TILE {
            tile[column][row] = finish(source[row].plus(bias));
        }
    }
    for row in 0..TILE {
        let places = &mut places[row * columns..][..TILE];
        for column in 0..TILE {
            places[column].write(tile[column][row]);
        }
    }
}
