//! What workers tell each other about a dataset: how they shard it, and how much they have for the next step.

use crate::{Result, Strategy};
use distribute_cluster::{Fingerprint, Operation};
use distribute_data::{Distribution, UnevenEnds};
use distribute_tensor::Nest;
use std::panic::Location;

/// The plan of this worker, if all workers have the same one. They may differ if files are visible to some workers only.
pub(super) fn same_plan<T: Nest>(
    strategy: &Strategy,
    operation: &'static str,
    at: &'static Location<'static>,
    plan: Result<Distribution<T>>,
) -> Result<Distribution<T>> {
    let plan = plan.and_then(|plan| {
        let ends = plan.ends(strategy.world().worker())?;
        Ok((plan, ends))
    });
    let call = || Fingerprint::new(Operation::DistributeDataset, operation, at);
    let what = ("the plan", "build the same dataset on every worker, of files that all of them see");
    let (plan, _) = strategy.agree_on(operation, call, plan, what, |(plan, ends)| describe(plan, *ends))?;
    Ok(plan)
}

/// Describes what has to be the same on all workers.
fn describe<T: Nest>(plan: &Distribution<T>, ends: UnevenEnds) -> String {
    let origin = plan.beginning(0).origin;
    let parted = match (plan.decision(), origin.pipeline) {
        (Some(decision), Some(pipeline)) => {
            format!("policy {} ({}), checksum of the pipeline {pipeline:08x}", decision.taken, decision.why)
        }
        _ => "by a function".into(),
    };
    let size = origin.batch.map_or("unknown size".into(), |size| size.to_string());
    format!("\"{parted}, batches of {size}, cut by {:?}, at the end {ends:?}\"", origin.rule)
}
