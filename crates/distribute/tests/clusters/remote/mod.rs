//! Remote functions on their workers, without a coordinator: calls as a worker receives them. Test names contain the
//! numbers of the rules.

mod calls;
mod datasets;
mod failures;
mod models;
mod support;
