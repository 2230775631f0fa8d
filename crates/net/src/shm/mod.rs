//! Memory that workers of one machine share.
//!
//! | module | what it is |
//! |---|---|
//! | `machine` | whether two workers are on one machine |
//! | `memfd` | files that are memory, found through `/proc` |
//! | `map` | such files as memory of this process: the `unsafe` |
//! | `layout`, `ring` | what is where in the memory of a pair, and in a ring: pure |
//! | `pair` | the memory of a pair of workers: two rings, who sleeps, what has been given back |

mod layout;
pub(crate) mod machine;
mod map;
mod memfd;
pub(crate) mod pair;
mod ring;

/// Whether workers of one machine send each other messages through memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedMemory {
    /// Where both sides can: on Linux, on one machine, as one user, in one namespace of process ids (containers mostly have one
    /// each). Elsewhere through sockets, as if this had not been asked for.
    #[default]
    Auto,
    /// Through sockets alone.
    Never,
}
