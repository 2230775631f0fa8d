//! The exchange of a step's gradients between the workers of a group.
//!
//! Dense gradients are exchanged in packs. There is a set of packs for each replica or, if the total remains
//! bit-identical, for the sum over the replicas of each worker. If all replicas have sent their packs before the
//! exchange of headers, the packs are only received here. Otherwise all packs are sent here.
//!
//! | workers | exchange | sum |
//! |---|---|---|
//! | 2 | each sends its packs to the other | in the pass that updates the variables |
//! | more than 2 | each receives its range of all packs, and sends the sum of the range to all | before that pass |
//! | any number, with a sharded state | each receives the elements of all packs that it updates | in that pass |
//!
//! Gradients by row are sent without being summed first: to all workers or, if the workers store the table together, to
//! the owners of the rows.
//!
//! Gradients with error feedback are exchanged first, by [`compressed`]. Other gradients of single replicas, and sums,
//! are sent in the type of the strategy's [`Wire`]. They are rounded on all workers, whether they are sent or not. Sums
//! over the replicas of a worker are not rounded, because their number depends on the world.

// - INV-7: sums over the replicas of a worker are not rounded. Test: `multi_worker/compression.rs`.
// - INV-108: a gradient that is alone in its pack is not copied, and received ranges are freed before sums are
//   exchanged, which are copied a few MiB at a time. Test: `clusters/memory.rs`.
// - INV-35: enforced here. Tests: `optimizer/src/reduce/workers/tests.rs`,
//   `collective/tests/it/conformance/mod.rs`.

use crate::header::{GradientKind, StepHeader};
use crate::parameters::{Parameters, sums_locally_first};
use crate::reduce::operands::{Operands, Summed};
use crate::reduce::range::Rounding;
use crate::reduce::{self, Weighted, compressed, routed, row_records};
use crate::sync::Threads;
use bytes::Bytes;
use candle_core::DType;
use distribute_base::internal::{
    Dense, Layout, Number, Pack, PackCoding, PackWriter, PackedGradients, ReplicaGradient,
};
use distribute_base::{Error, Result};
use distribute_cluster::World;
use distribute_collective::Failure;
use distribute_collective::group::early::early_range;
use distribute_collective::group::{Buffers, GroupCall, numbers};
use distribute_core::internal::failure;
use distribute_core::strategy::Wire;
use distribute_tensor::kernel::fold_scaled;
use std::borrow::Cow;
use std::sync::Arc;

/// The maximum number of bytes of sums that a worker sends at once. They are copied out of the messages, which are then
/// freed, so that sums of any size need little memory besides their own. It is small in tests, so that their sums take
/// several rounds.
const SUMS_AT_ONCE: usize = if cfg!(test) { 16 << 10 } else { 8 << 20 };

/// The size in bytes from which the memory for sums is not kept for the next step. Allocating and clearing memory of
/// this size takes a small fraction of the time in which the sums are exchanged.
const MAX_KEPT: usize = if cfg!(test) { 64 << 10 } else { 32 << 20 };

/// The exchange of a step's gradients with the other workers.
struct Exchange<'a, 'b> {
    parameters: &'b Parameters,
    /// The headers of all replicas of all workers.
    headers: &'a [&'a StepHeader],
    /// The weights of the gradients of all replicas.
    weights: &'a [f64],
    /// The gradients of this worker's replicas.
    mine: &'a [Weighted<'b>],
    threads: &'a Threads<'a>,
}

/// Sends the gradients of this worker's replicas to the other workers. Returns the gradients that must be added up.
///
/// # Errors
/// - The same error on all workers: a worker disconnects, times out or fails.
/// - An error on this worker only: its own gradients cannot be read.
pub(crate) fn exchange<'b>(
    calling: &mut GroupCall<'_>,
    parameters: &'b Parameters,
    headers: &[&StepHeader],
    weights: &[f64],
    mine: &[Weighted<'b>],
    threads: &Threads<'_>,
) -> Result<Operands<'b>> {
    let rounding =
        Rounding { summands: wire_of_summands(parameters, calling.world()), sum: parameters.wire() };
    let all = Exchange { parameters, headers, weights, mine, threads }.summed(calling)?;
    let all = Operands::from_summands(parameters, all.into_iter(), headers.len())?.rounded(rounding);
    Ok(all.restrict_to(parameters.partition.as_deref()))
}

/// A term of the sum: its weight, and its packed gradients.
type Packs = (f64, Arc<PackedGradients>);

impl<'b> Exchange<'_, 'b> {
    /// Collects the gradients that are added up for each variable.
    fn summed(&self, calling: &mut GroupCall<'_>) -> Result<Vec<Summed<'b>>> {
        let Self { parameters, headers, .. } = self;
        let mut kinds = StepHeader::kinds_of_sums(headers);
        // These have been exchanged before.
        let before = compressed::variables(parameters, &kinds);
        before.into_iter().for_each(|number| kinds[number] = GradientKind::Missing);
        let dense: Vec<bool> = kinds.iter().map(|kind| *kind == GradientKind::Dense).collect();
        let rows: Vec<usize> =
            (0..kinds.len()).filter(|number| kinds[*number] == GradientKind::Rows).collect();
        let order = headers.first().and_then(|header| header.order.as_deref());
        let layout = parameters.buckets.layout(&dense, order);
        let mine = self.packs(&layout, calling.world(), calling.buffers())?;
        let mut summed: Vec<Summed<'b>> = kinds.iter().map(|_| Vec::new()).collect();
        let (routed, rows): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|number| parameters.owners[*number].is_some());
        if !rows.is_empty() {
            self.exchange_rows(calling, &rows, &mut summed)?;
        }
        if !routed.is_empty() {
            routed::exchange(calling, parameters, &routed, self.mine, self.weights, &mut summed)?;
        }
        if layout.packs().is_empty() {
            return Ok(summed);
        }
        let (partition, world) = (parameters.partition.as_deref(), calling.world());
        let all = match partition {
            Some(_) => self.exchange_ranges(calling, &layout, &mine)?,
            None => self.exchange_packs(calling, &layout, &mine)?,
        };
        // The pack of a single replica lacks the variables for which the replica has no gradient.
        let of_replicas = all.len() == headers.len() && !sums_locally_first(world);
        for (at, (weight, packs)) in all.into_iter().enumerate() {
            // This worker's replicas have complete gradients. The others have sent only the elements that this worker
            // updates.
            let whole = partition.filter(|_| mine.iter().any(|mine| Arc::ptr_eq(mine, &packs)));
            for number in (0..kinds.len()).filter(|number| dense[*number]) {
                let is_there = !of_replicas || headers[at].kinds[number] != GradientKind::Missing;
                // Zeros for missing gradients would cover all elements. The pack has zeros as well.
                let is_there = is_there || partition.is_some() && headers.len() > 2;
                let gradient = || {
                    let range = whole.map(|partition| partition.own_range(number));
                    Cow::Owned(ReplicaGradient::Dense(Dense::Packed { packs: packs.clone(), number, range }))
                };
                summed[number].push((weight, is_there.then(gradient)));
            }
        }
        Ok(summed)
    }

    /// Returns the packs of this worker: one set for the sum of its replicas, or one set for each replica.
    fn packs(
        &self,
        layout: &Arc<Layout>,
        world: World,
        buffers: &Buffers,
    ) -> Result<Vec<Arc<PackedGradients>>> {
        let Self { parameters, mine, .. } = self;
        if layout.packs().is_empty() {
            return Ok(Vec::new());
        }
        if !sums_locally_first(world) {
            return mine
                .iter()
                .map(|(_, gradients)| packed(layout, gradients, parameters, buffers))
                .collect();
        }
        let dense = |(_, gradients): &Weighted<'_>| {
            let all = gradients.iter().zip(&parameters.variables).enumerate();
            all.map(|(number, (gradient, (_, variable)))| match gradient {
                Some(gradient) if layout.has(number) => Ok(Some(gradient.to_dense(variable)?)),
                _ => Ok(None),
            })
            .collect::<Result<Vec<_>>>()
        };
        let all = mine.iter().map(dense).collect::<Result<Vec<_>>>()?;
        let all: Vec<_> = mine.iter().zip(&all).map(|((weight, _), all)| (*weight, all.as_slice())).collect();
        let rounding = Rounding { summands: parameters.wire(), sum: Wire::Full };
        let all = Operands::new(parameters, &all, self.headers.len())?.rounded(rounding);
        let sums = reduce::reduce_to_gradients(&[], parameters, &all, self.threads)?;
        // Each sum is freed as soon as it has been copied.
        let sums = sums.into_iter().map(|sum| sum.map(Cow::Owned));
        Ok(vec![copied(layout, sums, parameters, buffers)?])
    }

    /// Returns the weight of each set of packs. It is 1 if the packs of a worker already contain the weighted sum over
    /// its replicas.
    fn weights(&self, world: World) -> Cow<'_, [f64]> {
        if sums_locally_first(world) { vec![1.; world.workers()].into() } else { self.weights.into() }
    }

    /// Exchanges packs with the other workers. Returns the packs of all workers or, if there are more than two workers,
    /// those of the sum.
    fn exchange_packs(
        &self,
        calling: &mut GroupCall<'_>,
        layout: &Arc<Layout>,
        mine: &[Arc<PackedGradients>],
    ) -> Result<Vec<Packs>> {
        let (world, coding) = (calling.world(), self.coding(calling));
        let dtypes = || layout.packs().iter().map(|pack| pack.dtype);
        let of_replica = |flat: &Arc<PackedGradients>| {
            let sent = dtypes().zip(flat.packs()).map(|(dtype, pack)| coding.encode(dtype, pack.clone()));
            sent.collect::<Vec<_>>()
        };
        let packs: Vec<_> = mine.iter().flat_map(of_replica).collect();
        let early = StepHeader::early(self.headers).filter(|early| early.layout == layout.digest());
        let sets = |worker| sets_of(world, worker);
        let received = match early {
            Some(early) => calling.receive_early_ranges(early.call, &packs, sets),
            None => calling.all_to_all_ranges("its gradients", &packs, sets),
        };
        let decode = |packs: Vec<Bytes>| {
            let all = dtypes().cycle().zip(packs).map(|(dtype, pack)| coding.decode(dtype, pack));
            all.collect::<Vec<_>>()
        };
        let received: Vec<_> = received.map_err(failure("minimize"))?.into_iter().map(decode).collect();
        drop(packs);
        if world.workers() > 2 {
            let sum = self.sum(calling, layout, received).map_err(failure("minimize"))?;
            return Ok(vec![(1., Arc::new(sum))]);
        }
        let mut all = Vec::with_capacity(mine.len() * world.workers());
        for (worker, received) in received.iter().enumerate() {
            if worker == world.worker() {
                all.extend(mine.iter().cloned());
                continue;
            }
            for packs in received.chunks(layout.packs().len()) {
                all.push(Arc::new(PackedGradients::received(layout, packs.to_vec(), calling.buffers())));
            }
        }
        Ok(self.weights(world).iter().copied().zip(all).collect())
    }

    /// Exchanges packs with the other workers. Returns the packs of all workers, restricted to the elements that this
    /// worker updates.
    fn exchange_ranges(
        &self,
        calling: &mut GroupCall<'_>,
        layout: &Arc<Layout>,
        mine: &[Arc<PackedGradients>],
    ) -> Result<Vec<Packs>> {
        let (world, buffers, count) = (calling.world(), calling.buffers().clone(), layout.packs().len());
        let coding = self.coding(calling);
        let dtype = |number: usize| layout.packs().get(number % count).map_or(DType::F64, |pack| pack.dtype);
        let size = |pack| {
            let bytes = layout.shard(world.worker()).map_or(0, |part| part.len(pack));
            coding.len(dtype(pack), bytes)
        };
        let sizes: Vec<_> = (0..count).map(size).collect();
        let sets = |worker| sets_of(world, worker);
        let early = StepHeader::early(self.headers).filter(|early| early.layout == layout.digest());
        let received = match early {
            Some(early) => calling.receive_early(early.call, &sizes, sets),
            None => calling.all_to_all("its gradients", &sizes, sets, |worker, number| {
                let (flat, pack) = (&mine[number / count], number % count);
                let shard = layout.shard(worker).zip(flat.packs().get(pack));
                let piece = shard.map(|(part, bytes)| part.extract(pack, bytes, &buffers));
                piece.map_or_else(Bytes::new, |piece| coding.encode(dtype(pack), piece))
            }),
        };
        let mut all = Vec::with_capacity(mine.len() * world.workers());
        for (worker, received) in received.map_err(failure("minimize"))?.iter().enumerate() {
            if worker == world.worker() {
                all.extend(mine.iter().cloned());
            }
            for packs in received.chunks(count) {
                let packs = packs.iter().enumerate().map(|(at, pack)| coding.decode(dtype(at), pack.clone()));
                all.push(Arc::new(PackedGradients::received_shard(
                    layout,
                    world.worker(),
                    packs.collect(),
                    &buffers,
                )));
            }
        }
        Ok(self.weights(world).iter().copied().zip(all).collect())
    }

    /// Adds up this worker's range of all packs, and exchanges the sums with the other workers. `received` contains the
    /// ranges that each worker has sent.
    fn sum(
        &self,
        calling: &mut GroupCall<'_>,
        layout: &Arc<Layout>,
        received: Vec<Vec<Bytes>>,
    ) -> Result<PackedGradients, Failure> {
        let world = calling.world();
        let weights = self.weights(world);
        // Ranges are cut from packs as they are sent.
        let (parts, sums) =
            (self.coding(calling), PackCoding::new(self.parameters.wire(), calling.buffers()));
        let part = |worker, pack: &Pack| {
            let range = early_range(world, worker, parts.len(pack.dtype, pack.len));
            let widen = pack.len / parts.len(pack.dtype, pack.len).max(1);
            range.start * widen..range.end * widen
        };
        let sent = |worker, pack: &Pack| sums.len(pack.dtype, part(worker, pack).len());
        let size = |worker| layout.packs().iter().map(|pack| sent(worker, pack)).sum::<usize>();
        let mut mine = calling.buffers().take(size(world.worker()));
        let mut rest = mine.bytes_mut();
        for (index, pack) in layout.packs().iter().enumerate() {
            let place = rest.split_off_mut(..sent(world.worker(), pack)).unwrap_or_default();
            let all: Vec<_> = received
                .iter()
                .flat_map(|all| all.iter().skip(index).step_by(layout.packs().len()))
                .collect();
            match (pack.dtype, sums.wire(pack.dtype)) {
                (DType::F32, Wire::Full) => fold::<f32>(&all, &weights, place),
                (DType::F32, wire) => {
                    let mut sum = vec![0f32; part(world.worker(), pack).len() / size_of::<f32>()];
                    fold::<f32>(&all, &weights, bytemuck::cast_slice_mut(&mut sum));
                    wire.encode(&sum, place);
                }
                _ => fold::<f64>(&all, &weights, place),
            }
        }
        drop(received);
        let mine = mine.freeze();
        let bytes: usize = layout.packs().iter().map(|pack| pack.len).sum();
        let kept = (bytes < MAX_KEPT).then(|| calling.buffers().clone());
        let mut whole = PackWriter::new(layout.clone(), &kept.unwrap_or_else(Buffers::temporary));
        let rounds = (0..world.workers()).map(size).max().unwrap_or(0).div_ceil(SUMS_AT_ONCE).max(1);
        for start in (0..rounds).map(|round| round * SUMS_AT_ONCE) {
            let range = |len: usize| start.min(len)..(start + SUMS_AT_ONCE).min(len);
            let expected = |worker| range(size(worker)).len();
            let all = calling.all_gather_sized("its sums", mine.slice(range(mine.len())), expected)?;
            for (worker, mut all) in all.into_iter().enumerate() {
                // The sums of all packs follow each other, and these bytes begin at `start`.
                let mut skipped = start;
                for (index, pack) in layout.packs().iter().enumerate() {
                    let (len, part) = (sent(worker, pack), part(worker, pack));
                    let from = skipped.min(len);
                    skipped -= from;
                    let sum = all.split_to((len - from).min(all.len()));
                    if sum.is_empty() {
                        continue;
                    }
                    let sum = sums.decode(pack.dtype, sum);
                    if let Some(bytes) = whole.pack_mut(index) {
                        let from = part.start + from * (part.len() / len);
                        bytes[from..from + sum.len()].copy_from_slice(&sum);
                    }
                }
            }
        }
        Ok(whole.freeze())
    }

    /// Returns the encoding in which this worker's packs are sent.
    fn coding(&self, calling: &GroupCall<'_>) -> PackCoding {
        PackCoding::new(wire_of_summands(self.parameters, calling.world()), calling.buffers())
    }

    /// Exchanges the gradients by row of all replicas, and adds them to `summed`.
    fn exchange_rows(
        &self,
        calling: &mut GroupCall<'_>,
        variables: &[usize],
        summed: &mut [Summed<'b>],
    ) -> Result<()> {
        let world = calling.world();
        let mine: Vec<_> = self.mine.iter().map(|(_, gradients)| *gradients).collect();
        let record = row_records::encode(&mine, variables, self.parameters.wire(), calling.buffers());
        let records = calling.all_gather_bytes(record).map_err(failure("minimize"))?;
        let mut weights = self.weights.iter();
        let Parameters { variables: all, heights, .. } = self.parameters;
        let of_rows: Vec<_> = variables.iter().map(|number| (&all[*number].1, heights[*number])).collect();
        for (worker, record) in records.iter().enumerate() {
            if worker == world.worker() {
                for (gradients, weight) in mine.iter().zip(&mut weights) {
                    for number in variables {
                        summed[*number].push((*weight, gradients[*number].as_ref().map(Cow::Borrowed)));
                    }
                }
                continue;
            }
            let theirs = row_records::decode(
                record,
                world.replicas_of(worker).len(),
                &of_rows,
                self.parameters.wire(),
            )
            .map_err(|source| Error::Tensor { operation: "minimize", source })?;
            for (rows, weight) in theirs.into_iter().zip(&mut weights) {
                for (number, rows) in variables.iter().zip(rows) {
                    summed[*number].push((*weight, rows.map(|rows| Cow::Owned(ReplicaGradient::Rows(rows)))));
                }
            }
        }
        Ok(())
    }
}

/// Returns the number of sets of packs that a worker sends: one for each of its replicas, or one for their sum.
fn sets_of(world: World, worker: usize) -> usize {
    if sums_locally_first(world) { 1 } else { world.replicas_of(worker).len() }
}

/// Returns the type in which workers send the gradients that are added up. Sums over the replicas of a worker are sent
/// unchanged.
fn wire_of_summands(parameters: &Parameters, world: World) -> Wire {
    if sums_locally_first(world) { Wire::Full } else { parameters.wire() }
}

/// Writes the weighted sum of the vectors in `all` to `into`.
fn fold<F: Number>(all: &[&Bytes], weights: &[f64], into: &mut [u8]) {
    let all: Vec<_> = all.iter().map(|bytes| numbers::<F>(bytes)).collect();
    let all: Vec<&[F]> = all.iter().map(|numbers| &**numbers).collect();
    let weights: Vec<F> = weights.iter().map(|weight| F::of(*weight)).collect();
    fold_scaled(&all, &weights, bytemuck::cast_slice_mut(into));
}

/// Returns the dense gradients of one replica in packs. If layers have written them into packs, returns these packs;
/// otherwise [copies](copied) the gradients.
fn packed(
    layout: &Arc<Layout>,
    gradients: &[Option<ReplicaGradient>],
    parameters: &Parameters,
    buffers: &Buffers,
) -> Result<Arc<PackedGradients>> {
    let of_layout = |gradient: &ReplicaGradient| {
        gradient.packs().filter(|packs| Arc::ptr_eq(packs.layout(), layout)).cloned()
    };
    let mut with_place =
        (0..gradients.len()).filter(|number| layout.has(*number)).filter_map(|n| gradients[n].as_ref());
    if let Some(first) = with_place.next().and_then(of_layout)
        && with_place.all(|gradient| of_layout(gradient).is_some_and(|packs| Arc::ptr_eq(&packs, &first)))
    {
        return Ok(first);
    }
    let gradients = gradients.iter().map(|gradient| gradient.as_ref().map(Cow::Borrowed));
    copied(layout, gradients, parameters, buffers)
}

/// Copies gradients into packs. A gradient that is alone in a pack is not copied: its pack is used itself.
fn copied<'g>(
    layout: &Arc<Layout>,
    gradients: impl Iterator<Item = Option<Cow<'g, ReplicaGradient>>>,
    parameters: &Parameters,
    buffers: &Buffers,
) -> Result<Arc<PackedGradients>> {
    let mut packs = PackWriter::new(layout.clone(), buffers);
    for (number, (gradient, (_, variable))) in gradients.zip(&parameters.variables).enumerate() {
        let Some(gradient) = gradient else {
            packs.clear(number);
            continue;
        };
        if gradient.lone_pack().is_some_and(|pack| packs.adopt(number, pack)) {
            continue;
        }
        match variable.dtype() {
            DType::F32 => copy::<f32>(&gradient, number, &mut packs)?,
            _ => copy::<f64>(&gradient, number, &mut packs)?,
        }
    }
    Ok(Arc::new(packs.freeze()))
}

/// Copies the gradient of variable `number` into the packs, if they contain that variable.
fn copy<T: Number>(gradient: &ReplicaGradient, number: usize, packs: &mut PackWriter) -> Result<()> {
    let Some(place) = packs.elements_mut::<T>(number) else { return Ok(()) };
    match gradient {
        ReplicaGradient::Dense(dense) => dense.with_elements(|all: &[T]| place.copy_from_slice(all))?,
        ReplicaGradient::Rows(rows) => {
            place.fill(T::of(0.));
            rows.add_to(place);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
