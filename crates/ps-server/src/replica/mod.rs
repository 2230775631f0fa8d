//! Replication of a server's state to a second server.
//!
//! A server with a *follower* sends each change to the follower after applying it, in the same order for each table. It
//! acknowledges the change after the follower has applied it as well. The follower keeps the tables in memory; clients
//! never read them.
//!
//! Each start of a server begins a new *life*. The number of a life is greater than all earlier ones, and is stored in
//! the server's folder and by its follower. A starting server takes the state with the greater life: its own, or its
//! follower's if its folder is missing or older. A follower accepts only changes of the greatest life, so a server that
//! was replaced acknowledges nothing more.
//!
//! A follower that was killed has no copy until it has received the complete state again. It requests the copy when it
//! starts, and its server monitors the connection even while there are no changes. Until the copy is complete, nothing
//! is acknowledged.
//!
//! A server that is killed before then has lost its tables. It starts without tables, and rejects requests of clients
//! for which it had acknowledged changes.
//!
//! | file | contents |
//! |---|---|
//! | `message` | the messages between a server and its follower |
//! | `replication_plan` | the protocol as a state machine: the next request, and the effects of its response |
//! | `sender` | the thread that sends requests |
//! | `mirror` | the copies that a follower keeps |
//! | `copy_requester` | the request of a restarted follower for its copy |
//! | `replicated` | a server with its follower, and with the copy of the server that it follows |
//!
//! The module `store` contains the transfer of a server's state, and the changes in flight.

// - **INV-57** If a server is followed, a change is acknowledged when it is in the tables of both, and each is made
//   once on either. A server that starts has the state of the greater life, its own or its follower's, before it
//   answers. A follower accepts only changes of the greatest life, in the order in which those of a table were
//   made, and only from its server. A copy counts when it is complete, and is sent as soon as the follower has
//   none. If both are lost, no client that had a change acknowledged is answered. Tests:
//   `ps-server/src/replica/tests.rs`, `ps-server/src/replica/model.rs`, `ps-server/tests/it/replica/mod.rs`,
//   `ps-server/tests/it/replica/ring.rs`.

mod copy_requester;
mod message;
mod mirror;
#[cfg(test)]
mod model;
mod replicated;
mod replication_plan;
mod sender;
#[cfg(test)]
mod tests;

pub use mirror::Replicas;
pub(crate) use replicated::Replicated;
