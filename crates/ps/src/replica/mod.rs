//! A second server that has what a server has.
//!
//! A server that is *followed* sends each change, once it is made, to its follower, in the order in which those of a table were made, and
//! acknowledges it when that one has made it, too. The follower keeps it in memory, as a table that nobody reads.
//!
//! Each start of a server is a *life*, with a number greater than those before, which its folder and its follower know. One that starts
//! takes the state of the greater life: its own, or its follower's if its folder is gone, or older. A follower takes changes of the
//! greatest life alone, so that a server that has been replaced acknowledges nothing more.
//!
//! A follower that was killed has no copy until all is sent to it again. It asks for that when it starts, and the server that it follows
//! looks at the connection, also while nothing changes. Until the copy is complete, nothing is acknowledged. A server that is killed before
//! that has lost its tables: it begins without any, and refuses all that clients ask for that it had acknowledged changes of.
//!
//! | file | what it is |
//! |---|---|
//! | `message` | what the two say to each other: pure |
//! | `course` | which question comes next, and what follows from its answer: without a thread |
//! | `feeder` | the thread that asks |
//! | `mirror` | what the follower has |
//! | `asking` | the follower that starts asks for its copy |
//! | `replicated` | a server between the one that follows it and the one that it follows |
//!
//! What a follower takes and gives, and the changes on their way to it, are in `store`.

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
