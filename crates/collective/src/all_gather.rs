//! The all-gather: every member contributes a value, and every member gets the concatenation of all values.

use crate::Failure;
use crate::combined::{Combined, tracked};
use crate::threads::Member;
use distribute_cluster::Fingerprint;
use distribute_tensor::{Error, Leaf};

/// Concatenates each leaf over the members of all processes along `axis`, in the order of their global ids. Returns the
/// resulting leaves and, for each of them, the offset of this member's part along the axis.
///
/// # Errors
/// - [`Failure::Blame`], on every member: members make different calls, or a member has exited, is lost or times out.
/// - Other failures: leaves cannot be combined, or a message of another process is malformed.
pub fn all_gather(
    member: &Member,
    call: Fingerprint,
    axis: usize,
    leaves: Vec<Leaf>,
) -> Result<(Combined, Vec<usize>), Failure> {
    if member.is_alone() {
        leaves.iter().try_for_each(|leaf| check(leaf, axis))?;
        let (tracked, offsets) = (vec![false; leaves.len()], vec![0; leaves.len()]);
        return Ok((Combined { leaves, tracked }, offsets));
    }
    let _gather = tracing::trace_span!("gather").entered();
    let (all, together) = member.all_gather_with_group(call, leaves, |all, calling| {
        let local: Vec<&[Leaf]> = all.iter().map(|leaves| leaves.as_slice()).collect();
        calling.all_gather(&local)
    })?;
    let (everybody, tracked) = match together.as_deref() {
        Some((everybody, tracked)) => (everybody.iter().map(Vec::as_slice).collect(), tracked.clone()),
        None => {
            let all: Vec<&[Leaf]> = all.iter().map(|leaves| leaves.as_slice()).collect();
            let tracked = tracked(&all);
            (all, tracked)
        }
    };
    let count = everybody.first().map_or(0, |leaves| leaves.len());
    let (mut leaves, mut offsets) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for i in 0..count {
        let parts: Vec<Leaf> = everybody.iter().map(|leaves: &&[Leaf]| leaves[i].clone()).collect();
        leaves.push(Leaf::concat(&parts, axis)?);
        offsets.push(parts[..member.replica()].iter().map(|part| part.dims()[axis]).sum());
    }
    Ok((Combined { leaves, tracked }, offsets))
}

/// Returns an error if a leaf cannot be gathered from several members, even if there is only one member.
fn check(leaf: &Leaf, axis: usize) -> Result<(), Error> {
    const OPERATION: &str = "all_gather";
    let (rank, shape) = (leaf.dims().len(), leaf.dims().to_vec());
    match leaf {
        Leaf::Slices(_) => {
            Err(Error::LeafKind { operation: OPERATION, expected: "a dense tensor", found: "indexed slices" })
        }
        _ if axis >= rank => Err(Error::Axis { operation: OPERATION, axis: axis as i64, rank, shape }),
        _ => Ok(()),
    }
}
