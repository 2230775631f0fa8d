//! Memory that workers of one machine share.
//!
//! | module | what it is |
//! |---|---|
//! | `machine` | whether two workers are on one machine |
//! | `memfd` | files that are memory, found through `/proc` |
//! | `map` | such files as memory of this process: the `unsafe` |
//! | `layout`, `ring` | what is where in the memory of a pair, and in a ring: pure |
//! | `pair` | the memory of a pair of workers: two rings, who sleeps, what has been given back |
//! | `region`, `arena` | memory of this process that others can read, and where it comes from |
//! | `reference` | where a body is, instead of the body: pure |
//! | `ledger`, `loans` | what another worker reads, and has not given back |
//! | `imports` | bodies that this worker reads in another's memory |
//!
//! Two workers of one machine find that out in the handshake. The one that has connected makes memory for the pair, and the
//! other opens it. From then on each direction is a ring of bytes, which holds what a socket would carry. The socket stays: a
//! byte wakes who sleeps, and its end is that of the worker.
//!
//! The memory has no name: it is gone when the last process that has it mapped ends, however that happens.
//!
//! A body in a [`Region`] is not copied. The ring carries a [`reference`] to it; its receiver maps the sender's memory for
//! reading, once, and reads the body there. When the last of its [`Bytes`](bytes::Bytes) is dropped, it writes a number into
//! the memory of the pair, by which the sender knows. Until then the sender keeps the body; if the other worker is lost or ends
//! before, the memory is used for nothing else, so that what was received stays as it is.

pub(crate) mod arena;
pub(crate) mod imports;
mod layout;
mod ledger;
pub(crate) mod loans;
pub(crate) mod machine;
mod map;
mod memfd;
pub(crate) mod pair;
pub(crate) mod played;
pub(crate) mod reference;
mod region;
mod ring;

pub use region::Region;

/// Whether workers of one machine send each other messages through memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedMemory {
    /// Where both sides can: on Linux, on one machine, as one user, in one namespace of process ids (containers mostly have one
    /// each). Elsewhere through sockets, as if this had not been asked for.
    ///
    /// So it is where links between machines are encrypted, too, once both sides have shown who they are: who could read
    /// this memory could read that of the processes as well.
    #[default]
    Auto,
    /// Through sockets alone.
    Never,
}
