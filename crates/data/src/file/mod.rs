//! Where files are, how they are packed, and which of them a source reads.
//!
//! | file | what it is |
//! |---|---|
//! | `location.rs` | [`Location`]: a path, bytes in memory or a URL |
//! | `open.rs` | local files that can be read again |
//! | `url.rs` | what of a URL may be shown, and names as parts of one |
//! | `state.rs` | a file's size and a checksum of its ends, the same for all copies: for positions and other workers |
//! | `stamp.rs` | a file's name, size and time, which are found without reading it: for caches on this machine |
//! | `limit.rs` | how much memory one element may take |
//! | `compression.rs` | [`Compression`]: what is taken off before a format sees the bytes |
//! | `announced.rs` | which compression the first bytes announce |
//! | `skippable.rs` | frames that zstd and lz4 skip |
//! | `files.rs` | [`Files`]: an ordered list of locations, and a worker's part of it |
//! | `pattern.rs` | local files whose paths match a pattern |
//! | `braces.rs` | patterns that stand for several |
//! | `input.rs` | bytes received, and how far: what binary formats are parsed from |
//! | `object_store.rs` | objects behind URLs, read ahead on a thread; feature `object-store` |
//! | `http.rs` | URLs that are asked for as they were given; feature `object-store` |

mod announced;
mod braces;
mod compression;
mod files;
#[cfg(feature = "object-store")]
mod http;
mod input;
mod limit;
mod location;
#[cfg(feature = "object-store")]
mod object_store;
mod open;
mod pattern;
mod skippable;
mod stamp;
mod state;
mod url;

pub use compression::Compression;
pub use files::Files;
pub(crate) use input::Input;
pub(crate) use limit::ElementLimit;
pub use location::Location;
pub(crate) use stamp::Stamp;
pub(crate) use state::{FileState, differ};
