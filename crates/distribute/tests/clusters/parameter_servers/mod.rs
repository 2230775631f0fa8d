//! Training with parameter servers, on clusters whose tasks are all in this process. Test names contain the numbers of
//! the rules.

pub mod channels;
mod checkpoint;
mod closures;
mod created;
mod dynamic;
mod faults;
mod fetched;
mod processes;
mod python;
mod random;
mod runner;
mod sockets;
mod strategy;
mod support;
mod training;
mod transfers;
mod variables;
