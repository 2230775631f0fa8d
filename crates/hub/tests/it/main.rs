//! The hub against a local server that answers as huggingface.co does: the real one is not used by tests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod concurrent;
mod downloads;
mod fake;
mod hostile;
mod indexes;
mod offline;
mod refusals;
mod server;
