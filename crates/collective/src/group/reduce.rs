//! Reduces and gathers leaves over all replicas of all workers, in the one order of sums.

use super::Calling;
use crate::combined::tracked;
use crate::{Combined, Failure};
use bytes::Bytes;
use distribute_cluster::World;
use distribute_tensor::{DType, Folder, HostTensor, Leaf, Packing, ReduceOp, pack::reduce_packed, wire};
use std::ops::Range;

/// If each worker's leaves have at most this many bytes, they are sent to every worker, which folds them itself:
/// this takes fewer rounds.
const SMALL: usize = 64 << 10;

/// Ranges begin at multiples of this many elements, so that no two share a cache line.
const GRAIN: usize = 64;

/// What a worker tells the others about its leaves before it sends large data.
struct Opening {
    tracked: Vec<bool>,
    /// For each leaf, whether it is dense and of numbers on all replicas of this worker.
    dense: Vec<bool>,
    /// The leaves of its replicas, if they are small.
    leaves: Option<Bytes>,
}

impl Calling<'_> {
    /// Reduces each leaf over all replicas of all workers. `local` are the leaves of this worker's replicas.
    ///
    /// The result depends on values and ids alone: it is bit-equal to that of one process with all the replicas. Large dense
    /// leaves are reduced by reduce-scatter and all-gather: each worker folds a range of the elements and sends it to all.
    ///
    /// # Errors
    /// [`Failure`] on every worker.
    pub fn all_reduce(
        mut self,
        op: ReduceOp,
        packing: Packing,
        local: &[&[Leaf]],
        folder: &impl Folder,
    ) -> Result<Combined, Failure> {
        let openings = self.open(local)?;
        let tracked = any(&openings, |opening| &opening.tracked);
        let dense: Vec<bool> =
            (0..tracked.len()).map(|leaf| openings.iter().all(|opening| opening.dense[leaf])).collect();
        if openings.iter().any(|opening| opening.leaves.is_none()) {
            return Ok(Combined { leaves: self.by_ranges(op, local, &dense, folder)?, tracked });
        }
        let all = self.all_of(&openings, local)?;
        let all: Vec<&[Leaf]> = all.iter().map(Vec::as_slice).collect();
        Ok(Combined { leaves: reduce_packed(op, &all, packing, folder)?, tracked })
    }

    /// The leaves of all replicas of all workers, in the order of their ids, and for each leaf whether gradients flow
    /// through it on some replica.
    ///
    /// # Errors
    /// [`Failure`] on every worker.
    pub fn all_gather(mut self, local: &[&[Leaf]]) -> Result<(Vec<Vec<Leaf>>, Vec<bool>), Failure> {
        let openings = self.open(local)?;
        let tracked = any(&openings, |opening| &opening.tracked);
        if openings.iter().all(|opening| opening.leaves.is_some()) {
            return Ok((self.all_of(&openings, local)?, tracked));
        }
        let mine = Bytes::from(wire::encode(local.iter().flat_map(|leaves| leaves.iter()))?);
        let bodies = self.go_on("its data", |_| mine.clone())?;
        Ok((self.decode_all(&bodies, local)?, tracked))
    }

    /// The leaves of worker 0, with the kinds and devices of this worker's `mine`. Leaves of other workers are not sent.
    ///
    /// # Errors
    /// [`Failure`] on every worker.
    pub fn of_first(mut self, mine: &[Leaf]) -> Result<Vec<Leaf>, Failure> {
        let first = self.world().worker() == 0;
        let body = if first { Bytes::from(wire::encode(mine)?) } else { Bytes::new() };
        let bodies = self.records(body)?;
        if first {
            return Ok(mine.to_vec());
        }
        let mut leaves = wire::decode(bodies.first().map_or(&[][..], |body| body))?.into_iter();
        let beside = mine.iter().map(|mine| Ok(next(&mut leaves)?.beside(mine)?));
        let beside = beside.collect::<Result<_, Failure>>()?;
        at_end(leaves)?;
        Ok(beside)
    }

    /// The first round: exchanges openings.
    fn open(&mut self, local: &[&[Leaf]]) -> Result<Vec<Opening>, Failure> {
        let count = local.first().map_or(0, |leaves| leaves.len());
        let bytes: usize = local.iter().flat_map(|leaves| leaves.iter()).map(size).sum();
        let mine = Opening {
            tracked: tracked(local),
            dense: (0..count).map(|leaf| local.iter().all(|leaves| is_dense(&leaves[leaf]))).collect(),
            leaves: if bytes <= SMALL {
                Some(wire::encode(local.iter().flat_map(|leaves| leaves.iter()))?.into())
            } else {
                None
            },
        };
        let body = mine.encode();
        let bodies = self.begin(body)?;
        let me = self.world().worker();
        let mut mine = Some(mine);
        let opening = |(worker, body)| match mine.take_if(|_| worker == me) {
            Some(mine) => Ok(mine),
            None => Opening::decode(body, count),
        };
        bodies.into_iter().enumerate().map(opening).collect()
    }

    /// The leaves of all replicas, from openings that contain them.
    fn all_of(&self, openings: &[Opening], local: &[&[Leaf]]) -> Result<Vec<Vec<Leaf>>, Failure> {
        let bodies: Vec<Bytes> =
            openings.iter().map(|opening| opening.leaves.clone().unwrap_or_default()).collect();
        self.decode_all(&bodies, local)
    }

    fn decode_all(&self, bodies: &[Bytes], local: &[&[Leaf]]) -> Result<Vec<Vec<Leaf>>, Failure> {
        let mut all = Vec::with_capacity(self.world().num_replicas_in_sync());
        for (worker, body) in bodies.iter().enumerate() {
            if worker == self.world().worker() {
                all.extend(local.iter().map(|leaves| leaves.to_vec()));
                continue;
            }
            let mut leaves = wire::decode(body)?.into_iter();
            for mine in local {
                let theirs = mine.iter().map(|mine| Ok(next(&mut leaves)?.beside(mine)?));
                all.push(theirs.collect::<Result<_, Failure>>()?);
            }
            at_end(leaves)?;
        }
        Ok(all)
    }

    /// Each worker folds a range of every dense leaf; other leaves are sent whole to all workers.
    fn by_ranges(
        &mut self,
        op: ReduceOp,
        local: &[&[Leaf]],
        dense: &[bool],
        folder: &impl Folder,
    ) -> Result<Vec<Leaf>, Failure> {
        let world = self.world();
        let parts: Vec<Option<Vec<Leaf>>> = (0..dense.len())
            .map(|leaf| {
                let contribution = dense[leaf].then(|| Contribution::new(op, world, local, leaf));
                contribution.map(|contribution| contribution.leaves(folder)).transpose()
            })
            .collect::<Result<_, _>>()?;
        let mine = |worker: usize| -> Result<Vec<Leaf>, Failure> {
            let mut to = Vec::new();
            for (leaf, parts) in parts.iter().enumerate() {
                match parts {
                    Some(parts) => {
                        for part in parts {
                            let range = range(part.dims()[0], world.workers(), worker);
                            to.push(part.narrow(0, range.start, range.len())?);
                        }
                    }
                    None => to.extend(column(local, leaf).into_iter().cloned()),
                }
            }
            Ok(to)
        };
        let mut bodies = Vec::with_capacity(world.workers());
        for worker in 0..world.workers() {
            let is_me = worker == world.worker();
            bodies.push(if is_me { Bytes::new() } else { wire::encode(&mine(worker)?)?.into() });
        }
        let come = self.go_on("its ranges", |worker| bodies[worker].clone())?;
        let mut theirs = Vec::with_capacity(world.workers());
        for (worker, body) in come.iter().enumerate() {
            let leaves = if worker == world.worker() { mine(worker)? } else { wire::decode(body)? };
            theirs.push(leaves.into_iter());
        }
        let (mut folded, mut reduced) = (Vec::new(), Vec::with_capacity(dense.len()));
        for (leaf, parts) in parts.iter().enumerate() {
            let of_each = parts.as_ref().map_or(local.len(), Vec::len);
            let like = &local[0][leaf];
            let mut all = Vec::with_capacity(of_each * world.workers());
            for worker in &mut theirs {
                for _ in 0..of_each {
                    all.push(next(worker)?.beside(like)?);
                }
            }
            match parts {
                Some(_) => folded.push(Contribution::new(op, world, local, leaf).fold(&all, folder)?),
                None => reduced.push((leaf, Leaf::reduce_with(op, &all, folder)?)),
            }
        }
        theirs.into_iter().try_for_each(at_end)?;
        let body = Bytes::from(wire::encode(&folded)?);
        let come = self.go_on("its sums", |_| body.clone())?;
        let mut ranges = vec![Vec::with_capacity(world.workers()); folded.len()];
        for (worker, body) in come.iter().enumerate() {
            let sums = if worker == world.worker() { folded.clone() } else { wire::decode(body)? };
            let mut sums = sums.into_iter();
            for range in &mut ranges {
                range.push(next(&mut sums)?.to_host()?);
            }
            at_end(sums)?;
        }
        let mut ranges = ranges.into_iter();
        let mut reduced = reduced.into_iter().peekable();
        let whole = |leaf: usize| -> Result<Leaf, Failure> {
            if let Some((_, whole)) = reduced.next_if(|(other, _)| *other == leaf) {
                return Ok(whole);
            }
            let parts = ranges.next().unwrap_or_default();
            let like = &local[0][leaf];
            let joined = HostTensor::concat(&parts.iter().collect::<Vec<_>>(), 0)?;
            Ok(Leaf::Host(joined.reshape(like.dims())?).beside(like)?)
        };
        (0..dense.len()).map(whole).collect()
    }
}

/// The next of the leaves that another worker has sent.
fn next(leaves: &mut impl Iterator<Item = Leaf>) -> Result<Leaf, Failure> {
    leaves.next().ok_or_else(|| Failure::Record("fewer leaves than the call has".into()))
}

/// Refuses more leaves than the call has.
fn at_end(mut leaves: impl Iterator<Item = Leaf>) -> Result<(), Failure> {
    match leaves.next() {
        None => Ok(()),
        Some(_) => Err(Failure::Record("more leaves than the call has".into())),
    }
}

/// What a worker contributes to the sum of one dense leaf: its replicas' leaves, or their sum where that changes no bit.
struct Contribution<'a> {
    op: ReduceOp,
    world: World,
    parts: Vec<&'a Leaf>,
}

impl<'a> Contribution<'a> {
    fn new(op: ReduceOp, world: World, local: &[&'a [Leaf]], leaf: usize) -> Self {
        Self { op, world, parts: column(local, leaf) }
    }

    /// Whether this worker's leaves may be summed first. Replicas are summed in the order of a balanced binary tree over
    /// their ids, in which each worker's own are a subtree if their number is a power of two. A sum of integers may wrap,
    /// so it is of no use for a mean.
    fn is_branch(&self) -> bool {
        let floats = self.parts[0].dtype().is_ok_and(|dtype| dtype.mean() == Some(dtype));
        self.world.replicas().is_power_of_two() && (self.op == ReduceOp::Sum || floats)
    }

    /// The leaves to send, flattened.
    fn leaves(&self, folder: &impl Folder) -> Result<Vec<Leaf>, Failure> {
        let flat = |leaf: &Leaf| leaf.reshape(&[leaf.dims().iter().product()]);
        if self.is_branch() {
            return Ok(vec![flat(&Leaf::reduce_with(ReduceOp::Sum, &self.parts, folder)?)?]);
        }
        Ok(self.parts.iter().map(|part| flat(part)).collect::<Result<_, _>>()?)
    }

    /// The reduction over the contributions of all workers, in the order of workers.
    fn fold(&self, all: &[Leaf], folder: &impl Folder) -> Result<Leaf, Failure> {
        Ok(match (self.is_branch(), self.op) {
            (true, ReduceOp::Mean) => {
                let sum = Leaf::reduce_with(ReduceOp::Sum, all, folder)?;
                sum.divide(self.world.num_replicas_in_sync() as f64)?
            }
            _ => Leaf::reduce_with(self.op, all, folder)?,
        })
    }
}

impl Opening {
    fn encode(&self) -> Bytes {
        let flags = self.tracked.iter().zip(&self.dense);
        let mut bytes: Vec<u8> =
            flags.map(|(tracked, dense)| u8::from(*tracked) | u8::from(*dense) << 1).collect();
        bytes.push(u8::from(self.leaves.is_some()));
        bytes.extend_from_slice(self.leaves.as_deref().unwrap_or_default());
        bytes.into()
    }

    /// Decodes the opening of `count` leaves.
    fn decode(mut bytes: Bytes, count: usize) -> Result<Self, Failure> {
        if bytes.len() <= count {
            return Err(distribute_tensor::Error::Bytes {
                operation: "all_reduce",
                offset: bytes.len(),
                what: "an opening that ends too early",
            }
            .into());
        }
        let flags = bytes.split_to(count);
        let has_leaves = bytes.split_to(1)[0] == 1;
        Ok(Self {
            tracked: flags.iter().map(|flag| flag & 1 > 0).collect(),
            dense: flags.iter().map(|flag| flag & 2 > 0).collect(),
            leaves: has_leaves.then_some(bytes),
        })
    }
}

/// For each leaf, whether a flag of the openings is set on some worker.
fn any(openings: &[Opening], of: impl Fn(&Opening) -> &Vec<bool>) -> Vec<bool> {
    let count = openings.first().map_or(0, |opening| of(opening).len());
    (0..count).map(|leaf| openings.iter().any(|opening| of(opening)[leaf])).collect()
}

/// One leaf of each replica.
fn column<'a>(local: &[&'a [Leaf]], leaf: usize) -> Vec<&'a Leaf> {
    local.iter().map(|leaves| &leaves[leaf]).collect()
}

/// The bytes of a leaf's values; an estimate for strings.
fn size(leaf: &Leaf) -> usize {
    let width = leaf.dtype().ok().and_then(DType::bytes).unwrap_or(16);
    leaf.dims().iter().product::<usize>().saturating_mul(width)
}

fn is_dense(leaf: &Leaf) -> bool {
    !matches!(leaf, Leaf::Slices(_)) && leaf.dtype().is_ok_and(|dtype| dtype.mean().is_some())
}

/// Which of `len` elements a worker folds: a function of sizes alone.
fn range(len: usize, workers: usize, worker: usize) -> Range<usize> {
    let each = len.div_ceil(workers.max(1)).next_multiple_of(GRAIN);
    let start = each.saturating_mul(worker).min(len);
    start..start.saturating_add(each).min(len)
}
