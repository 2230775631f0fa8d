//! Every member contributes, every member gets the reduction.

use crate::combined::tracked;
use crate::filled::{Chunk, filled};
use crate::sync::{Mutex, lock};
use crate::threads::{Helpers, Member};
use crate::{Combined, Failure};
use distribute_cluster::Fingerprint;
use distribute_tensor::kernel::{self, Sum};
use distribute_tensor::{Folder, Leaf, Packing, ReduceOp, pack::reduce_packed};
use std::sync::Arc;

/// Up to so many bytes every member folds everything for itself: summing them costs less than another rendezvous.
const ALONE: usize = 64 << 10;

/// Bytes that are folded before they are written: they stay in the first cache.
const BLOCK: usize = 8 << 10;

/// Reduces each leaf over all members, in the order of a balanced binary tree over the ranks.
///
/// Large leaves are reduced together, each member a range of their elements, and all members get the same tensors:
/// who changes one in place changes it for all. How leaves are packed changes no bit. Of indexed slices the rows are
/// merged, in the order of ranks.
///
/// # Errors
/// [`Failure`] on every member.
pub fn all_reduce(
    member: &Member,
    call: Fingerprint,
    op: ReduceOp,
    packing: Packing,
    leaves: Vec<Leaf>,
) -> Result<Combined, Failure> {
    if member.is_alone() {
        let tracked = vec![false; leaves.len()];
        return Ok(Combined {
            leaves: leaves.into_iter().map(|leaf| of_one(op, leaf)).collect::<Result<_, _>>()?,
            tracked,
        });
    }
    let _reduce = tracing::trace_span!("reduce").entered();
    let (all, together) = member.together(call.clone(), leaves, |all, calling| {
        let local: Vec<&[Leaf]> = all.iter().map(|leaves| leaves.as_slice()).collect();
        calling.all_reduce(op, packing, &local, &Threads::Mine)
    })?;
    if let Some(together) = together {
        return Ok(Combined::clone(&*together));
    }
    let replicas: Vec<&[Leaf]> = all.iter().map(|leaves| leaves.as_slice()).collect();
    // All members judge by the same leaves, so they agree.
    if member.size() > 1 && replicas.iter().any(|leaves| are_large(leaves, packing)) {
        let together = member
            .lead(&call, |helpers| reduce_packed(op, &replicas, packing, &Threads::All(helpers)).ok())?;
        if let Some(reduced) = Arc::unwrap_or_clone(together) {
            return Ok(Combined { leaves: reduced, tracked: tracked(&replicas) });
        }
        // An error cannot be cloned: every member finds it for itself.
    }
    let reduced = reduce_packed(op, &replicas, packing, &Threads::Mine)?;
    Ok(Combined { leaves: reduced, tracked: tracked(&replicas) })
}

/// The reduction over one member, which has the dtype that it would have over several, and fails where that would.
fn of_one(op: ReduceOp, leaf: Leaf) -> Result<Leaf, Failure> {
    let dtype = leaf.dtype()?;
    match leaf {
        Leaf::Slices(_) => Ok(Leaf::reduce(op, &[leaf])?),
        dense if dtype.mean() == Some(dtype) => Ok(dense),
        dense => Ok(Leaf::reduce(op, &[dense])?),
    }
}

/// Whether a leaf is worth sharing; where they are packed, whether all of them are.
fn are_large(leaves: &[Leaf], packing: Packing) -> bool {
    if packing.is_on() {
        leaves.iter().map(bytes).sum::<usize>() > ALONE
    } else {
        leaves.iter().any(|leaf| bytes(leaf) > ALONE)
    }
}

/// The bytes of a leaf's values.
fn bytes(leaf: &Leaf) -> usize {
    let width = leaf.dtype().ok().and_then(|dtype| dtype.bytes()).unwrap_or(0);
    leaf.dims().iter().product::<usize>() * width
}

/// The threads that share a sum.
enum Threads<'a> {
    /// The calling one.
    Mine,
    /// Those of all members.
    All(&'a Helpers<'a>),
}

impl Folder for Threads<'_> {
    fn fold<T: Sum>(&self, inputs: &[&[T]], last: impl Fn(T) -> T + Sync) -> Vec<T> {
        let len = inputs.first().map_or(0, |input| input.len());
        let fill = |chunk: &mut Chunk<'_, T>| fold_chunk(inputs, chunk, &last);
        match self {
            Threads::All(helpers) if len * size_of::<T>() > ALONE => {
                filled(len, helpers.size(), |work| helpers.broadcast(work), fill)
            }
            _ => filled(len, 1, |work| work(0), fill),
        }
    }

    fn fill<T: Sum>(&self, len: usize, fill: impl Fn(usize, &mut [T]) + Sync) -> Vec<T> {
        let mut out = vec![T::ZERO; len];
        match self {
            Threads::All(helpers) if len * size_of::<T>() > ALONE => {
                let each = len.div_ceil(helpers.size()).max(1);
                let chunks = out.chunks_mut(each).enumerate();
                let chunks: Vec<_> = chunks.map(|(i, chunk)| Mutex::new((i * each, chunk))).collect();
                helpers.broadcast(&|worker| {
                    if let Some(chunk) = chunks.get(worker) {
                        let (start, out) = &mut *lock(chunk);
                        fill(*start, out);
                    }
                });
            }
            _ => fill(0, &mut out),
        }
        out
    }
}

fn fold_chunk<T: Sum>(inputs: &[&[T]], chunk: &mut Chunk<'_, T>, last: &impl Fn(T) -> T) {
    if let [a, b] = inputs {
        let all = chunk.next(usize::MAX);
        return chunk.extend(kernel::fold_two(&a[all.clone()], &b[all], last));
    }
    // A short chunk is folded in a few blocks all the same: the block has to be cleared first.
    let len = (chunk.next(BLOCK).len() / 4).clamp(64, BLOCK / size_of::<T>());
    let mut block = vec![T::ZERO; len];
    let mut pieces = Vec::with_capacity(inputs.len());
    loop {
        let next = chunk.next(block.len());
        if next.is_empty() {
            return;
        }
        pieces.clear();
        pieces.extend(inputs.iter().map(|input| &input[next.clone()]));
        let block = &mut block[..next.len()];
        kernel::fold_then(&pieces, block, last);
        chunk.write(block);
    }
}
