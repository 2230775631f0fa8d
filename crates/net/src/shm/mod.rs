//! Memory that workers of one machine share.
//!
//! | module | contents |
//! |---|---|
//! | `machine` | whether two workers are on one machine and can share memory |
//! | `memfd` | files in memory, found through `/proc` |
//! | `map` | such files mapped into this process: the `unsafe` code |
//! | `layout`, `ring` | the layout of a pair's memory, and of a ring: pure |
//! | `pair` | the memory of a pair of workers: two rings, sleeping threads, returned loans |
//! | `short` | short messages, each in cache lines of its own instead of the ring |
//! | `region`, `arena` | memory of this process that others can read, and its allocator |
//! | `reference` | a reference to a body in shared memory: pure |
//! | `ledger`, `loans` | bodies that another worker reads in place, until it returns them |
//! | `imports` | bodies that this worker reads in another's memory |
//!
//! Two workers on one machine detect this in the handshake. The one that has connected creates memory for the pair, and
//! the other opens it. From then on, a ring of bytes in each direction carries what a socket would. The socket stays
//! open: a byte on it wakes sleeping threads, and its end shows that the worker has exited.
//!
//! A short message that finds room is not in the ring but in cache lines of its own, which the receiver looks at. So
//! it takes the message without reading a position first. The message contains the position of the ring before it, so
//! messages keep their order.
//!
//! The memory has no name. The system frees it when all processes have unmapped it or have exited, even if they crash.
//!
//! A body in a [`Region`] is not copied. It is on *loan*: the ring contains a [`reference`] to it. The receiver maps
//! the sender's memory once and reads the body there. When the last of the body's [`Bytes`](bytes::Bytes) is dropped,
//! the receiver returns the loan by writing its id into the memory of the pair. Until then, the sender keeps the body.
//! If the receiver disconnects before, that memory is never reused, so received bytes do not change.

// - **INV-32** Values that another process writes into shared memory are validated before use, and read once when
//   they are parsed. An invalid position or reference ends the link with an error; lengths and offsets are this
//   process's own. Memory that another worker may still be reading is not written. Tests: `net/src/shm/played.rs`,
//   `shm/short.rs`, `shm/imports.rs`, `shm/reference.rs`, `net/tests/it/shared_memory.rs`.

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
pub(crate) mod short;

pub use region::Region;

/// The choice whether workers of one machine send messages through shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedMemory {
    /// Use shared memory if both sides can, and otherwise sockets. Both sides can on Linux, on the same machine, as the
    /// same user and in the same namespace of process ids. Most containers have separate namespaces.
    ///
    /// Shared memory is also used in jobs whose links between machines are encrypted, after both sides have identified
    /// themselves. This is safe, because a process that can read the shared memory could also read the memory of the
    /// two processes.
    #[default]
    Auto,
    /// Use sockets only.
    Never,
}
