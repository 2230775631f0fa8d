//! Opening and writing of files, regardless of their contents.
//!
//! - A file or folder gets its final name only when it is complete. See [`WholeFile`] for files and [`Partial`] for
//!   folders.
//! - The leftovers of a killed process are removed by the next process that writes to the same path. Files that are
//!   still being written, and files that this project did not create, remain.
//! - On Unix, opening a file never blocks, even if it is a named pipe, and writing never follows a link to another
//!   file.
//!
//! | module | contents |
//! |---|---|
//! | `lock` | [`LockFile`]: locks that are released when they are dropped |
//! | `memory` | [`memory`]: the size of the memory |
//! | `regular` | opens regular files, without blocking |
//! | `partial` | [`Partial`]: incomplete files and folders |
//! | `whole` | [`WholeFile`] |

#![forbid(unsafe_code)]

mod lock;
mod memory;
mod partial;
mod regular;
mod whole;

pub use lock::LockFile;
pub use memory::memory;
pub use partial::{Partial, destination_name};
pub use regular::{create_private_folder, open, open_append, open_checked, open_lock, open_own};
pub use whole::WholeFile;
