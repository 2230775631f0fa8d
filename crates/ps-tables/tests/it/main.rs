//! Tables: what they refuse, what is put back, and many threads at one.

#![allow(clippy::unwrap_used, clippy::panic)]

mod refusals;
mod restored;
mod threads;
