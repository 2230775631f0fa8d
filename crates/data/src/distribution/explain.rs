//! Describes a distribution in words.

use super::parts::Parted;
use super::{Distribution, Source};
use crate::pipeline::{self, Pipeline};
use crate::plan::layout::Layout;
use crate::{AutoShardPolicy, SplitRule, UnevenEnds};
use distribute_tensor::Nest;
use std::fmt::Write;

impl<T: Nest> Distribution<T> {
    /// Describes the pipeline, the chosen policy and its reason, the input of each worker, the rows of each
    /// replica in a step of a full batch, and the treatment of the end.
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
            Source::Dataset(parted) => {
                let Parted { pipeline, decision, parts } = parted.as_ref();
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
                        AutoShardPolicy::Off if workers > 1 => "everything, for itself alone".into(),
                        _ => "everything, of each batch its pieces".into(),
                    };
                    writeln!(out, "worker {worker} reads {reads}{}", self.sizes(worker))?;
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

    /// Returns the rows of a worker's replicas in its first step of a full batch.
    fn sizes(&self, worker: usize) -> String {
        let (Some(decision), Some(full)) = (self.decision(), self.full()) else {
            return "; how many rows a step has is only known when it is read".into();
        };
        let pieces = self.cut(decision, worker).pieces(full);
        let numbers: Vec<_> =
            pieces.iter().take(self.layout.replicas).map(|piece| piece.len().to_string()).collect();
        format!("; rows of its replicas in a full step: {}", numbers.join(" "))
    }

    fn tail(&self) -> String {
        let cut = match (&self.source, self.options.rule) {
            (Source::Function(_), _) => "",
            (_, SplitRule::Even) => "a last batch that is shorter is cut evenly",
            (_, SplitRule::TensorFlow) => "a last batch that is shorter is cut as TensorFlow does",
        };
        let ends = match self.options.ends {
            UnevenEnds::PadEmpty if cut.is_empty() && self.options.rule == SplitRule::TensorFlow => {
                "replicas without data get batches without rows until all are at the end; where all shapes are known, \
                 the pass ends for all when one replica has nothing left, as TensorFlow's"
            }
            UnevenEnds::PadEmpty => "replicas without data get batches without rows until all are at the end",
            UnevenEnds::StopAll => "the pass ends for all when one replica has nothing left",
            UnevenEnds::Drop => "the pass ends for all at the first step that is not a whole batch",
        };
        match cut {
            "" => format!("at the end: {ends}"),
            cut => format!("at the end: {cut}; {ends}"),
        }
    }
}

/// Returns the sources of a pipeline, in a line.
fn sources(pipeline: &Pipeline) -> String {
    let mut all = Vec::new();
    pipeline::visit(pipeline, &mut |operation| {
        if operation.inputs().is_empty() {
            all.push(operation.describe());
        }
    });
    all.join(", ")
}
