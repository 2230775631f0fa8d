//! Locations of files, their compression, and the list of files of a source.
//!
//! | file | what it is |
//! |---|---|
//! | `location.rs` | [`Location`]: a path, bytes in memory or a URL |
//! | `open.rs` | opens local files that can be read repeatedly |
//! | `url.rs` | hides the secrets of URLs, and escapes names as parts of URLs |
//! | `state.rs` | the size of a file and a checksum of its ends, which are equal for all copies: for positions and other workers |
//! | `stamp.rs` | the name, size and modification time of a file, which are found without reading it: for caches on this machine |
//! | `limit.rs` | the memory that one element may take |
//! | `compression.rs` | [`Compression`]: the decompression of a file before its format reads the bytes |
//! | `announced.rs` | the detection of the compression from the first bytes |
//! | `skippable.rs` | frames that zstd and lz4 skip |
//! | `files.rs` | [`Files`]: an ordered list of locations, and a worker's part of it |
//! | `pattern.rs` | local files whose paths match a pattern |
//! | `braces.rs` | the expansion of braces in patterns |
//! | `input.rs` | a reader that keeps track of its offset, for parsers of binary formats |
//! | `object_store.rs` | objects behind URLs, requested early by a thread; feature `object-store` |
//! | `http.rs` | HTTP requests with the exact URL that was given; feature `object-store` |

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
