//! Nothing hangs, every error names the culprit, and the next run works: every fault that one process can have,
//! through the public API.

mod calls;
mod contexts;
mod late;
mod random_programs;
mod replicas;
mod support;
