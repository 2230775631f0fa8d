//! Samples of tar files as WebDataset lays them out: files of one sample follow each other and have names that are
//! equal up to the first dot.
//!
//! | file | what it is |
//! |---|---|
//! | `members.rs` | the files in a tar file |
//! | `samples.rs` | which of them belong together |
//! | `source.rs` | samples as elements of a dataset |

mod members;
mod samples;
mod source;

pub use samples::Sample;
#[doc(alias = "webdataset.WebDataset")]
#[doc(alias = "WebDataset")]
pub use samples::Samples;
pub use source::{samples, samples_skipping};
