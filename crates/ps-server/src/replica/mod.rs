//! Replication of a server's state to a second server.
//!
//! A server with a *follower* sends each change to it after applying the change, in the same order for each
//! table. It acknowledges the change after the follower has applied it as well. The follower keeps the tables
//! in memory, and they are not read.
//!
//! Each start of a server is a *life*. Its number is greater than all previous ones, and is stored in the
//! server's folder and by its follower. A server that starts takes the state with the greater life: its own, or
//! its follower's if its folder is missing or older. A follower only accepts changes of the greatest life, so a
//! server that was replaced acknowledges no more changes.
//!
//! A follower that was killed has no copy until the whole state is sent again. It requests the copy when it
//! starts, and the server it follows monitors the connection even while there are no changes. Until the copy is
//! complete, nothing is acknowledged. A server that is killed before that has lost its tables. It starts
//! without any, and refuses requests of clients for which it had acknowledged changes.
//!
//! | file | contents |
//! |---|---|
//! | `message` | the messages between a server and its follower |
//! | `course` | the protocol: the next request, and the effects of the response, without a thread |
//! | `feeder` | the thread that sends requests |
//! | `mirror` | the copy of the follower |
//! | `asking` | the request of a restarted follower for its copy |
//! | `replicated` | a server with its follower, and the server that it follows |
//!
//! The transfer of a server's state, and the changes in flight, are in `store`.

mod asking;
mod course;
mod feeder;
mod message;
mod mirror;
#[cfg(test)]
mod model;
mod replicated;
#[cfg(test)]
mod tests;

pub use mirror::Replicas;
pub(crate) use replicated::Replicated;
