//! Workers that each run the complete program, on clusters whose tasks are all in this process. Test names contain the
//! numbers of the rules.

mod input;
mod legacy;
mod local;
mod processes;
mod runner;
mod support;
mod training;
mod variables;
mod workers;
