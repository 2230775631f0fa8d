//! Every member contributes, every member gets the concatenation.

use crate::threads::Member;
use crate::{Combined, Failure};
use distribute_cluster::Fingerprint;
use distribute_tensor::Leaf;

/// Concatenates each leaf over all members along `axis`, in the order of ranks. Gives the leaves, and for each where
/// this member's part begins along the axis.
///
/// # Errors
/// [`Failure`] on every member.
pub fn all_gather(
    member: &Member,
    call: Fingerprint,
    axis: usize,
    leaves: Vec<Leaf>,
) -> Result<(Combined, Vec<usize>), Failure> {
    let _gather = tracing::trace_span!("gather").entered();
    let all = member.exchange(call, leaves)?;
    let count = all.first().map_or(0, |leaves| leaves.len());
    let (mut gathered, mut offsets) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for i in 0..count {
        let parts: Vec<Leaf> = all.iter().map(|leaves| leaves[i].clone()).collect();
        gathered.push(Leaf::concat(&parts, axis)?);
        offsets.push(parts[..member.rank()].iter().map(|part| part.dims()[axis]).sum());
    }
    Ok((Combined::new(gathered, &all), offsets))
}
