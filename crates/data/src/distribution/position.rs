//! [`Position`]: a position in a pass.

use super::{Deals, FileList};
use crate::plan::layout::Layout;
use crate::{AutoShardPolicy, SplitRule};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A position in a pass over a distributed dataset. It consists of a few numbers and the files, regardless of how
/// many elements are in the buffers of shuffles. If files are dealt, it also has a number for each of them.
///
/// The numbers of workers and replicas with which a pass began determine which elements each of its steps takes. The
/// pass can therefore resume with different numbers of workers or replicas, and no element of the epoch is lost or
/// repeated. This requires that a pass with the same number has the same elements in the same order, which all
/// operations guarantee unless documented otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The number of the pass, counted from 0.
    pub epoch: u64,
    /// The number of steps that have been taken in the pass.
    pub steps: u64,
    /// The layout with which the pass began, and its sharding. They determine which element belongs to which step
    /// until the end of the pass.
    pub origin: Origin,
    /// The files of the dataset. They are compared when the pass resumes, unless this is `None`, which it is in the
    /// following cases:
    ///
    /// - The position is the result of [`Distribution::beginning`](super::Distribution::beginning).
    /// - The dataset reads no files.
    /// - Workers may read different files: there are several workers, and either the policy is
    ///   [`AutoShardPolicy::Off`] or a function creates the datasets.
    /// - An earlier version of this crate created the position.
    #[serde(default)]
    pub files: Option<FileList>,
    /// The files that the workers have been dealt until the position. `None` with other policies than
    /// [`AutoShardPolicy::Dealt`], and before the first step.
    #[serde(default)]
    pub deals: Option<Deals>,
}

/// The parameters that determine how the elements of a pass are divided into steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The numbers of workers and replicas.
    pub layout: Layout,
    /// The chosen policy; `None` for datasets created by a function.
    pub policy: Option<AutoShardPolicy>,
    /// The rule by which batches are split.
    pub rule: SplitRule,
    /// The number of rows of a full batch; `None` if the pipeline does not determine it.
    pub batch: Option<usize>,
    /// A checksum of the operations and their parameters, such as seeds, padding, default values and the skipping of
    /// broken records. It does not cover file names, numbers of threads or prefetch sizes. `None` for datasets created
    /// by a function.
    ///
    /// A position with a different checksum is rejected, with one exception: a pass that began without skipping broken
    /// records can be resumed by a pipeline that skips them. Changes inside user functions, of the initial state of a
    /// `scan`, or of values in memory are not detected.
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
