//! Parameter servers behind ports: killed, without room, moved, replicated.

#![allow(clippy::unwrap_used, clippy::panic)]

mod closures;
mod disks;
mod killed;
mod moves;
mod replica;
mod service;
mod support;
