//! Tests of files with `unsafe`, from crates that take minutes to build. They are compiled here without the slow
//! dependencies, and `.ci/soundness` runs them with the address sanitizer.
