//! Tests of leaves, trees and their operations.

#![allow(clippy::unwrap_used, clippy::panic)]

#[cfg(feature = "candle")]
mod candle;
mod leaf;
