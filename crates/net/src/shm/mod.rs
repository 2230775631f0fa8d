//! Memory that workers of one machine share.
//!
//! | module | contents |
//! |---|---|
//! | `machine` | whether two workers are on one machine |
//! | `memfd` | files in memory, found through `/proc` |
//! | `map` | such files as memory of this process: the `unsafe` |
//! | `layout`, `ring` | the layout of a pair's memory, and of a ring: pure |
//! | `pair` | the memory of a pair of workers: two rings, sleeping threads, returned loans |
//! | `region`, `arena` | memory of this process that others can read, and its allocator |
//! | `reference` | a reference to a body in memory: pure |
//! | `ledger`, `loans` | bodies that another worker reads in place, until it returns them |
//! | `imports` | bodies that this worker reads in another's memory |
//!
//! Two workers on one machine detect this in the handshake. The one that has connected creates memory for the pair, and
//! the other opens it. From then on, each direction is a ring of bytes, with the same content as a socket. The socket
//! stays open: a byte on it wakes sleeping threads, and its end shows that the worker has exited.
//!
//! The memory has no name. It is freed when the last process has unmapped it or has exited, in any way.
//!
//! A body in a [`Region`] is not copied. It is on *loan*: the ring contains a [`reference`] to it. The receiver maps
//! the sender's memory for reading, once, and reads the body there. When the last of its [`Bytes`](bytes::Bytes) is
//! dropped, the receiver writes a number into the memory of the pair, which returns the loan. Until then, the sender
//! keeps the body. If the other worker disconnects before, the memory is not used again, so that received bytes do not
//! change.

// - **INV-32** Values that another process writes into shared memory are validated before use, and read once when
//   they are parsed. An invalid position or reference ends the link with an error; lengths and offsets are this
//   process's own. Memory that another worker may still be reading is not written. Tests: `net/src/shm/played.rs`,
//   `shm/imports.rs`, `shm/reference.rs`, `net/tests/it/shared_memory.rs`.

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

/// Whether workers of one machine send messages through shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedMemory {
    /// Shared memory if both sides can use it, and otherwise sockets. Both sides can use it on Linux, on the same
    /// machine, as the same user and in the same namespace of process ids; most containers have separate ones.
    ///
    /// Shared memory is also used in jobs whose links between machines are encrypted, after both sides have identified
    /// themselves. This is safe, because a process that can read the shared memory could also read the memory of the
    /// two processes.
    #[default]
    Auto,
    /// Sockets only.
    Never,
}
