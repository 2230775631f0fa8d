//! Tests of the results of a program: values, variables, input, layers, gradients, optimizers and training.
//!
//! Test names contain the numbers of the rules.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad_input;
mod contexts;
mod cross_device;
mod embedding;
mod equivalence;
mod everywhere;
mod fused;
mod gradients;
mod input;
mod layers;
mod ledgers;
mod metrics;
mod optimizer;
#[cfg(target_os = "linux")]
mod pinned;
mod precision;
mod rayon;
mod resume;
mod runner;
mod stacks;
mod stock_models;
mod stuck;
#[path = "../support/mod.rs"]
mod support;
mod threads;
mod trace;
mod transformers;
mod variables;
