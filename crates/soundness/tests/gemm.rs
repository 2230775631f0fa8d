//! `gemm.rs` of the crate `nn` and its tests, as they are, without candle.

#![allow(dead_code, reason = "what only layers use")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// The file asks candle for its number of threads: here that is `utils` below.
extern crate self as candle_core;
// The trait of elements is in `internal` below.
extern crate self as distribute_base;

/// Stands in for `candle_core::utils`.
pub mod utils {
    /// Products are made on this thread and, in tests that say so, on others.
    pub fn get_num_threads() -> usize {
        1
    }
}

/// Stands in for `distribute_base::internal`.
pub mod internal {
    /// What products and their tests need of an element.
    pub trait Number: Copy + PartialEq + Send + Sync + 'static {
        /// The nearest value.
        fn of(value: f64) -> Self;
        /// The sum.
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
#[path = "../../nn/src/turn_over.rs"]
mod turn_over;
