//! Every member contributes, every member gets the reduction.

use crate::Failure;
use crate::threads::Member;
use distribute_cluster::Fingerprint;
use distribute_tensor::{Leaf, ReduceOp};

/// Reduces each leaf over all members, in the order of a balanced binary tree over the ranks.
///
/// # Errors
/// [`Failure`] on every member.
pub fn all_reduce(
    member: &Member,
    call: Fingerprint,
    op: ReduceOp,
    leaves: Vec<Leaf>,
) -> Result<Vec<Leaf>, Failure> {
    let all = member.exchange(call, leaves)?;
    let count = all.first().map_or(0, |leaves| leaves.len());
    let reduce = |i: usize| {
        let parts: Vec<Leaf> = all.iter().map(|leaves| leaves[i].clone()).collect();
        Leaf::reduce(op, &parts)
    };
    Ok((0..count).map(reduce).collect::<Result<_, _>>()?)
}
