//! How good the links between tasks are.

mod echo;

pub use echo::{Echo, NAME};
