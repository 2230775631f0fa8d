//! Teams: members that are threads of this process.
//!
//! | module | what it is |
//! |---|---|
//! | [`rendezvous`] | [`Rendezvous`]: members exchange payloads, or learn together why they can't |
//! | [`crew`] | [`Crew`]: threads that run a borrowed closure. The module's only `unsafe` |
//! | [`team`] | [`Team`]: a rendezvous, and the threads that one `run` borrows |
//! | [`member`] | [`Member`]: what a member calls; [`Helpers`] of one that leads |
//! | [`teams`] | [`Teams`]: idle teams, lent to runs; picks the thread of replica 0 |
//! | [`worker`] | the thread of a replica, with a rayon pool of its own |
//! | `host` | a thread for replica 0, where the caller's thread is unsuitable |
//! | `stack` | a large stack for replica 0 on the caller's thread |

pub mod crew;
#[cfg(not(shuttle))]
mod host;
pub mod member;
pub mod rendezvous;
#[cfg(not(shuttle))]
mod stack;
pub mod team;
#[cfg(not(shuttle))]
pub mod teams;
pub mod worker;

pub use crew::Crew;
pub use member::{Helpers, Member};
pub use rendezvous::{Payload, Rendezvous};
pub use team::Team;
#[cfg(not(shuttle))]
pub use teams::Teams;
pub use worker::{MOST_THREADS, own_threads};
