//! Workers in processes of this machine: the cost of an all-reduce, the speed of training, and a prediction for more
//! workers than one machine can run.
//!
//! | module | contents |
//! |---|---|
//! | [`start`] | starts the processes of one round, and takes the measurement of worker 0 |
//! | [`place`] | the order for such a process: its rank, the addresses of the workers, and its work |
//! | [`child`] | a process that obeys this order |
//! | [`sum`], [`train`] | the work of a process |
//! | [`saving`] | the options with which training sends fewer bytes |
//! | [`sent`] | the number of bytes that a host has sent to others |
//! | [`mod@figures`] | the figures of two processes |
//! | [`link`] | `--link`: training on two hosts, with a link of limited rate between them |
//! | [`worlds`] | `--worlds`: more workers, and 1,000 |
//! | [`model`] | the cost of an all-reduce by its messages and bytes, fitted to measurements |

pub mod child;
mod figures;
pub mod link;
mod model;
mod place;
mod saving;
mod sent;
mod start;
mod sum;
mod train;
pub mod worlds;

pub use figures::figures;
