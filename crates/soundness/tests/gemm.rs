//! Runs the tests of the file `gemm.rs` of the crate `nn`, unchanged and without candle.

#![allow(dead_code, reason = "what only layers use")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// The file asks candle for its number of threads: here that is `utils` below.
extern crate self as candle_core;
// The trait of elements is in `internal` below.
extern crate self as distribute_base;

/// A substitute for `candle_core::utils`.
pub mod utils {
    /// Returns 1, so that products are computed on the calling thread. Some tests pass more threads explicitly.
    pub fn get_num_threads() -> usize {
        1
    }
}

/// A substitute for `distribute_base::internal`.
pub mod internal {
    /// The operations on elements that products and their tests need.
    pub trait Number: Copy + PartialEq + Send + Sync + 'static {
        /// Returns the number of this type that is nearest to `value`.
        fn of(value: f64) -> Self;
        /// Returns the sum of two numbers.
        fn plus(self, other: Self) -> Self;
    }

    impl Number for f32 {
        fn of(value: f64) -> Self {
            value as f32
        }
        fn plus(self, other: Self) -> Self {
            self + other
        }
    }

    impl Number for f64 {
        fn of(value: f64) -> Self {
            value
        }
        fn plus(self, other: Self) -> Self {
            self + other
        }
    }
}

#[path = "../../nn/src/gemm.rs"]
mod gemm;
#[path = "../../nn/src/transpose.rs"]
mod transpose;
