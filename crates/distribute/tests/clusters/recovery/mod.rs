//! A worker is lost and another takes its place: the weights become those of a training without interruption (INV-42).

mod cell;
mod disk;
mod disturbed;
mod elastic;
mod ended;
mod figures;
mod job;
mod leaving;
mod matrix;
mod other_programs;
mod program;
mod relay;
mod runner;
mod threads;
mod worker;
