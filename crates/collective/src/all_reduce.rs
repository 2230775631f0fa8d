//! The all-reduce: every member contributes a value, and every member gets the reduction of all values.

use crate::combined::tracked;
use crate::fill_parallel::{Chunk, fill_parallel};
use crate::sync::{Mutex, lock};
use crate::threads::{Helpers, Member};
use crate::{Combined, Failure};
use distribute_cluster::Fingerprint;
use distribute_tensor::kernel::{self, Sum, Summand};
use distribute_tensor::partition::chunk_len;
use distribute_tensor::{Folder, Leaf, Packing, ReduceOp, pack::reduce_packed};
use std::sync::Arc;

/// The maximum size in bytes of inputs that every member reduces alone. Sharing the work would require another
/// rendezvous of the members.
const SINGLE_THREAD_BYTES: usize = 64 << 10;

/// The size in bytes of the block that is reduced at a time. It stays in the L1 cache until the result is written.
const BLOCK: usize = 8 << 10;

/// Reduces each leaf over the members of all processes, in the order of a balanced binary tree over their global ids.
///
/// The members share the work for large leaves by reducing one range of elements each. Members may then get the same
/// tensors, so that changing one in place changes it for all of them. Packing leaves does not change the result. The
/// rows of indexed slices are merged in the order of their ids.
///
/// # Errors
/// - [`Failure::Blame`], on every member: members make different calls, or a member has exited, is lost or times out.
/// - Other failures: leaves cannot be combined, or a message of another process is malformed.
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
            leaves: leaves.into_iter().map(|leaf| reduce_one(op, leaf)).collect::<Result<_, _>>()?,
            tracked,
        });
    }
    let _reduce = tracing::trace_span!("reduce").entered();
    let (all, together) = member.all_gather_with_group(call.clone(), leaves, |all, calling| {
        let local: Vec<&[Leaf]> = all.iter().map(|leaves| leaves.as_slice()).collect();
        calling.all_reduce(op, packing, &local, &FoldThreads::Caller)
    })?;
    if let Some(together) = together {
        return Ok(Combined::clone(&*together));
    }
    let replicas: Vec<&[Leaf]> = all.iter().map(|leaves| leaves.as_slice()).collect();
    // All members look at the same leaves, so they decide alike.
    if member.size() > 1 && replicas.iter().any(|leaves| are_large(leaves, packing)) {
        let together = member.run_on_leader_with_helpers(&call, |helpers| {
            reduce_packed(op, &replicas, packing, &FoldThreads::All(helpers)).ok()
        })?;
        if let Some(reduced) = Arc::unwrap_or_clone(together) {
            return Ok(Combined { leaves: reduced, tracked: tracked(&replicas) });
        }
        // An error cannot be cloned, so every member computes it again below.
    }
    let reduced = reduce_packed(op, &replicas, packing, &FoldThreads::Caller)?;
    Ok(Combined { leaves: reduced, tracked: tracked(&replicas) })
}

/// Returns the reduction over a single member. The dtype and the errors are those of a reduction over several members.
fn reduce_one(op: ReduceOp, leaf: Leaf) -> Result<Leaf, Failure> {
    let dtype = leaf.dtype()?;
    match leaf {
        Leaf::Slices(_) => Ok(Leaf::reduce(op, &[leaf])?),
        dense if dtype.mean() == Some(dtype) => Ok(dense),
        dense => Ok(Leaf::reduce(op, &[dense])?),
    }
}

/// Returns whether the members should share the work: a leaf is large or, with packing, all leaves together are.
fn are_large(leaves: &[Leaf], packing: Packing) -> bool {
    if packing.is_on() {
        leaves.iter().map(bytes).sum::<usize>() > SINGLE_THREAD_BYTES
    } else {
        leaves.iter().any(|leaf| bytes(leaf) > SINGLE_THREAD_BYTES)
    }
}

/// Returns the size of a leaf's values in bytes; 0 if its elements have no fixed size.
fn bytes(leaf: &Leaf) -> usize {
    let width = leaf.dtype().ok().and_then(|dtype| dtype.bytes()).unwrap_or(0);
    leaf.dims().iter().product::<usize>() * width
}

/// The threads that compute a reduction.
enum FoldThreads<'a> {
    /// Only the calling thread.
    Caller,
    /// The threads of all members.
    All(&'a Helpers<'a>),
}

impl Folder for FoldThreads<'_> {
    fn fold<T: Summand>(&self, inputs: &[&[T]], last: impl Fn(T::Sum) -> T::Sum + Sync) -> Vec<T> {
        let len = inputs.first().map_or(0, |input| input.len());
        let fill = |chunk: &mut Chunk<'_, T>| fold_chunk(inputs, chunk, &last);
        match self {
            FoldThreads::All(helpers) if len * size_of::<T>() > SINGLE_THREAD_BYTES => {
                fill_parallel(len, helpers.size(), |work| helpers.broadcast(work), fill)
            }
            _ => fill_parallel(len, 1, |work| work(0), fill),
        }
    }

    fn fill<T: Sum>(&self, len: usize, fill: impl Fn(usize, &mut [T]) + Sync) -> Vec<T> {
        let mut out = vec![T::ZERO; len];
        match self {
            FoldThreads::All(helpers) if len * size_of::<T>() > SINGLE_THREAD_BYTES => {
                let each = chunk_len(len, helpers.size(), 1);
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

fn fold_chunk<T: Summand>(inputs: &[&[T]], chunk: &mut Chunk<'_, T>, last: &impl Fn(T::Sum) -> T::Sum) {
    if let [a, b] = inputs {
        let all = chunk.next(usize::MAX);
        return chunk.extend(kernel::fold_two(&a[all.clone()], &b[all], last));
    }
    // The block has to be cleared first, so a short chunk gets a smaller one.
    let len = (chunk.next(BLOCK).len() / 4).clamp(64, BLOCK / size_of::<T>());
    let mut block = vec![T::default(); len];
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
