//! Teams: members that are threads of this process.
//!
//! | module | contents |
//! |---|---|
//! | [`rendezvous`] | [`Rendezvous`]: members exchange payloads, or all get the same error |
//! | [`broadcast_pool`] | [`BroadcastPool`]: threads that run a borrowed closure. The module's only `unsafe` |
//! | [`team`] | [`Team`]: a rendezvous, and the threads of one `run` |
//! | [`member`] | [`Member`]: a replica in a team, and its calls; [`Helpers`]: the other members while one leads |
//! | [`team_pool`] | [`TeamPool`]: idle teams, which runs acquire; chooses the thread of replica 0 |
//! | [`worker`] | the thread of a replica, with a separate rayon pool |
//! | `offload_thread` | a thread for replica 0 if the caller's thread is unsuitable |
//! | `stack` | a large stack for replica 0 on the caller's thread |

pub mod broadcast_pool;
pub mod member;
#[cfg(not(shuttle))]
mod offload_thread;
pub mod rendezvous;
#[cfg(not(shuttle))]
mod stack;
pub mod team;
#[cfg(not(shuttle))]
pub mod team_pool;
pub mod worker;

pub use broadcast_pool::BroadcastPool;
pub use member::{Helpers, Member};
pub use rendezvous::{Payload, Rendezvous};
pub use team::Team;
#[cfg(not(shuttle))]
pub use team_pool::TeamPool;
pub use worker::{MAX_THREADS, threads_of_replica};
