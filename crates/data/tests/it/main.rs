//! Input: files of other software, broken and hostile files, and parameters at their extremes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod broken_input;
#[cfg(not(miri))]
mod diagnostics;
mod fuzz;
#[cfg(target_os = "linux")]
mod hostile;
mod identity;
mod numpy;
mod parameters;
#[cfg(feature = "parquet")]
mod parquet;
mod tfrecord;
mod types;
#[cfg(feature = "webdataset")]
mod webdataset;
