//! Remote functions on workers without a coordinator, called as a coordinator would call them. Test names contain the
//! numbers of the rules.

mod calls;
mod datasets;
mod failures;
mod models;
mod support;
