//! Tests of every failure within one process through the public API: no test hangs, every error names the culprit, and
//! the next run works.

mod calls;
mod contexts;
mod late;
mod random_programs;
mod replicas;
mod support;
