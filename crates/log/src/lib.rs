//! What a program is told, whether it listens or not.
//!
//! Crates of this workspace emit warnings and errors inside of [`heard`], so that none is lost where the program has no
//! `tracing` subscriber. Everything else goes to `tracing` as it is.

#![forbid(unsafe_code)]

mod heard;

pub use heard::heard;
