//! Remote functions on their workers, without a coordinator: calls as a worker gets them. Names carry the numbers of
//! the rules.

mod calls;
mod datasets;
mod failures;
mod models;
mod support;
