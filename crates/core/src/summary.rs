//! A writer of scalars and histograms for TensorBoard. Only the chief writes.

#[doc(inline)]
pub use distribute_summary::{Error, SummaryWriter};

use crate::context::get_replica_context;
use crate::strategy::Strategy;
use distribute_base::Result;
use std::path::Path;

impl Strategy {
    /// Creates a writer of scalars and histograms for TensorBoard. The chief creates a new file in `folder`;
    /// the writers of other workers do nothing. Inside `run`, only replica 0 writes.
    ///
    /// # Errors
    /// - [`Error::Summary`](distribute_base::Error::Summary): the chief cannot create a file in `folder`.
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
        if !self.is_chief() {
            return Ok(SummaryWriter::noop());
        }
        // RCTX-6
        let first = || get_replica_context().is_none_or(|ctx| ctx.replica_id_in_sync_group() == 0);
        Ok(SummaryWriter::create(folder)?.record_if(first))
    }
}
