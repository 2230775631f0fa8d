//! What this project does with files, whatever is in them.
//!
//! - A file has its name when it is whole: [`WholeFile`]. Folders, too: [`Partial`].
//! - What was left by a process that was killed is removed by the next that writes to the same place; what anybody still
//!   writes, and what others made, stays.
//! - Opening never waits, as it would for a named pipe, and what is written never goes through a link into another file.
//!
//! | module | what it is |
//! |---|---|
//! | `regular` | opening files, and nothing that makes one wait |
//! | `part` | names for what isn't whole, and who still holds them |
//! | `whole` | [`WholeFile`] |

#![forbid(unsafe_code)]

mod partial;
mod regular;
mod whole;

pub use partial::{Partial, whole_name};
pub use regular::{open, open_checked, open_lock};
pub use whole::WholeFile;
