//! Tests of clusters whose tasks are threads or processes: workers, parameter servers and coordinators.
//!
//! Test names contain the numbers of the rules.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod between_graph;
mod collective_models;
mod coordinator;
mod faults;
mod memory;
mod monitor;
mod multi_worker;
mod parameter_servers;
mod preemption;
mod recovery;
mod remote;
#[path = "../support/mod.rs"]
mod support;
mod table_memory;
