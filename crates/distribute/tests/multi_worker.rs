//! Several workers in one process, over memory: what they compute is what one process computes with all of their replicas, and
//! what one of them does wrong is told on all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "multi_worker/faults.rs"]
mod faults;
#[path = "multi_worker/training.rs"]
mod training;
