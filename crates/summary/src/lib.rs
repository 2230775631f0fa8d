//! Event files for TensorBoard: scalars and histograms, by step.
//!
//! ```
//! use distribute_summary::SummaryWriter;
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path().join("run");
//!
//! let summaries = SummaryWriter::create(&folder)?; // tensorboard --logdir of this folder
//! for step in 1..=3 {
//!     summaries.scalar("loss", 1. / step as f64, step)?;
//! }
//! summaries.histogram("fc/weight", [-0.5f32, 0.1, 0.7], 3)?;
//! summaries.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate does not know which worker is the chief.
//!
//! | module | contents |
//! |---|---|
//! | `writer` | [`SummaryWriter`]: the public interface, and flushing |
//! | `event` | the contents of the file: TensorFlow's messages |
//! | `histogram` | counts values in buckets, a pure function |
//! | `name` | the names by which TensorBoard finds files |
//! | `error` | [`Error`] |

#![forbid(unsafe_code)]

mod error;
mod event;
mod histogram;
mod name;
mod writer;

pub use error::{Error, Result};
#[doc(alias = "tf.summary.SummaryWriter")]
pub use writer::SummaryWriter;
