//! Tests in which a worker fails and another replaces it: the weights are those of a training without interruption
//! (INV-42).

mod autoencoder;
mod cell;
mod changed;
mod compressed;
mod dealt;
mod disk;
mod disturbed;
mod elastic;
mod elected;
mod ended;
mod figures;
mod healed;
mod job;
mod leaving;
mod local_steps;
mod logical;
mod matrix;
mod network;
mod other_programs;
mod program;
mod relay;
mod runner;
mod sharded;
mod spares;
mod threads;
mod worker;

use distribute_testing::{child, watched};

/// Runs a test, except in the processes that it starts.
fn in_parent(test: impl FnOnce() + Send + 'static) {
    if child::part().is_none() {
        watched(test);
    }
}
