//! The kernels that reduce, gather and cut: plain slices in, plain slices out.
//!
//! Nothing here knows shapes, dtypes at run time or devices; the loops are written so that the compiler vectorises
//! them. Lengths that don't fit are a mistake of the caller and panic, as `copy_from_slice` does.
//!
//! | function | what it does |
//! |---|---|
//! | [`Sum`], [`Summand`] | what sums are computed in, and what can be summed |
//! | [`fold`] | the sum of several slices, in the one order of sums |
//! | [`fold_then`], [`fold_two`] | the same, with a last step for each sum (a division, say) |
//! | [`fold_scaled`] | the sum of weighted slices |
//! | [`sum_axis`] | the sum along one axis of one tensor |
//! | [`RowMerge`] | one replica's rows with indices, merged: equal indices summed |
//! | [`RowSum`] | [`fold`] of the rows of several replicas, as they come |
//! | [`each_row`] | the merged rows of several replicas side by side, for [`fold_scaled`] |
//! | [`write()`], [`write_rows`] | assigned, added, … to what is there |
//! | [`concat()`], [`narrow`] | put together and cut along an axis |

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
