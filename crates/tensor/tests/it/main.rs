//! Leaves of trees of tensors.

#![allow(clippy::unwrap_used, clippy::panic)]

#[cfg(feature = "candle")]
mod candle;
mod leaf;
