//! The description of a distribution as text.

use super::parts::ShardedPipeline;
use super::{Distribution, Source};
use crate::pipeline::{self, Pipeline};
use crate::plan::layout::Layout;
use crate::{AutoShardPolicy, SplitRule, UnevenEnds};
use distribute_tensor::Nest;
use std::fmt::Write;

impl<T: Nest> Distribution<T> {
    /// Returns a description of the distribution: the pipeline, the chosen policy and its reason, the input of
    /// each worker, the rows of each replica in a step with a full batch, and the treatment of the end.
    ///
    /// ```
    /// use distribute_data::{Dataset, DistributeOptions, Distribution, Layout};
    /// let data = Dataset::range(10).batch(4);
    /// let plan = Distribution::new(&data, Layout { workers: 2, replicas: 2 }, DistributeOptions::default())?;
    /// println!("{}", plan.explain());
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    pub fn explain(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let Layout { workers, .. } = self.layout;
        match &self.source {
            Source::Dataset(sharded) => {
                let ShardedPipeline { pipeline, decision, parts } = sharded.as_ref();
                write!(out, "{}over {}, ", pipeline::explain(pipeline), self.layout)?;
                let asked = self.options.policy;
                if asked == decision.taken {
                    writeln!(out, "policy {}: {}", decision.taken, decision.why)?
                } else {
                    writeln!(out, "policy {} ({asked}): {}", decision.taken, decision.why)?
                }
                for (worker, part) in parts.iter().enumerate() {
                    let reads = match decision.taken {
                        AutoShardPolicy::File | AutoShardPolicy::Hint if workers > 1 => sources(part),
                        AutoShardPolicy::Dealt => "the files that it is dealt".into(),
                        AutoShardPolicy::Off if workers > 1 => "everything, independently".into(),
                        _ => "everything, and takes its rows of each batch".into(),
                    };
                    writeln!(out, "worker {worker} reads {reads}{}", self.sizes(worker))?;
                }
                if decision.taken == AutoShardPolicy::Dealt
                    && let Some(operation) = takes_names(pipeline)
                {
                    writeln!(
                        out,
                        "\"{operation}\" takes names of files ahead, so these are dealt long before they are read: \
                         order the Files instead"
                    )?;
                }
            }
            Source::Function(function) => {
                let each = if function.per_replica { "replica" } else { "worker" };
                writeln!(
                    out,
                    "a dataset for each {each}, made by a function, over {}: each replica takes an element a step",
                    self.layout
                )?;
            }
        }
        writeln!(out, "{}", self.tail())
    }

    /// Returns a phrase about the numbers of rows of a worker's replicas in its first step with a full batch.
    fn sizes(&self, worker: usize) -> String {
        let (Some(decision), Some(full)) = (self.decision(), self.full()) else {
            return "; how many rows a step has is only known when it is read".into();
        };
        let pieces = self.batch_split(decision, worker).pieces(full);
        let numbers: Vec<_> =
            pieces.iter().take(self.layout.replicas).map(|piece| piece.len().to_string()).collect();
        format!("; rows of its replicas in a full step: {}", numbers.join(" "))
    }

    fn tail(&self) -> String {
        let batch_split = match (&self.source, self.options.rule) {
            (Source::Function(_), _) => "",
            (_, SplitRule::Even) => "a shorter last batch is split evenly",
            (_, SplitRule::TensorFlow) => "a shorter last batch is split as by TensorFlow",
        };
        let ends = match self.options.ends {
            UnevenEnds::PadEmpty if batch_split.is_empty() && self.options.rule == SplitRule::TensorFlow => {
                "replicas without data get batches without rows until all replicas are at the end; if all \
                 shapes are known, the pass ends for all when one replica has no data left, as in \
                 TensorFlow"
            }
            UnevenEnds::PadEmpty => {
                "replicas without data get batches without rows until all replicas are \
                                     at the end"
            }
            UnevenEnds::StopAll => "the pass ends for all when one replica has no data left",
            UnevenEnds::Drop => "the pass ends for all at the first step without a complete batch",
        };
        match batch_split {
            "" => format!("at the end: {ends}"),
            batch_split => format!("at the end: {batch_split}; {ends}"),
        }
    }
}

/// Returns a description of an operation that takes file names from its input long before it needs them; `None` if
/// there is none.
fn takes_names(pipeline: &Pipeline) -> Option<String> {
    let mut found = None;
    pipeline::visit(pipeline, &mut |operation| {
        if operation.takes_ahead() && operation.inputs().iter().any(|input| input.names_files()) {
            found = Some(operation.describe());
        }
    });
    found
}

/// Returns the descriptions of a pipeline's sources, in one line.
fn sources(pipeline: &Pipeline) -> String {
    let mut all = Vec::new();
    pipeline::visit(pipeline, &mut |operation| {
        if operation.inputs().is_empty() {
            all.push(operation.describe());
        }
    });
    all.join(", ")
}
