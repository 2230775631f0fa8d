//! Tables: refusals, restored state, and many threads on one table.

#![allow(clippy::unwrap_used, clippy::panic)]

mod refusals;
mod restored;
mod threads;
