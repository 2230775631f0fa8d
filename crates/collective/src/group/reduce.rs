//! Reducing and gathering leaves over all replicas of all workers. Sums are computed in the order of `Order::Exact`.

// - INV-27: means of running statistics, rows that are written and values per worker are gathered first, in the
//   order of ids. Tests: `collective/tests/it/conformance/mod.rs`, `multi_worker/cross.rs`,
//   `multi_worker/collectives.rs`, `multi_worker/training.rs`.

use super::schedule::range;
use super::{GroupCall, raw};
use crate::combined::tracked;
use crate::{Combined, Failure};
use bytes::Bytes;
use distribute_cluster::World;
use distribute_tensor::{
    DType, Folder, HostTensor, Leaf, Packing, ReduceOp, flat, pack::reduce_packed, wire,
};

/// The maximum size in bytes of leaves that every worker reduces completely. Sending them to every worker requires
/// fewer rounds.
const SMALL: usize = 64 << 10;

/// The description of a worker's leaves, exchanged before large data.
struct Opening {
    /// The number of contributions of this worker: one for each of its replicas, or a single one.
    parts: usize,
    tracked: Vec<bool>,
    /// Whether each leaf is dense and numeric on all replicas of this worker.
    dense: Vec<bool>,
    /// The encoded leaves of the worker's replicas; `None` if they are too large.
    leaves: Option<Bytes>,
}

impl GroupCall<'_> {
    /// Reduces each leaf over all replicas of all workers. `local` contains the leaves of each of this worker's
    /// replicas.
    ///
    /// The result depends only on values and ids: it is bit-identical to that of a single process with all the
    /// replicas. Large dense leaves are reduced by reduce-scatter and all-gather: each worker reduces a range of the
    /// elements and sends the result to all others.
    ///
    /// # Errors
    /// - [`Failure::Blame`], on every worker: workers make different calls, or a worker has exited, is lost or times
    ///   out.
    /// - Other failures, on this worker: leaves cannot be combined, or a message of another worker is malformed. The
    ///   other workers then get a [`Failure::Blame`] in this call or in their next one.
    pub fn all_reduce(
        mut self,
        op: ReduceOp,
        packing: Packing,
        local: &[&[Leaf]],
        folder: &impl Folder,
    ) -> Result<Combined, Failure> {
        let reduced = self.reduce(op, packing, local, folder);
        self.abort_on_error(reduced)
    }

    fn reduce(
        &mut self,
        op: ReduceOp,
        packing: Packing,
        local: &[&[Leaf]],
        folder: &impl Folder,
    ) -> Result<Combined, Failure> {
        let openings = self.exchange_openings(local)?;
        let tracked = any(&openings, |opening| &opening.tracked);
        let dense: Vec<bool> =
            (0..tracked.len()).map(|leaf| openings.iter().all(|opening| opening.dense[leaf])).collect();
        if openings.iter().any(|opening| opening.leaves.is_none()) {
            return Ok(Combined {
                leaves: self.reduce_by_ranges(op, local, &openings, &dense, folder)?,
                tracked,
            });
        }
        let all = self.all_leaves(&openings, local)?;
        let all: Vec<&[Leaf]> = all.iter().map(Vec::as_slice).collect();
        Ok(Combined { leaves: reduce_packed(op, &all, packing, folder)?, tracked })
    }

    /// Returns the leaves of all replicas of all workers, in the order of their ids, and for each leaf whether
    /// gradients flow through it on some replica.
    ///
    /// # Errors
    /// - [`Failure::Blame`], on every worker: workers make different calls, or a worker has exited, is lost or times
    ///   out.
    /// - Other failures, on this worker: leaves cannot be combined, or a message of another worker is malformed. The
    ///   other workers then get a [`Failure::Blame`] in this call or in their next one.
    pub fn all_gather(mut self, local: &[&[Leaf]]) -> Result<(Vec<Vec<Leaf>>, Vec<bool>), Failure> {
        let gathered = self.gather(local);
        self.abort_on_error(gathered)
    }

    fn gather(&mut self, local: &[&[Leaf]]) -> Result<(Vec<Vec<Leaf>>, Vec<bool>), Failure> {
        let openings = self.exchange_openings(local)?;
        let tracked = any(&openings, |opening| &opening.tracked);
        if openings.iter().all(|opening| opening.leaves.is_some()) {
            return Ok((self.all_leaves(&openings, local)?, tracked));
        }
        let mine = Bytes::from(wire::encode(local.iter().flat_map(|leaves| leaves.iter()))?);
        let bodies = self.next_round("its data", |_| mine.clone())?;
        Ok((self.decode_all(&openings, &bodies, local)?, tracked))
    }

    /// Returns the leaves of worker 0 on all workers. Their kinds and devices are those of this worker's leaves `mine`.
    /// Leaves of other workers are not sent.
    ///
    /// # Errors
    /// - [`Failure::Blame`], on every worker: workers make different calls, or a worker has exited, is lost or times
    ///   out.
    /// - Other failures, on this worker: leaves cannot be combined, or a message of another worker is malformed. The
    ///   other workers then get a [`Failure::Blame`] in this call or in their next one.
    pub fn broadcast(mut self, mine: &[Leaf]) -> Result<Vec<Leaf>, Failure> {
        let first = self.broadcast_leaves(mine);
        self.abort_on_error(first)
    }

    fn broadcast_leaves(&mut self, mine: &[Leaf]) -> Result<Vec<Leaf>, Failure> {
        let first = self.world().worker() == 0;
        let body = if first { Bytes::from(wire::encode(mine)?) } else { Bytes::new() };
        let bodies = self.all_gather_bytes(body)?;
        if first {
            return Ok(mine.to_vec());
        }
        let mut leaves = wire::decode(bodies.first().map_or(&[][..], |body| body))?.into_iter();
        let beside = mine.iter().map(|mine| Ok(next_leaf(&mut leaves)?.to_device_of(mine)?));
        let beside = beside.collect::<Result<_, Failure>>()?;
        require_end(leaves)?;
        Ok(beside)
    }

    /// Exchanges the openings of all workers, in the first round of the call.
    ///
    /// # Errors
    /// Returns a [`Failure`] if the round fails, or if an opening is malformed.
    fn exchange_openings(&mut self, local: &[&[Leaf]]) -> Result<Vec<Opening>, Failure> {
        let count = local.first().map_or(0, |leaves| leaves.len());
        let bytes: usize = local.iter().flat_map(|leaves| leaves.iter()).map(size).sum();
        let mine = Opening {
            parts: local.len(),
            tracked: tracked(local),
            dense: (0..count).map(|leaf| local.iter().all(|leaves| is_dense(&leaves[leaf]))).collect(),
            leaves: if bytes <= SMALL {
                Some(wire::encode(local.iter().flat_map(|leaves| leaves.iter()))?.into())
            } else {
                None
            },
        };
        let body = mine.encode();
        let bodies = self.first_round(body)?;
        let (world, me) = (self.world(), self.world().worker());
        let mut mine = Some(mine);
        let opening = |(worker, body)| {
            if let Some(mine) = mine.take_if(|_| worker == me) {
                return Ok(mine);
            }
            let theirs = Opening::decode(body, count)?;
            let parts = theirs.parts;
            // Either each replica contributes, or each worker.
            let fits = parts == local.len() || parts == world.replicas_of(worker).len();
            if fits {
                Ok(theirs)
            } else {
                Err(Failure::Record(format!("{parts} contributions of worker {worker}, {world}")))
            }
        };
        bodies.into_iter().enumerate().map(opening).collect()
    }

    /// Returns the leaves of all replicas, decoded from openings that all contain them. This worker's own leaves are
    /// `local`, which need no decoding.
    ///
    /// # Errors
    /// Returns a [`Failure`] if another worker's leaves cannot be decoded, or are more or fewer than the local ones.
    fn all_leaves(&self, openings: &[Opening], local: &[&[Leaf]]) -> Result<Vec<Vec<Leaf>>, Failure> {
        let bodies: Vec<Bytes> =
            openings.iter().map(|opening| opening.leaves.clone().unwrap_or_default()).collect();
        self.decode_all(openings, &bodies, local)
    }

    fn decode_all(
        &self,
        openings: &[Opening],
        bodies: &[Bytes],
        local: &[&[Leaf]],
    ) -> Result<Vec<Vec<Leaf>>, Failure> {
        let mut all = Vec::with_capacity(self.world().num_replicas_in_sync());
        for (worker, (opening, body)) in openings.iter().zip(bodies).enumerate() {
            if worker == self.world().worker() {
                all.extend(local.iter().map(|leaves| leaves.to_vec()));
                continue;
            }
            let mut leaves = wire::decode(body)?.into_iter();
            for part in 0..opening.parts {
                let mine = nearest(local, part);
                let theirs = mine.iter().map(|mine| Ok(next_leaf(&mut leaves)?.to_device_of(mine)?));
                all.push(theirs.collect::<Result<_, Failure>>()?);
            }
            require_end(leaves)?;
        }
        Ok(all)
    }

    /// Reduces leaves by ranges: each worker reduces a range of the dense leaves. All other leaves are sent completely
    /// to all workers. `dense` contains, for each leaf, whether it is dense on all workers.
    ///
    /// # Errors
    /// Returns a [`Failure`] if a round fails, if leaves cannot be combined, or if a message is malformed.
    fn reduce_by_ranges(
        &mut self,
        op: ReduceOp,
        local: &[&[Leaf]],
        openings: &[Opening],
        dense: &[bool],
        folder: &impl Folder,
    ) -> Result<Vec<Leaf>, Failure> {
        let world = self.world();
        let packs = Pack::all(op, world, local, dense)?;
        let mine =
            packs.iter().map(|pack| pack.contributions(local, folder)).collect::<Result<Vec<_>, _>>()?;
        let others: Vec<usize> = (0..dense.len()).filter(|leaf| !dense[*leaf]).collect();
        let columns = others.iter().flat_map(|leaf| column(local, *leaf));
        let rest = Bytes::from(if others.is_empty() { Vec::new() } else { wire::encode(columns)? });
        let buffers = self.buffers().clone();

        let come = self.next_round("its ranges", |worker| {
            let of = |(pack, parts): (&Pack, &Vec<HostTensor>)| {
                let range = range(pack.len, world.workers(), worker);
                parts.iter().map(move |part| raw::bytes(part, range.clone())).collect::<Vec<_>>()
            };
            if worker == world.worker() {
                return Bytes::new();
            }
            buffers.concat(packs.iter().zip(&mine).flat_map(of).chain([rest.clone()]))
        })?;
        // For each worker, its contribution to this worker's range of each pack, and its other leaves.
        let mut theirs = Vec::with_capacity(world.workers());
        let mut whole = Vec::with_capacity(world.workers());
        for (worker, mut body) in come.into_iter().enumerate() {
            let mut parts = Vec::with_capacity(packs.len());
            for (pack, mine) in packs.iter().zip(&mine) {
                let range = range(pack.len, world.workers(), world.worker());
                let part = |mine: &HostTensor| Ok(mine.narrow(0, range.start, range.len())?);
                parts.push(if worker == world.worker() {
                    mine.iter().map(part).collect::<Result<Vec<_>, Failure>>()?
                } else {
                    let theirs = if pack.is_branch { 1 } else { openings[worker].parts };
                    let take = |_| raw::take(&mut body, pack.sent, range.len());
                    (0..theirs).map(take).collect::<Result<Vec<_>, Failure>>()?
                });
            }
            theirs.push(parts.into_iter());
            let is_me = worker == world.worker() || others.is_empty();
            whole.push(if is_me { Vec::new() } else { wire::decode(&body)? }.into_iter());
            if others.is_empty() && !body.is_empty() {
                return Err(Failure::Record("more data than the call has".into()));
            }
        }
        let mut sums = Vec::with_capacity(packs.len());
        for pack in &packs {
            let all = theirs.iter_mut().filter_map(Iterator::next).flatten().map(Leaf::Host);
            sums.push(pack.fold(op, world, &all.collect::<Vec<_>>(), folder)?);
        }
        let mut reduced: Vec<Option<Leaf>> = vec![None; dense.len()];
        for leaf in others {
            let mut all = Vec::with_capacity(world.num_replicas_in_sync());
            for (worker, theirs) in whole.iter_mut().enumerate() {
                if worker == world.worker() {
                    all.extend(column(local, leaf).into_iter().cloned());
                    continue;
                }
                for _ in 0..openings[worker].parts {
                    all.push(next_leaf(theirs)?.to_device_of(&local[0][leaf])?);
                }
            }
            reduced[leaf] = Some(Leaf::reduce_with(op, &all, folder)?);
        }
        whole.into_iter().try_for_each(require_end)?;

        let body = buffers.concat(sums.iter().map(|sum| raw::bytes(sum, 0..sum.len())));
        let come = self.next_round("its sums", |_| body.clone())?;
        let mut pieces = vec![Vec::with_capacity(world.workers()); packs.len()];
        for (worker, mut body) in come.into_iter().enumerate() {
            for ((pack, sum), pieces) in packs.iter().zip(&sums).zip(&mut pieces) {
                let range = range(pack.len, world.workers(), worker);
                let is_me = worker == world.worker();
                pieces.push(if is_me {
                    sum.clone()
                } else {
                    raw::take(&mut body, sum.dtype(), range.len())?
                });
            }
            if !body.is_empty() {
                return Err(Failure::Record("more sums than the call has".into()));
            }
        }
        for (pack, pieces) in packs.iter().zip(pieces) {
            let like: Vec<&Leaf> = pack.leaves.iter().map(|leaf| &local[0][*leaf]).collect();
            for (leaf, sum) in pack.leaves.iter().zip(flat::split(&pieces, &like)?) {
                reduced[*leaf] = Some(sum);
            }
        }
        let all = reduced.into_iter().collect::<Option<Vec<_>>>();
        all.ok_or_else(|| Failure::Record("a leaf that is in no pack".into()))
    }
}

/// Returns the local leaves whose devices are used for contribution `part` of another worker.
fn nearest<'a>(local: &[&'a [Leaf]], part: usize) -> &'a [Leaf] {
    local.get(part).or(local.first()).copied().unwrap_or_default()
}

/// Returns the next leaf that another worker has sent, or an error if there are no more.
fn next_leaf(leaves: &mut impl Iterator<Item = Leaf>) -> Result<Leaf, Failure> {
    leaves.next().ok_or_else(|| Failure::Record("fewer leaves than the call has".into()))
}

/// Returns an error if another worker has sent more leaves than the call contains.
fn require_end(mut leaves: impl Iterator<Item = Leaf>) -> Result<(), Failure> {
    match leaves.next() {
        None => Ok(()),
        Some(_) => Err(Failure::Record("more leaves than the call has".into())),
    }
}

/// The dense leaves of one dtype, which are reduced together.
struct Pack {
    leaves: Vec<usize>,
    /// The dtype of the leaves.
    pub dtype: DType,
    /// The total number of elements of the leaves.
    pub len: usize,
    /// Whether each worker first sums the leaves of its own replicas. Replicas are summed in the order of a balanced
    /// binary tree over their ids, in which each worker's replicas are a subtree if their number is a power of two. A
    /// mean of integers is never computed in this way, because a worker's sum may wrap.
    is_branch: bool,
    /// The dtype of a worker's contribution. A partial sum has the dtype in which it is computed.
    sent: DType,
}

impl Pack {
    fn all(op: ReduceOp, world: World, local: &[&[Leaf]], dense: &[bool]) -> Result<Vec<Self>, Failure> {
        let mut packs: Vec<Self> = Vec::new();
        for leaf in (0..dense.len()).filter(|leaf| dense[*leaf]) {
            let first = &local[0][leaf];
            let (dtype, len) = (first.dtype()?, first.dims().iter().product::<usize>());
            match packs.iter_mut().find(|pack| pack.dtype == dtype) {
                Some(pack) => {
                    pack.leaves.push(leaf);
                    pack.len += len;
                }
                None => {
                    let floats = dtype.mean() == Some(dtype);
                    let is_branch = (world.replicas_of_each())
                        .is_some_and(|replicas| replicas > 1 && replicas.is_power_of_two())
                        && (op == ReduceOp::Sum || floats);
                    let sent = if is_branch { dtype.of_sum(op) } else { dtype };
                    packs.push(Self { leaves: vec![leaf], dtype, len, is_branch, sent });
                }
            }
        }
        Ok(packs)
    }

    /// Returns the contributions of this worker: the leaves of its replicas, or only their sum if that does not change
    /// the result.
    fn contributions(&self, local: &[&[Leaf]], folder: &impl Folder) -> Result<Vec<HostTensor>, Failure> {
        if self.is_branch {
            let sum = |leaf: &usize| {
                let summands = Leaf::summands(ReduceOp::Sum, &column(local, *leaf))?;
                Leaf::reduce_with(ReduceOp::Sum, &summands, folder)
            };
            let sums = self.leaves.iter().map(sum).collect::<distribute_tensor::Result<Vec<_>>>()?;
            return Ok(vec![flat::join(&sums.iter().collect::<Vec<_>>())?]);
        }
        let of =
            |leaves: &&[Leaf]| flat::join(&self.leaves.iter().map(|leaf| &leaves[*leaf]).collect::<Vec<_>>());
        Ok(local.iter().map(of).collect::<Result<_, _>>()?)
    }

    /// Returns the reduction over the contributions of all workers, in the order of their ranks.
    fn fold(
        &self,
        op: ReduceOp,
        world: World,
        all: &[Leaf],
        folder: &impl Folder,
    ) -> Result<HostTensor, Failure> {
        let reduced = if self.is_branch {
            let sum = Leaf::reduce_with(ReduceOp::Sum, all, folder)?;
            sum.reduction(op, world.num_replicas_in_sync(), self.dtype)?
        } else {
            Leaf::reduce_with(op, all, folder)?
        };
        Ok(reduced.to_host()?)
    }
}

impl Opening {
    fn encode(&self) -> Bytes {
        let flags = self.tracked.iter().zip(&self.dense);
        let mut bytes: Vec<u8> =
            flags.map(|(tracked, dense)| u8::from(*tracked) | u8::from(*dense) << 1).collect();
        bytes.push(u8::from(self.leaves.is_some()));
        bytes.extend_from_slice(&u32::try_from(self.parts).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(self.leaves.as_deref().unwrap_or_default());
        bytes.into()
    }

    /// Decodes an opening that describes `count` leaves. Returns an error if the bytes are too short for this.
    fn decode(mut bytes: Bytes, count: usize) -> Result<Self, Failure> {
        if bytes.len() < count + 1 + size_of::<u32>() {
            return Err(distribute_tensor::Error::Bytes {
                operation: "all_reduce",
                offset: bytes.len(),
                what: "a truncated opening",
            }
            .into());
        }
        let flags = bytes.split_to(count);
        let has_leaves = bytes.split_to(1)[0] == 1;
        let parts =
            bytes.split_to(size_of::<u32>()).iter().rev().fold(0, |all, byte| all << 8 | usize::from(*byte));
        Ok(Self {
            parts,
            tracked: flags.iter().map(|flag| flag & 1 > 0).collect(),
            dense: flags.iter().map(|flag| flag & 2 > 0).collect(),
            leaves: has_leaves.then_some(bytes),
        })
    }
}

/// Returns, for each leaf, whether any worker's opening has set the flag that `of` selects.
fn any(openings: &[Opening], of: impl Fn(&Opening) -> &Vec<bool>) -> Vec<bool> {
    let count = openings.first().map_or(0, |opening| of(opening).len());
    (0..count).map(|leaf| openings.iter().any(|opening| of(opening)[leaf])).collect()
}

/// Returns the leaf with index `leaf` of each replica.
fn column<'a>(local: &[&'a [Leaf]], leaf: usize) -> Vec<&'a Leaf> {
    local.iter().map(|leaves| &leaves[leaf]).collect()
}

/// Returns the size of a leaf's values in bytes. For strings, it is an estimate.
fn size(leaf: &Leaf) -> usize {
    let width = leaf.dtype().ok().and_then(DType::bytes).unwrap_or(16);
    leaf.dims().iter().product::<usize>().saturating_mul(width)
}

fn is_dense(leaf: &Leaf) -> bool {
    !matches!(leaf, Leaf::Slices(_)) && leaf.dtype().is_ok_and(|dtype| dtype.mean().is_some())
}
