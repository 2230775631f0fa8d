//! The error type of this crate. An error describes the problem, the replica or call that caused it, and the fix.

#[doc(inline)]
pub use distribute_base::{Error, ErrorKind, Ok, Result};
