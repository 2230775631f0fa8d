//! The decisions of a re-formed group: the state of the training, and which workers receive whose state. Pure: no
//! socket, no thread, no clock.
//!
//! | module | what it is |
//! |---|---|
//! | [`loss`] | after which losses a worker meets the others again |
//! | [`updates`] | how far a worker is, and where it goes on |
//! | [`report`] | what each says of itself, and whose state the others take over |
//! | [`handover`] | in which rounds they say it, and hand the state over |
//!
//! What a state is, those know who drive this: `distribute`'s `Training`, and the crate `distribute-simulation` for all
//! workers of a world at once.

pub mod handover;
pub mod loss;
pub mod report;
pub mod updates;

pub use handover::Handover;
pub use loss::Losses;
pub use report::Report;
pub use updates::{Numbers, Updates};
