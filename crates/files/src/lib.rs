//! Opening and writing of files, whatever they contain.
//!
//! - A file gets its name when it is complete: [`WholeFile`]. So does a folder: [`Partial`].
//! - The leftovers of a killed process are removed by the next process that writes to the same path. Files
//!   that are still being written, or that this project did not make, stay.
//! - Opening never blocks, as it would on a named pipe, and writing never follows a link to another file.
//!
//! | module | what it is |
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
pub use partial::{Partial, whole_name};
pub use regular::{create_private_folder, open, open_append, open_checked, open_lock, open_own};
pub use whole::WholeFile;
