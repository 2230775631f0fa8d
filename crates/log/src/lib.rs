//! Warnings and errors that reach the user even in a program without a `tracing` subscriber.
//!
//! Crates of this workspace emit warnings and errors inside of [`heard`]. All other events go to `tracing` as
//! usual. What others can cause as often as they like is limited by [`Repeats`], and [`plain`] takes out of
//! their words what a terminal obeys.

#![forbid(unsafe_code)]

mod heard;
mod plain;
mod repeats;

pub use heard::{heard, told};
pub use plain::{plain, plain_lines};
pub use repeats::Repeats;
