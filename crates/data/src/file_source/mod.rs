//! The source that reads elements from files: the common part of all formats. A new format is a folder whose
//! `source` is a [`Format`], and a case in the tests of broken files.
//!
//! A format implements [`Format`]. It returns the elements of a file one by one, or in sections that any thread
//! can parse (`format`). `operation` is the source as an operation. `stage` reads the files one after the other.

mod format;
mod operation;
mod stage;

pub(crate) use format::{Format, ParsedSection, Reading, Sections, Work, threads};
pub(crate) use operation::{names, order, own};
