//! What one program computes: contexts and values, variables, input, layers, gradients, optimizers and training, and the ledgers of what is shown.
//!
//! Names carry the numbers of the rules.

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
mod inventory;
mod layers;
mod metrics;
mod optimizer;
mod pages;
mod resume;
mod rows;
mod runner;
mod stacks;
mod stock_models;
mod transformers;
mod variables;
