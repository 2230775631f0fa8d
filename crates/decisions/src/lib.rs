//! Decisions of workers and strategies, as functions and small state machines.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public items of this crate.
//! `distribute-core` collects what a decision needs from the workers, and acts on the result.
//!
//! | module | contents |
//! |---|---|
//! | `access` | the operations on a variable that are allowed in each context |
//! | `placement` | [`VariablePlacement`]; the location of a new variable |
//! | `select` | [`RestoreFilter`]: the tensors of a checkpoint that are restored |
//! | `partition` | the elements that each worker updates if workers shard the state of an optimizer |
//! | `missing_gradients` | the likely cause of variables without a gradient |
//! | `examples` | numbers of examples that do not fit the rows of the per-replica batches |
//! | `names` | the names of tensors in checkpoints, and lists of names in messages |
//! | `outcome` | the result of work that each worker does alone |
//! | `differences` | the settings that differ between workers |
//! | `drift` | the comparison of variables that must be equal on all workers |
//! | `local_steps` | [`LocalSteps`]: steps that each worker trains alone |
//! | `loss_scale` | [`LossScale`]: the factor of the loss, which adapts to the steps that were finite |
//! | `step_times`, `stragglers` | the time of each worker's steps; which worker makes the others wait, and why |
//! | `notice`, `departure` | notices to exit; which workers exit after one |
//!
//! This crate sends no messages and starts no threads.

mod access;
mod departure;
mod differences;
mod drift;
mod examples;
mod local_steps;
mod loss_scale;
mod missing_gradients;
mod names;
mod notice;
mod outcome;
mod partition;
mod placement;
mod select;
mod step_times;
mod stragglers;

pub use local_steps::{LocalSteps, Outer};
pub use loss_scale::LossScale;
pub use placement::VariablePlacement;
pub use select::{RestoreFilter, RestoreReport, Unrestored};
pub use stragglers::{Straggler, StragglerCause, WorkerTimes};

/// Items for the other crates of `distribute`. They are not part of the public interface and may change at any time.
#[doc(hidden)]
pub mod internal {
    pub use crate::access::{Access, AccessPlan, Combine, VariableKind, plan};
    pub use crate::departure::Departure;
    pub use crate::differences::{Settings, differences, digest};
    pub use crate::drift::{ComparisonPlan, Drift, VariableChecksum, find_drift};
    pub use crate::examples::ExamplesCheck;
    pub use crate::local_steps::{Alone, alone_differently, different_counts};
    pub use crate::loss_scale::LossScaling;
    pub use crate::missing_gradients::{MissingReport, missing_gradients};
    pub use crate::names::{common_name, copies_name, first_names, list_names, variable_names};
    pub use crate::notice::{Notice, NoticeDecision};
    pub use crate::outcome::{Outcome, merge_outcomes};
    pub use crate::partition::{BLOCK, Partition, RowShare, Sharding, SlotShare};
    pub use crate::placement::{Placement, Policy, Purpose, StorageLocation};
    pub use crate::step_times::{StepMeter, StepTimes};
}
