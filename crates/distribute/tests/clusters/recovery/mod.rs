//! Tests in which a worker fails and another replaces it: the weights are those of a training without interruption
//! (INV-42).

mod autoencoder;
mod cell;
mod changed;
mod compressed;
mod dealt;
mod disk;
mod disturbed;
mod drills;
mod elastic;
mod ended;
mod figures;
mod healed;
mod job;
mod leaving;
mod local_steps;
mod logical;
mod matrix;
mod other_programs;
mod program;
mod relay;
mod replaced;
mod runner;
mod sharded;
mod shares;
mod slow_link;
mod slowness;
mod spares;
mod threads;
mod worker;

use distribute_testing::{child, watched_for};
use std::time::Duration;

/// Runs a test, except in the processes that it starts.
fn in_parent(test: impl FnOnce() + Send + 'static) {
    in_parent_for(Duration::from_secs(60), test);
}

/// Acts like [`in_parent`], with another time limit.
fn in_parent_for(max: Duration, test: impl FnOnce() + Send + 'static) {
    if child::part().is_none() {
        watched_for(max, test);
    }
}
