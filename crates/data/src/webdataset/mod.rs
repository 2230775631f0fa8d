//! Samples from tar files in the WebDataset layout. The files of one sample are consecutive, and their paths are equal
//! up to the first dot of the last part.
//!
//! | file | what it is |
//! |---|---|
//! | `members.rs` | a reader of the files in a tar file |
//! | `samples.rs` | the grouping of the files into samples |
//! | `source.rs` | the source of samples for a dataset |

mod members;
mod samples;
mod source;

pub use samples::Sample;
#[doc(alias = "webdataset.WebDataset")]
#[doc(alias = "WebDataset")]
pub use samples::Samples;
pub use source::{samples, samples_skipping};
