//! Warnings and errors that reach the user even in a program without a `tracing` subscriber.
//!
//! Crates of this workspace emit warnings and errors inside [`heard`]. All other events go to `tracing` as
//! usual. [`Repeats`] limits events that other processes can cause at any rate. [`plain`] escapes control
//! characters in their texts.

#![forbid(unsafe_code)]

mod heard;
mod plain;
mod repeats;

pub use heard::{heard, told};
pub use plain::{plain, plain_lines};
pub use repeats::Repeats;
