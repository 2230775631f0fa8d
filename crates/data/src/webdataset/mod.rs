//! Samples of tar files in the layout of WebDataset: the files of one sample are consecutive and have names
//! that are equal up to the first dot.
//!
//! | file | what it is |
//! |---|---|
//! | `members.rs` | the files in a tar file |
//! | `samples.rs` | groups the files into samples |
//! | `source.rs` | samples as elements of a dataset |

mod members;
mod samples;
mod source;

pub use samples::Sample;
#[doc(alias = "webdataset.WebDataset")]
#[doc(alias = "WebDataset")]
pub use samples::Samples;
pub use source::{samples, samples_skipping};
