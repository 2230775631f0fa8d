//! Buckets of leaves for a reduction. With buckets, many small leaves need as few transfers as a single large leaf.
//!
//! Sums over replicas are element-wise, so the result is bit-identical for every partition into buckets.

use crate::fold::{Alone, Folder};
use crate::{Leaf, ReduceOp, Result};
use std::ops::Range;

/// A partition of the leaves of one reduction into buckets. If the number in a variant is 0, each leaf is reduced
/// separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Consecutive leaves are put into a bucket until its size exceeds the given number of bytes.
    Bytes(usize),
    /// The elements of all leaves are divided into the given number of buckets of equal size. The last bucket also gets
    /// the remainder.
    Count(usize),
}

/// A range of elements of one leaf in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The index of the leaf in the list that [`Packing::packs`] received.
    pub leaf: usize,
    /// The range of the leaf's elements, in row-major order.
    pub elements: Range<usize>,
}

impl Packing {
    /// No buckets: each leaf is reduced separately.
    pub const APART: Packing = Packing::Bytes(0);

    /// Returns whether several leaves may share a bucket.
    pub fn is_on(self) -> bool {
        !matches!(self, Packing::Bytes(0) | Packing::Count(0))
    }

    /// Returns the buckets for leaves with `lens` elements of `width` bytes each. No bucket is empty: leaves without
    /// elements are in no bucket.
    pub fn packs(self, lens: &[usize], width: usize) -> Vec<Vec<Segment>> {
        let whole = |leaf: usize| Segment { leaf, elements: 0..lens[leaf] };
        let leaves = (0..lens.len()).filter(|leaf| lens[*leaf] > 0);
        match self {
            Packing::Bytes(0) | Packing::Count(0) => leaves.map(|leaf| vec![whole(leaf)]).collect(),
            Packing::Bytes(limit) => {
                let (mut packs, mut bytes) = (Vec::<Vec<Segment>>::new(), 0);
                for leaf in leaves {
                    match packs.last_mut() {
                        Some(pack) if bytes <= limit => pack.push(whole(leaf)),
                        _ => {
                            packs.push(vec![whole(leaf)]);
                            bytes = 0;
                        }
                    }
                    bytes += lens[leaf] * width;
                }
                packs
            }
            Packing::Count(count) => {
                let each = lens.iter().sum::<usize>() / count;
                let (mut packs, mut room) = (vec![Vec::new()], each);
                for leaf in leaves {
                    let mut start = 0;
                    while start < lens[leaf] {
                        if room == 0 && packs.len() < count {
                            packs.push(Vec::new());
                            room = each;
                        }
                        // The last bucket has room for the rest.
                        let take = if packs.len() == count { usize::MAX } else { room };
                        let end = lens[leaf].min(start.saturating_add(take));
                        if let Some(pack) = packs.last_mut().filter(|_| end > start) {
                            pack.push(Segment { leaf, elements: start..end });
                        }
                        room = room.saturating_sub(end - start);
                        start = end;
                    }
                }
                packs.retain(|pack| !pack.is_empty());
                packs
            }
        }
    }
}

/// Reduces each leaf over the replicas. `replicas[r][i]` is leaf `i` of replica `r`; all replicas must have the same
/// number of leaves. The result is bit-identical to that of [`Leaf::reduce_with`].
///
/// Leaves of the same kind, dtype and device share buckets. Leaves that are indexed slices, empty, not numeric or
/// different between replicas are reduced separately, so errors are the same as without buckets.
///
/// # Errors
/// Returns the errors of [`Leaf::reduce`].
pub fn reduce_packed(
    op: ReduceOp,
    replicas: &[&[Leaf]],
    packing: Packing,
    folder: &impl Folder,
) -> Result<Vec<Leaf>> {
    let count = replicas.iter().map(|leaves| leaves.len()).min().unwrap_or(0);
    let alone = |leaf: usize| {
        let parts: Vec<&Leaf> = replicas.iter().map(|leaves| &leaves[leaf]).collect();
        Leaf::reduce_with(op, &parts, folder)
    };
    if !packing.is_on() || replicas.len() == 1 {
        return (0..count).map(alone).collect();
    }
    let mut pieces = vec![Vec::new(); count];
    for (group, width) in groups(replicas, count) {
        let lens: Vec<usize> = group.iter().map(|leaf| replicas[0][*leaf].dims().iter().product()).collect();
        for pack in packing.packs(&lens, width) {
            let joined = |leaves: &&[Leaf]| join(leaves, &group, &pack);
            let parts = replicas.iter().map(joined).collect::<Result<Vec<_>>>()?;
            let sum = Leaf::reduce_with(op, &parts, folder)?;
            let mut start = 0;
            for segment in &pack {
                pieces[group[segment.leaf]].push(sum.narrow(0, start, segment.elements.len())?);
                start += segment.elements.len();
            }
        }
    }
    let whole = |(leaf, pieces): (usize, Vec<Leaf>)| match pieces.as_slice() {
        [] => alone(leaf),
        [one] => one.reshape(replicas[0][leaf].dims()),
        many => Leaf::concat(many, 0)?.reshape(replicas[0][leaf].dims()),
    };
    pieces.into_iter().enumerate().map(whole).collect()
}

/// Acts like [`reduce_packed`], on the calling thread alone.
///
/// # Errors
/// Returns the errors of [`Leaf::reduce`].
// Crates that call this would otherwise compile the sums of all dtypes again.
#[inline(never)]
pub fn reduce_packed_alone(op: ReduceOp, replicas: &[&[Leaf]], packing: Packing) -> Result<Vec<Leaf>> {
    reduce_packed(op, replicas, packing, &Alone)
}

/// Returns the groups of leaves that can share buckets, each with the size of its elements in bytes.
fn groups(replicas: &[&[Leaf]], count: usize) -> Vec<(Vec<usize>, usize)> {
    let mut groups: Vec<(Vec<usize>, usize)> = Vec::new();
    for leaf in 0..count {
        let Some(width) = packable(replicas, leaf) else { continue };
        let fits = |other: usize| {
            replicas.iter().all(|leaves| {
                leaves[leaf].is_on_same_device(&leaves[other])
                    && leaves[leaf].dtype().ok() == leaves[other].dtype().ok()
            })
        };
        match groups.iter_mut().find(|(group, _)| fits(group[0])) {
            Some((group, _)) => group.push(leaf),
            None => groups.push((vec![leaf], width)),
        }
    }
    groups
}

/// Returns the size of an element in bytes if a leaf can share a bucket, otherwise `None`. The leaf must be dense,
/// numeric and not empty, and have the same kind, dtype and shape on all replicas.
fn packable(replicas: &[&[Leaf]], leaf: usize) -> Option<usize> {
    let first = &replicas.first()?[leaf];
    let dtype = first.dtype().ok().filter(|dtype| dtype.mean().is_some())?;
    let equal = |other: &Leaf| {
        other.kind() == first.kind() && other.dtype().ok() == Some(dtype) && other.dims() == first.dims()
    };
    let dense = !matches!(first, Leaf::Slices(_)) && !first.dims().contains(&0);
    (dense && replicas.iter().all(|leaves| equal(&leaves[leaf]))).then(|| dtype.bytes()).flatten()
}

/// Concatenates the elements of one replica that belong to a bucket.
fn join(leaves: &[Leaf], group: &[usize], pack: &[Segment]) -> Result<Leaf> {
    let flat = |segment: &Segment| {
        let leaf = &leaves[group[segment.leaf]];
        let flat = leaf.reshape(&[leaf.dims().iter().product()])?;
        flat.narrow(0, segment.elements.start, segment.elements.len())
    };
    let parts = pack.iter().map(flat).collect::<Result<Vec<_>>>()?;
    match parts.as_slice() {
        [one] => Ok(one.clone()),
        many => Leaf::concat(many, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostTensor, IndexedSlices};
    use proptest::prelude::*;

    fn leaves_of(packs: &[Vec<Segment>]) -> Vec<Vec<usize>> {
        packs.iter().map(|pack| pack.iter().map(|segment| segment.leaf).collect()).collect()
    }

    #[test]
    fn co_4_a_pack_is_closed_once_it_is_larger_than_the_limit() {
        let packs = |bytes| leaves_of(&Packing::Bytes(bytes).packs(&[4, 2, 3, 6], 4));
        assert_eq!(packs(1), [[0], [1], [2], [3]]);
        assert_eq!(packs(8), [vec![0], vec![1, 2], vec![3]]);
        assert_eq!(packs(16), [[0, 1], [2, 3]]);
        assert_eq!(packs(17), [[0, 1], [2, 3]]);
        assert_eq!(packs(1000), [[0, 1, 2, 3]]);
    }

    #[test]
    fn xd_4_packs_have_one_size_and_the_last_takes_the_remainder() {
        let sizes = |count, lens: &[usize]| -> Vec<usize> {
            let packs = Packing::Count(count).packs(lens, 4);
            packs.iter().map(|pack| pack.iter().map(|segment| segment.elements.len()).sum()).collect()
        };
        assert_eq!(sizes(1, &[4, 2, 3, 6]), [15]);
        assert_eq!(sizes(2, &[4, 2, 3, 6]), [7, 8]);
        assert_eq!(sizes(4, &[4, 2, 3, 6]), [3, 3, 3, 6]);
        // Fewer elements than buckets: all of them are remainder.
        assert_eq!(sizes(5, &[1, 2]), [3]);
    }

    /// Returns numbers whose sum depends on the order.
    fn leaf(i: usize, replica: usize, len: usize, dtype: usize) -> Leaf {
        let number = |at: usize| {
            let scale = [1e-3, 1., 1e3][(at + replica) % 3];
            ((at * 7919 + replica * 104_729 + i * 31) % 1009) as f64 / 3. * scale
        };
        let numbers: Vec<f64> = (0..len).map(number).collect();
        let floats = HostTensor::vector(numbers.iter().map(|x| *x as f32).collect::<Vec<_>>());
        match dtype {
            0 => Leaf::Host(floats),
            1 => Leaf::Host(HostTensor::vector(numbers)),
            2 => Leaf::Host(HostTensor::vector(numbers.iter().map(|x| *x as i32).collect::<Vec<_>>())),
            _ => {
                let rows = HostTensor::vector((0..len as i64).collect::<Vec<_>>());
                Leaf::Slices(IndexedSlices::new(floats, rows, Some(vec![40])).unwrap())
            }
        }
    }

    proptest! {
        // CO-5: dtypes do not share buckets; sparse leaves are reduced alone.
        // INV-7
        #[test]
        fn packing_changes_no_bit(
            replicas in 1usize..6,
            shapes in prop::collection::vec((0usize..40, 0usize..4), 0..8),
            number in 0usize..200,
            count: bool,
            mean: bool,
        ) {
            let op = if mean { ReduceOp::Mean } else { ReduceOp::Sum };
            let packing = if count { Packing::Count(number % 9) } else { Packing::Bytes(number) };
            let lists: Vec<Vec<Leaf>> = (0..replicas)
                .map(|r| shapes.iter().enumerate().map(|(i, (len, dtype))| leaf(i, r, *len, *dtype)).collect())
                .collect();
            let views: Vec<&[Leaf]> = lists.iter().map(Vec::as_slice).collect();
            let packed = reduce_packed(op, &views, packing, &Alone)?;
            prop_assert_eq!(packed.len(), shapes.len());
            for (i, packed) in packed.iter().enumerate() {
                let parts: Vec<Leaf> = lists.iter().map(|list| list[i].clone()).collect();
                prop_assert_eq!(packed.to_host()?, Leaf::reduce(op, &parts)?.to_host()?);
            }
        }

        #[test]
        fn every_element_is_in_one_pack(lens in prop::collection::vec(0usize..30, 0..9), number in 0usize..50, count: bool) {
            let packing = if count { Packing::Count(number) } else { Packing::Bytes(number) };
            let packs = packing.packs(&lens, 4);
            prop_assert!(packs.iter().all(|pack| !pack.is_empty()));
            prop_assert!(!count || number == 0 || packs.len() <= number);
            let mut found: Vec<(usize, usize)> =
                packs.iter().flatten().flat_map(|s| s.elements.clone().map(|at| (s.leaf, at))).collect();
            let sorted = found.is_sorted();
            found.dedup();
            prop_assert!(sorted && found.len() == lens.iter().sum::<usize>());
        }
    }
}
