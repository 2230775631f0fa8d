//! The comparison of variables that must be equal on all workers.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | the elements that are compared in a step, as a pure function of the variables' sizes |
//! | `decide` | the variables that have drifted, and the workers on which they differ, as a pure function |

mod decide;
mod plan;

pub use decide::{Drift, VariableChecksum, find_drift};
pub use plan::ComparisonPlan;
