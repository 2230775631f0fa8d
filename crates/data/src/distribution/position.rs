//! [`Position`]: a position in a pass.

use super::FileList;
use crate::plan::layout::Layout;
use crate::{AutoShardPolicy, SplitRule};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A position in a pass over a distributed dataset: a few numbers and the files, however many elements are in
/// the buffers of shuffles.
///
/// The workers and replicas that began a pass determine which elements each of its steps takes. So the pass
/// can resume with another number of workers or replicas, and no element of the epoch is lost or repeated.
/// This requires that a pass with the same number has the same elements in the same order. It holds for all
/// operations except those documented otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The pass, counted from 0.
    pub epoch: u64,
    /// The number of steps taken in it.
    pub steps: u64,
    /// The workers and replicas that began this pass, and its sharding. They determine which element belongs
    /// to which step until the end of the pass.
    pub origin: Origin,
    /// The files of the dataset. `None` at the beginning of a pass, if there are none, and if workers may
    /// read different ones. The latter is the case if there are several workers, and the policy is
    /// [`AutoShardPolicy::Off`] or a function makes the datasets. Positions of earlier versions have `None`;
    /// their files are not compared.
    #[serde(default)]
    pub files: Option<FileList>,
}

/// The division of the elements of a pass into steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The number of workers and replicas.
    pub layout: Layout,
    /// The chosen policy; `None` for datasets made by a function.
    pub policy: Option<AutoShardPolicy>,
    /// The rule by which batches are split.
    pub rule: SplitRule,
    /// The size of full batches, if the pipeline determines it.
    pub batch: Option<usize>,
    /// A checksum of the operations and their parameters, without files, numbers of threads and sizes of
    /// prefetches. `None` for datasets made by a function. It cannot detect changes inside user functions.
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
