//! Nothing hangs, every error names the culprit, and the next run works: every fault that one process can have,
//! through the public API.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "faults/calls.rs"]
mod calls;
#[path = "faults/contexts.rs"]
mod contexts;
#[path = "faults/late.rs"]
mod late;
#[path = "faults/random_programs.rs"]
mod random_programs;
#[path = "faults/replicas.rs"]
mod replicas;
#[path = "faults/support.rs"]
mod support;
