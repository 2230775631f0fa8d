//! The exchange of a step's gradients between the workers of a group.
//!
//! Dense gradients are exchanged in packs. Each replica has its packs, or each worker has those of its replicas' sum,
//! if that changes no bit of the total. Packs that layers have written gradients into have been sent before the workers
//! meet; other packs are sent here.
//!
//! | workers | exchange | sum |
//! |---|---|---|
//! | 2 | each sends its packs to the other | in the pass that updates the variables |
//! | more than 2 | each gets its range of all packs, and sends the sum of the range to all | before that pass |
//! | any number, with a sharded state | each gets the elements that it updates, of all packs | in that pass |
//!
//! Rows are sent to all workers as they are.

use crate::header::{GradientKind, StepHeader};
use crate::parameters::{Parameters, folds_first};
use crate::reduce::operands::{Operands, Summed};
use crate::reduce::{self, Weighted, row_records};
use crate::sync::Threads;
use bytes::Bytes;
use candle_core::DType;
use distribute_base::internal::{Dense, Filling, Flat, Layout, Number, Pack, ReplicaGradient};
use distribute_base::{Error, Result};
use distribute_cluster::World;
use distribute_collective::Failure;
use distribute_collective::group::early::early_range;
use distribute_collective::group::{Buffers, GroupCall, numbers};
use distribute_core::internal::failure;
use distribute_tensor::kernel::fold_scaled;
use std::borrow::Cow;
use std::sync::Arc;

/// The exchange of a step's gradients with the other workers.
struct Exchange<'a, 'b> {
    parameters: &'b Parameters,
    /// The headers of all replicas.
    headers: &'a [&'a StepHeader],
    /// The weights of all replicas' gradients.
    weights: &'a [f64],
    /// The gradients of this worker's replicas.
    mine: &'a [Weighted<'b>],
    threads: &'a Threads<'a>,
}

/// Sends the gradients of this worker's replicas to the other workers, and returns those of all replicas.
///
/// # Errors
/// - The same error on all workers, if one is lost, late or fails.
/// - Another error on a worker that cannot read its own gradients.
pub(crate) fn exchange<'b>(
    calling: &mut GroupCall<'_>,
    parameters: &'b Parameters,
    headers: &[&StepHeader],
    weights: &[f64],
    mine: &[Weighted<'b>],
    threads: &Threads<'_>,
) -> Result<Operands<'b>> {
    let all = Exchange { parameters, headers, weights, mine, threads }.summed(calling)?;
    let all = Operands::of_variables(parameters, all.into_iter(), headers.len())?;
    Ok(all.of_partition(parameters.partition.as_deref()))
}

/// The packs of one term of the sum, with its weight.
type Packs = (f64, Arc<Flat>);

impl<'b> Exchange<'_, 'b> {
    /// Returns the gradients that are added up, for each variable.
    fn summed(&self, calling: &mut GroupCall<'_>) -> Result<Vec<Summed<'b>>> {
        let Self { parameters, headers, .. } = self;
        let mut kinds = vec![GradientKind::Nothing; parameters.variables.len()];
        for header in *headers {
            kinds.iter_mut().zip(&header.kinds).for_each(|(all, kind)| *all = all.plus(*kind));
        }
        let dense: Vec<bool> = kinds.iter().map(|kind| *kind == GradientKind::Dense).collect();
        let rows: Vec<usize> =
            (0..kinds.len()).filter(|number| kinds[*number] == GradientKind::Rows).collect();
        let order = headers.first().and_then(|header| header.order.as_deref());
        let layout = parameters.buckets.layout(&dense, order);
        let mine = self.packs(&layout, calling.world(), calling.buffers())?;
        let mut summed: Vec<Summed<'b>> = kinds.iter().map(|_| Vec::new()).collect();
        if !rows.is_empty() {
            self.exchange_rows(calling, &rows, &mut summed)?;
        }
        if layout.packs().is_empty() {
            return Ok(summed);
        }
        let (partition, world) = (parameters.partition.as_deref(), calling.world());
        let all = match partition {
            Some(_) => self.exchange_ranges(calling, &layout, &mine)?,
            None => self.exchange_packs(calling, &layout, &mine)?,
        };
        // Packs of single replicas lack the variables of which these have no gradient.
        let of_replicas = all.len() == headers.len() && !folds_first(world);
        for (at, (weight, packs)) in all.into_iter().enumerate() {
            // What this worker's own replicas have is whole. The others have sent only what this worker updates.
            let whole = partition.filter(|_| mine.iter().any(|mine| Arc::ptr_eq(mine, &packs)));
            for number in (0..kinds.len()).filter(|number| dense[*number]) {
                let is_there = !of_replicas || headers[at].kinds[number] != GradientKind::Nothing;
                // Zeros in the place of those that are not there would be of all elements. The pack has them, too.
                let is_there = is_there || partition.is_some() && headers.len() > 2;
                let gradient = || {
                    let range = whole.map(|partition| partition.mine(number));
                    Cow::Owned(ReplicaGradient::Dense(Dense::Packed { packs: packs.clone(), number, range }))
                };
                summed[number].push((weight, is_there.then(gradient)));
            }
        }
        Ok(summed)
    }

    /// Returns the packs of this worker: one set for the sum of its replicas, or one for each replica.
    fn packs(&self, layout: &Arc<Layout>, world: World, buffers: &Buffers) -> Result<Vec<Arc<Flat>>> {
        let Self { parameters, mine, .. } = self;
        if layout.packs().is_empty() {
            return Ok(Vec::new());
        }
        if !folds_first(world) {
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
        let all = Operands::new(parameters, &all, self.headers.len())?;
        let sums = reduce::reduced(&[], parameters, &all, self.threads)?;
        Ok(vec![packed(layout, &sums, parameters, buffers)?])
    }

    /// Returns the weights of the packs of all workers: ones, if those of a worker are its replicas' weighted sum.
    fn weights(&self, world: World) -> Cow<'_, [f64]> {
        if folds_first(world) { vec![1.; world.workers()].into() } else { self.weights.into() }
    }

    /// Returns the packs of all workers, or those of their sum.
    fn exchange_packs(
        &self,
        calling: &mut GroupCall<'_>,
        layout: &Arc<Layout>,
        mine: &[Arc<Flat>],
    ) -> Result<Vec<Packs>> {
        let packs: Vec<_> = mine.iter().flat_map(|flat| flat.packs().iter().cloned()).collect();
        let early = StepHeader::early(self.headers).filter(|early| early.layout == layout.digest());
        let received = match early {
            Some(early) => calling.receive_early_ranges(early.call, &packs),
            None => calling.all_to_all_ranges("its gradients", &packs),
        };
        let received = received.map_err(failure("minimize"))?;
        let world = calling.world();
        if world.workers() > 2 {
            let sum = self.sum(calling, layout, &received).map_err(failure("minimize"))?;
            return Ok(vec![(1., Arc::new(sum))]);
        }
        let mut all = Vec::with_capacity(mine.len() * world.workers());
        for (worker, received) in received.iter().enumerate() {
            if worker == world.worker() {
                all.extend(mine.iter().cloned());
                continue;
            }
            for packs in received.chunks(layout.packs().len()) {
                all.push(Arc::new(Flat::received(layout, packs.to_vec(), calling.buffers())));
            }
        }
        Ok(self.weights(world).iter().copied().zip(all).collect())
    }

    /// Returns the packs of all workers, with the elements that this one updates.
    fn exchange_ranges(
        &self,
        calling: &mut GroupCall<'_>,
        layout: &Arc<Layout>,
        mine: &[Arc<Flat>],
    ) -> Result<Vec<Packs>> {
        let (world, buffers, count) = (calling.world(), calling.buffers().clone(), layout.packs().len());
        let size = |pack| layout.part(world.worker()).map_or(0, |part| part.len(pack));
        let sizes: Vec<_> = mine.iter().flat_map(|_| (0..count).map(size)).collect();
        let early = StepHeader::early(self.headers).filter(|early| early.layout == layout.digest());
        let received = match early {
            Some(early) => calling.receive_early(early.call, &sizes),
            None => calling.all_to_all("its gradients", &sizes, |worker, number| {
                let (flat, pack) = (&mine[number / count], number % count);
                let piece = layout.part(worker).zip(flat.packs().get(pack));
                piece.map_or_else(Bytes::new, |(part, bytes)| part.of(pack, bytes, &buffers))
            }),
        };
        let mut all = Vec::with_capacity(mine.len() * world.workers());
        for (worker, received) in received.map_err(failure("minimize"))?.iter().enumerate() {
            if worker == world.worker() {
                all.extend(mine.iter().cloned());
            }
            for packs in received.chunks(count) {
                all.push(Arc::new(Flat::received_part(layout, world.worker(), packs.to_vec(), &buffers)));
            }
        }
        Ok(self.weights(world).iter().copied().zip(all).collect())
    }

    /// Adds up this worker's range of all packs, and exchanges the sums with the other workers. `received` are the
    /// ranges that each worker has sent.
    fn sum(
        &self,
        calling: &mut GroupCall<'_>,
        layout: &Arc<Layout>,
        received: &[Vec<Bytes>],
    ) -> Result<Flat, Failure> {
        let world = calling.world();
        let weights = self.weights(world);
        let part = |worker, pack: &Pack| early_range(world, worker, pack.len);
        let size = |worker| layout.packs().iter().map(|pack| part(worker, pack).len()).sum::<usize>();
        let mut sums = calling.buffers().take(size(world.worker()));
        let mut rest = sums.bytes_mut();
        for (index, pack) in layout.packs().iter().enumerate() {
            let place = rest.split_off_mut(..part(world.worker(), pack).len()).unwrap_or_default();
            let all: Vec<_> = received
                .iter()
                .flat_map(|all| all.iter().skip(index).step_by(layout.packs().len()))
                .collect();
            match pack.dtype {
                DType::F32 => fold::<f32>(&all, &weights, place),
                _ => fold::<f64>(&all, &weights, place),
            }
        }
        let sums = calling.all_gather_sized("its sums", sums.freeze(), size)?;
        let mut whole = Filling::new(layout.clone(), calling.buffers());
        for (worker, mut sums) in sums.into_iter().enumerate() {
            for (index, pack) in layout.packs().iter().enumerate() {
                let part = part(worker, pack);
                if let Some(bytes) = whole.pack_mut(index) {
                    bytes[part.clone()].copy_from_slice(&sums.split_to(part.len()));
                }
            }
        }
        Ok(whole.freeze())
    }

    /// Exchanges the gradients by row of all replicas.
    fn exchange_rows(
        &self,
        calling: &mut GroupCall<'_>,
        variables: &[usize],
        summed: &mut [Summed<'b>],
    ) -> Result<()> {
        let world = calling.world();
        let mine: Vec<_> = self.mine.iter().map(|(_, gradients)| *gradients).collect();
        let record = row_records::encode(&mine, variables, calling.buffers());
        let records = calling.all_gather_bytes(record).map_err(failure("minimize"))?;
        let mut weights = self.weights.iter();
        let of_rows: Vec<_> = variables.iter().map(|number| &self.parameters.variables[*number].1).collect();
        for (worker, record) in records.iter().enumerate() {
            if worker == world.worker() {
                for (gradients, weight) in mine.iter().zip(&mut weights) {
                    for number in variables {
                        summed[*number].push((*weight, gradients[*number].as_ref().map(Cow::Borrowed)));
                    }
                }
                continue;
            }
            let theirs = row_records::decode(record, world.replicas(), &of_rows)
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

/// Writes the weighted sum of some vectors into another.
fn fold<F: Number>(all: &[&Bytes], weights: &[f64], into: &mut [u8]) {
    let all: Vec<_> = all.iter().map(|bytes| numbers::<F>(bytes)).collect();
    let all: Vec<&[F]> = all.iter().map(|numbers| &**numbers).collect();
    let weights: Vec<F> = weights.iter().map(|weight| F::of(*weight)).collect();
    fold_scaled(&all, &weights, bytemuck::cast_slice_mut(into));
}

/// Returns the dense gradients of one replica in packs: those that layers have written them into, or copies.
fn packed(
    layout: &Arc<Layout>,
    gradients: &[Option<ReplicaGradient>],
    parameters: &Parameters,
    buffers: &Buffers,
) -> Result<Arc<Flat>> {
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
    let mut packs = Filling::new(layout.clone(), buffers);
    for (number, (gradient, (_, variable))) in gradients.iter().zip(&parameters.variables).enumerate() {
        match (gradient, variable.dtype()) {
            (None, _) => packs.clear(number),
            (Some(gradient), DType::F32) => copy::<f32>(gradient, number, &mut packs)?,
            (Some(gradient), _) => copy::<f64>(gradient, number, &mut packs)?,
        }
    }
    Ok(Arc::new(packs.freeze()))
}

/// Copies the gradient of the variable with this number into a pack, if the packs have it.
fn copy<T: Number>(gradient: &ReplicaGradient, number: usize, packs: &mut Filling) -> Result<()> {
    let Some(place) = packs.place::<T>(number) else { return Ok(()) };
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
