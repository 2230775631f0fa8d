//! The work that we and the peers do: models, inputs and initial weights by formula. `bench/peers/common.py` has the same.

mod files;
pub mod formula;
pub mod inputs;
mod mlp;
mod recommender;
mod training;

pub use mlp::Mlp;
pub use recommender::Recommender;
pub use training::{Model, Training};

/// How many batches are gone through in turn.
pub const BATCHES: u32 = 16;
/// Learning rate of steps that are timed.
pub const RATE: f64 = 0.01;
