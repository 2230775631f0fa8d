//! Warnings and errors that reach the user even in a program without a `tracing` subscriber.
//!
//! Crates of this workspace emit warnings and errors inside of [`heard`]. All other events go to `tracing` as usual.

#![forbid(unsafe_code)]

mod heard;

pub use heard::{heard, told};
