//! Nothing but tests: files with `unsafe` of crates that take minutes to build, compiled without what makes that so
//! long. `.ci/soundness` runs them with the address sanitizer.
