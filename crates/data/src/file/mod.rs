//! Where files are, how they are packed, and which of them a source reads.
//!
//! | file | what it is |
//! |---|---|
//! | `location.rs` | [`Location`]: a path, bytes in memory or a URL |
//! | `compression.rs` | [`Compression`]: what is taken off before a format sees the bytes |
//! | `files.rs` | [`Files`]: an ordered list of locations, and a worker's part of it |
//! | `input.rs` | bytes received, and how far: what binary formats are parsed from |
//! | `object_store.rs` | objects behind URLs, read ahead on a thread; feature `object-store` |

mod compression;
mod files;
mod input;
mod location;
#[cfg(feature = "object-store")]
mod object_store;

pub use compression::Compression;
pub use files::Files;
pub(crate) use input::Input;
pub use location::Location;
