//! Helpers shared by the tests of all crates. Only tests depend on this crate.
//!
//! | module | contents |
//! |---|---|
//! | `watched` | [`watched`]: a test that fails if it takes too long |
//! | [`child`], `port` | tests in separate processes, and ports for them |
//! | `certificates` | the certificates of a job; feature `certificates` |
//! | `files` | the names of the files in a folder |
//! | `page` | blocks of a page of the documentation, compared with the code |
//! | `random` | random programs and data |
//! | `skipped` | tests that are skipped if the machine lacks something |

// As in the tests that use it.
#![allow(clippy::unwrap_used, clippy::panic)]

#[cfg(feature = "certificates")]
mod certificates;
pub mod child;
mod files;
mod page;
#[cfg(unix)]
mod port;
mod random;
mod skipped;
mod watched;

#[cfg(feature = "certificates")]
pub use certificates::{certificates, certificates_of};
pub use files::names_in;
pub use page::{block, compare_bytes};
#[cfg(unix)]
pub use port::{Port, own_address};
pub use random::{SplitMix, fuzz_inputs};
pub use skipped::skipped;
pub use watched::{watched, watched_for};
