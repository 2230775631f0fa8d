//! [`Position`]: where a pass stands.

use crate::plan::layout::Layout;
use crate::{AutoShardPolicy, SplitRule};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a pass over a distributed dataset stands: a few numbers, whatever is in the buffers of shuffles.
///
/// Which elements a step takes is settled by who began the pass, whoever takes part later: so it can go on where it stood
/// with another number of workers or replicas, and no element of the epoch is lost or comes twice. It counts on pipelines
/// that give the same elements in the same order in a pass of the same number, as all do but those that say otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The pass, counted from 0.
    pub epoch: u64,
    /// The steps taken in it.
    pub steps: u64,
    /// Who took the first step of this pass, and how the data was parted then: which element belongs to which step
    /// depends on it, to the end of the pass.
    pub origin: Origin,
}

/// How the elements of a pass were parted into steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// How many took part.
    pub layout: Layout,
    /// The policy taken; `None` for datasets made by a function.
    pub policy: Option<AutoShardPolicy>,
    /// The rule of cutting.
    pub rule: SplitRule,
    /// The size of full batches, where the pipeline tells.
    pub batch: Option<usize>,
    /// A checksum of the operations and their parameters, but for names of files, numbers of threads and what is made
    /// ahead; `None` for datasets made by a function. What functions of users do, it cannot tell.
    pub pipeline: Option<u32>,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}, step {}, begun by {}", self.epoch, self.steps, self.origin.layout)?;
        if let Some(batch) = self.origin.batch {
            write!(f, " in batches of {batch}")?;
        }
        Ok(())
    }
}
