//! The workers' agreement on a dataset: that they read the same files and shard them in the same way.

use crate::strategy::{Strategy, wire};
use distribute_base::{Error, ErrorKind, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_data::{Distribution, FileList, UnevenEnds};
use distribute_tensor::Nest;
use std::panic::Location;

/// Returns `plan` if all workers have the same plan, and an error otherwise. Plans differ, for example, if a worker
/// does not see all files.
pub(super) fn agree_on_plan<T: Nest>(
    strategy: &Strategy,
    operation: &'static str,
    at: &'static Location<'static>,
    plan: Result<Distribution<T>>,
) -> Result<Distribution<T>> {
    let call = || Fingerprint::new(Operation::DistributeDataset, operation, at);
    let plan = require_same_files(strategy, operation, &call, plan)?;
    let ends = plan.and_then(|plan| {
        let ends = plan.ends(super::pipeline(strategy.world()))?;
        Ok((plan, ends))
    });
    let advice = if ends.as_ref().is_ok_and(|(plan, _)| plan.pull_checksum().is_some()) {
        // Files are dealt. A number of threads that depends on the machine is the most likely difference.
        "build the same dataset on every worker, with the same numbers of threads in map_parallel and the same sizes \
         of buffers, whatever machine it has"
    } else {
        "build the same dataset on every worker, from files that all of them see"
    };
    let what = ("the plan", advice);
    let (plan, _) =
        strategy.require_equal(operation, call, ends, what, |(plan, ends)| describe(plan, *ends))?;
    Ok(plan)
}

/// Checks that all workers have the same files in the same order, because each reads some of the files, or part of each
/// batch. Returns `plan` unchanged. A worker whose plan failed reports its error later, when the plans are compared.
///
/// # Errors
/// - [`Error::Failed`]: the files differ. The error names the file and the difference, and is the same on all workers.
/// - The errors of [`Strategy::exchange_results`].
fn require_same_files<T: Nest>(
    strategy: &Strategy,
    operation: &'static str,
    call: &impl Fn() -> Fingerprint,
    plan: Result<Distribution<T>>,
) -> Result<Result<Distribution<T>>> {
    // All workers already have the error of a call in which all participated.
    let is_reported = plan.as_ref().is_err_and(|error| error.blame().is_some());
    if strategy.world().workers() == 1 || is_reported {
        return Ok(plan);
    }
    let mine = plan.as_ref().ok().and_then(Distribution::files);
    let all = |lists: &Option<FileList>| -> Result<Vec<Option<FileList>>> {
        let (_, all) = strategy.exchange_results(operation, call, Ok(()), |()| wire::encode(lists))?;
        wire::decode_all(operation, &all)
    };
    // Lists may be long, and are almost always equal, so digests are compared first.
    let brief = all(&mine.as_ref().map(FileList::brief))?;
    let first = brief.first().and_then(Option::as_ref);
    let differ = |other: &FileList| first.is_some_and(|first| first.difference(other).is_some());
    if !brief.iter().flatten().any(differ) {
        return Ok(plan);
    }
    let lists = all(&mine)?;
    let Some(first) = lists.first().and_then(Option::as_ref) else { return Ok(plan) };
    for (worker, other) in lists.iter().enumerate() {
        if let Some(differs) = other.as_ref().and_then(|other| other.difference(first)) {
            let reason = format!(
                "the workers have other files: {} is {} on {}, but {} on worker 0; give all of them the same files in the \
                 same order (with AutoShardPolicy::Off each may have separate files)",
                differs.what,
                differs.here,
                strategy.describe_worker(worker),
                differs.there
            );
            return Err(Error::failed(ErrorKind::Disagreement, operation, reason));
        }
    }
    Ok(plan)
}

/// Describes the properties of a plan that must be the same on all workers.
fn describe<T: Nest>(plan: &Distribution<T>, ends: UnevenEnds) -> String {
    let origin = plan.beginning(0).origin;
    let parted = match (plan.decision(), origin.pipeline) {
        (Some(decision), Some(pipeline)) => {
            format!("policy {} ({}), checksum of the pipeline {pipeline:08x}", decision.taken, decision.why)
        }
        _ => "by a function".into(),
    };
    // If files are dealt, all workers predict when each of them needs a file.
    let pulls =
        plan.pull_checksum().map_or(String::new(), |sum| format!(", of its buffers and threads {sum:08x}"));
    let size = origin.batch.map_or("unknown size".into(), |size| size.to_string());
    format!("\"{parted}{pulls}, batches of {size}, split by {:?}, at the end {ends:?}\"", origin.rule)
}
