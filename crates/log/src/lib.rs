//! Warnings and errors that reach the user even in a program without a `tracing` subscriber.
//!
//! Crates of this workspace emit warnings and errors inside [`warn_or_stderr`]. All other events are sent to `tracing`
//! as usual. [`Repeats`] limits events that other processes can cause at any rate. [`plain`] escapes control characters
//! in text from other processes.
//!
//! | module | contents |
//! |---|---|
//! | `fallback` | [`warn_or_stderr`], [`info_or_stderr`]: events that go to standard error if there is no subscriber |
//! | `repeats` | [`Repeats`] |
//! | `plain` | [`plain`], [`plain_lines`] |
//! | `status_line` | [`StatusLine`], and [`stderr`] for output above it |
//!
//! This crate never installs a subscriber.

#![forbid(unsafe_code)]

mod fallback;
mod plain;
mod repeats;
mod status_line;

pub use fallback::{info_or_stderr, warn_or_stderr};
pub use plain::{plain, plain_lines};
pub use repeats::Repeats;
pub use status_line::{StatusLine, Stderr, stderr};
