//! A second server that has what a server has.
//!
//! A server that is *followed* sends each change, once it is made, to its follower, in the order in which those of a table were made, and
//! acknowledges it when that one has made it, too. The follower keeps it in memory, as a table that nobody reads.
//!
//! Each start of a server is a *life*, with a number greater than those before, which its folder and its follower know. One that starts
//! takes the state of the greater life: its own, or its follower's if its folder is gone, or older. A follower takes changes of the
//! greatest life alone, so that a server that has been replaced acknowledges nothing more.
//!
//! | file | what it is |
//! |---|---|
//! | `message` | what the two say to each other: pure |
//! | `follower` | changes that are on their way, and who waits for them |
//! | `feeder` | the thread that sends them |
//! | `mirror` | what the follower has |

mod feeder;
mod follower;
mod message;
mod mirror;
#[cfg(test)]
mod tests;

pub(crate) use feeder::{Feeder, read_life, write_life};
pub(crate) use follower::Follower;
pub(crate) use message::Change;
pub use mirror::Replicas;
