//! Kernels that reduce, join and slice. Inputs and outputs are plain Rust slices.
//!
//! The kernels do not depend on shapes, runtime dtypes or devices. Their loops are written so that the compiler can
//! vectorize them. A wrong length is a bug in the caller and causes a panic, as in `copy_from_slice`.
//!
//! | item | contents |
//! |---|---|
//! | [`Sum`], [`Summand`] | the types that sums are computed in, and the types that can be summed |
//! | [`fold`] | the sum of several slices, in a fixed order |
//! | [`fold_then`], [`fold_two`] | the same, with a last operation on each sum (such as a division) |
//! | [`fold_scaled`] | the sum of weighted slices |
//! | [`sum_axis`] | the sum of a tensor along one axis |
//! | [`RowMerge`] | the merge of rows with equal indices on one replica, which are summed |
//! | [`RowSum`] | [`fold`] of the rows of several replicas, which may be in any order |
//! | [`each_row`] | the merged rows of several replicas next to each other, for [`fold_scaled`] |
//! | [`write()`], [`write_rows`] | assignments, additions and other operations on existing elements |
//! | [`concat()`], [`narrow`] | joining and slicing along an axis |

mod axis;
mod concat;
mod reduce;
mod row_fold;
mod row_sum;
mod rows;
mod sum;
mod write;

pub use axis::sum_axis;
pub use concat::{concat, narrow};
pub use reduce::{fold, fold_scaled, fold_then, fold_two};
pub use row_fold::each_row;
pub use row_sum::RowSum;
pub use rows::RowMerge;
pub use sum::{Scale, Sum, Summand};
pub use write::{Arithmetic, Write, write, write_rows};
