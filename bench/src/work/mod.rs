//! The work of this program and the peers: models, inputs, and initial weights computed by a formula.
//! `bench/peers/common.py` contains the same.

mod files;
pub mod formula;
pub mod inputs;
mod mlp;
mod recommender;
mod training;
mod zipf;

pub use mlp::Mlp;
pub use recommender::Recommender;
pub use training::{Model, Training};
pub use zipf::Zipf;

/// The number of batches, which are used in rotation.
pub const BATCHES: u32 = 16;
/// The learning rate of the steps that are timed.
pub const RATE: f64 = 0.01;
