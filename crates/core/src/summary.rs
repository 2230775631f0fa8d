//! Scalars and histograms for TensorBoard, written by the chief.

#[doc(inline)]
pub use distribute_summary::{Error, SummaryWriter};

use crate::context::get_replica_context;
use crate::strategy::Strategy;
use distribute_base::Result;
use std::path::Path;

impl Strategy {
    /// Creates a writer of scalars and histograms for TensorBoard. The chief writes a new file in `folder`;
    /// other workers write nothing. In the closure of a `run`, only replica 0 writes.
    ///
    /// # Errors
    /// - [`Error::Summary`](distribute_base::Error::Summary): the chief can't create a file there.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # let folder = std::env::temp_dir().join(format!("summary-doc-{}", std::process::id()));
    /// let strategy = MirroredStrategy::cpus(2)?;
    /// let summaries = strategy.summary_writer(&folder)?;
    /// strategy.run((), |ctx, ()| {
    ///     let sum = ctx.all_reduce(ReduceOp::Sum, 1f64)?;
    ///     Ok(summaries.scalar("sum", sum, ctx.step())?) // once, as 2
    /// })?;
    /// summaries.close()?;
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "tf.summary.create_file_writer")]
    pub fn summary_writer(&self, folder: impl AsRef<Path>) -> Result<SummaryWriter> {
        if !self.should_save_summary() {
            return Ok(SummaryWriter::noop());
        }
        // RCTX-6
        let first = || get_replica_context().is_none_or(|ctx| ctx.replica_id_in_sync_group() == 0);
        Ok(SummaryWriter::create(folder)?.record_if(first))
    }
}
