//! The simulated cluster: bugs that it finds, and rules that must hold.

#![allow(clippy::unwrap_used, clippy::panic)]

mod found;
mod planted;
mod scenarios;
