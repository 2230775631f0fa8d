//! Elements of files: the common part of all formats.
//!
//! A format implements [`Format`]. It returns a file's elements one by one, or in sections that any thread
//! parses. `operation` is the source as data. `stage` reads the files one after the other.

mod format;
mod operation;
mod stage;

pub(crate) use format::{Format, Made, Reading, Sections, Work, threads};
pub(crate) use operation::{names, own};
