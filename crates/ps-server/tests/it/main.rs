//! Parameter servers behind ports: killed, with full disks, restored elsewhere, replicated.

#![allow(clippy::unwrap_used, clippy::panic)]

mod closures;
mod disks;
mod killed;
mod moves;
mod replica;
mod service;
mod support;
