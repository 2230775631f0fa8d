//! How this project opens and writes files, whatever they contain.
//!
//! - A file gets its name when it is complete: [`WholeFile`]. So does a folder: [`Partial`].
//! - What a killed process has left is removed by the next process that writes to the same place. Files that
//!   are still being written, or that this project did not make, stay.
//! - Opening never blocks, as it would on a named pipe, and writing never follows a link into another file.
//!
//! | module | what it is |
//! |---|---|
//! | `lock` | [`LockFile`]: locks that end when they are dropped |
//! | `memory` | [`memory`]: how much there is |
//! | `regular` | opens regular files, and nothing that blocks |
//! | `partial` | [`Partial`]: files and folders that aren't complete yet |
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
