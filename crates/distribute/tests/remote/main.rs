//! Remote functions on their workers, without a coordinator: calls as a worker gets them. Names carry the numbers of the rules.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod calls;
#[path = "../parameter_servers/channels.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod channels;
mod datasets;
mod failures;
mod models;
mod support;
