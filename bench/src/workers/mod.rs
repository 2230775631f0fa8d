//! Workers that are processes of this machine: what an all-reduce over them costs, what training by them gives, and what
//! that means for more of them than one machine has.
//!
//! | module | what it is |
//! |---|---|
//! | [`start`] | starts the processes of one round, and takes what worker 0 says |
//! | [`place`] | what such a process is told: its number, where worker 0 is, and its work |
//! | [`child`] | that process |
//! | [`sum`], [`train`] | its work |
//! | [`sent`] | what a host has sent to others |
//! | [`figures`] | the rows of two processes |
//! | [`link`] | `--link`: training on two hosts, with a link of a certain rate between them |
//! | [`worlds`] | `--worlds`: more of them, and 1,000 |
//! | [`model`] | what an all-reduce costs by its messages and bytes, fitted to what was measured |

pub mod child;
mod figures;
pub mod link;
mod model;
mod place;
mod sent;
mod start;
mod sum;
mod train;
pub mod worlds;

pub use figures::figures;
