//! The engine whose members are threads of this process.
//!
//! | module | what it is |
//! |---|---|
//! | [`meeting`] | [`Meeting`]: members exchange offers, or learn together why they can't |
//! | [`crew`] | [`Crew`]: threads that run a borrowed closure. The engine's only `unsafe` |
//! | [`team`] | [`Team`]: a meeting, and the threads that one `run` borrows from a free list |

pub mod crew;
pub mod meeting;
pub mod team;

pub use crew::Crew;
pub use meeting::{Meeting, Offer};
pub use team::{Helpers, Member, Team};
