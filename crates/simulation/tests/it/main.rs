//! Tests of the simulated cluster: it finds planted bugs, and without them no rule is broken.

#![allow(clippy::unwrap_used, clippy::panic)]

mod found;
mod planted;
mod scenarios;
