//! The gradients of a step over the workers of a group: what is sent, and what is added up from what has come.
//!
//! Dense gradients are packs of each replica, or of each worker whose replicas' sum changes no bit of the whole. Where layers have
//! put them there, they have been sent before the workers met; else they are sent now. Two workers have each other's packs whole, and
//! add them as those of further replicas in the pass that updates the variables; more share the sum out. Where each worker owns
//! ranges of variables, it gets these of all packs, and adds them up in that pass. Rows go as they are to everybody.

use super::Trained;
use super::operands::{Operands, Parts};
use super::reduction;
use super::row_records;
use super::shards::Shards;
use super::tally::{Kind, Tally};
use super::threads::Threads;
use bytes::Bytes;
use candle_core::DType;
use distribute_base::internal::{
    Deposited, Filling, Flat, Layout, LocalGradient, Number, Pack, with_elements,
};
use distribute_base::{Error, Result};
use distribute_cluster::World;
use distribute_collective::Failure;
use distribute_collective::group::early::early_range;
use distribute_collective::group::{Buffers, GroupCall, numbers};
use distribute_core::Strategy;
use distribute_core::internal::failure;
use distribute_tensor::kernel::fold_scaled;
use std::borrow::Cow;
use std::sync::Arc;

/// For each replica its gradient of each variable.
type Gradients<'b> = [&'b [Option<LocalGradient>]];

/// A step's exchange of gradients with the other workers.
pub(super) struct OverWorkers<'a, 'b> {
    pub(super) trained: &'b Trained,
    /// Those of all replicas.
    pub(super) tallies: &'a [&'a Tally],
    pub(super) weights: &'a [f64],
    pub(super) threads: &'a Threads<'a>,
}

/// Dense gradients that are added up with others.
struct Addend<'s> {
    weight: f64,
    flat: Arc<Flat>,
    /// Whose it is, if it is that of one replica.
    replica: Option<usize>,
    /// Where only the elements are added up that this worker owns.
    of_shard: Option<Cut<'s>>,
}

/// Who has cut a vector down to the elements that this worker owns.
#[derive(Clone, Copy)]
enum Cut<'s> {
    /// The worker that has sent it.
    BySender,
    /// Nobody has yet: it is this worker's own.
    Here(&'s Shards),
}

/// Where a replica's packs come from, if there are other workers to which they are sent as they are, or may be once they have come.
pub(super) fn packs(strategy: &Strategy) -> Option<Buffers> {
    let group = strategy.extended().group()?;
    (!folds_first(group.world())).then(|| group.buffers().clone())
}

/// Whether the replicas of a worker are a branch of the tree of sums, so that their sum can go in their place.
// INV-7
fn folds_first(world: World) -> bool {
    world.replicas() > 1 && world.replicas().is_power_of_two()
}

impl<'b> OverWorkers<'_, 'b> {
    /// Exchanges the gradients of this worker's replicas for those of all.
    ///
    /// # Errors
    /// The same on all workers, where one is lost or late or fails; its own on a worker that cannot bring its part.
    pub(super) fn operands(&self, calling: &mut GroupCall<'_>, mine: &Gradients<'b>) -> Result<Operands<'b>> {
        let parts = self.parts(calling, mine)?;
        let all = Operands::of_parts(self.trained, parts.into_iter(), self.tallies.len())?;
        Ok(all.of_shards(self.trained.shards.as_ref()))
    }

    /// For each variable what is added up.
    fn parts(&self, calling: &mut GroupCall<'_>, mine: &Gradients<'b>) -> Result<Vec<Parts<'b>>> {
        let mut kinds = vec![Kind::Nothing; self.trained.variables.len()];
        for tally in self.tallies {
            kinds.iter_mut().zip(&tally.kinds).for_each(|(all, kind)| *all = all.plus(*kind));
        }
        let dense: Vec<bool> = kinds.iter().map(|kind| *kind == Kind::Dense).collect();
        let rows: Vec<usize> = (0..kinds.len()).filter(|number| kinds[*number] == Kind::Rows).collect();
        let order = self.tallies.first().and_then(|tally| tally.order.as_deref());
        let layout = self.trained.buckets.layout(&dense, order);
        let mine_flat = self.flat(&layout, mine, calling.world(), calling.buffers())?;
        let mut parts: Vec<Parts<'b>> = kinds.iter().map(|_| Vec::new()).collect();
        if !rows.is_empty() {
            self.exchange_rows(calling, mine, &rows, &mut parts)?;
        }
        if !layout.packs().is_empty() {
            let addends = match &self.trained.shards {
                Some(shards) => self.shards(calling, &layout, &mine_flat, shards)?,
                None => self.addends(calling, &layout, &mine_flat)?,
            };
            for Addend { weight, flat, replica, of_shard } in addends {
                for number in (0..kinds.len()).filter(|number| dense[*number]) {
                    let is_there =
                        replica.is_none_or(|id: usize| self.tallies[id].kinds[number] != Kind::Nothing);
                    // Zeros in the place of those that are not there would be of all elements. The pack has them, too.
                    let is_there = is_there || of_shard.is_some() && self.tallies.len() > 2;
                    let part = || {
                        let all = Deposited::in_flat(&flat, number);
                        let part = match of_shard {
                            Some(Cut::Here(shards)) => all.range(shards.mine(number)),
                            Some(Cut::BySender) | None => all,
                        };
                        Cow::Owned(LocalGradient::Deposited(part))
                    };
                    parts[number].push((weight, is_there.then(part)));
                }
            }
        }
        Ok(parts)
    }

    /// The packs of this worker: of all its replicas together, or of each.
    fn flat(
        &self,
        layout: &Arc<Layout>,
        mine: &Gradients<'_>,
        world: World,
        buffers: &Buffers,
    ) -> Result<Vec<Arc<Flat>>> {
        if layout.packs().is_empty() {
            return Ok(Vec::new());
        }
        let trained = self.trained;
        if !folds_first(world) {
            return mine.iter().map(|gradients| flat(layout, gradients, trained, buffers)).collect();
        }
        let dense = |gradients: &&[Option<LocalGradient>]| {
            let all = gradients.iter().zip(&trained.variables).enumerate();
            all.map(|(number, (gradient, (_, variable)))| match gradient {
                Some(gradient) if layout.has(number) => Ok(Some(gradient.to_dense(variable)?)),
                _ => Ok(None),
            })
            .collect::<Result<Vec<_>>>()
        };
        let all = mine.iter().map(dense).collect::<Result<Vec<_>>>()?;
        let weights = &self.weights[world.local_replicas()];
        let all: Vec<_> = weights.iter().copied().zip(all.iter().map(Vec::as_slice)).collect();
        let all = Operands::new(trained, &all, self.tallies.len())?;
        let sums = reduction::reduced(&[], trained, &all, self.threads)?;
        Ok(vec![flat(layout, &sums, trained, buffers)?])
    }

    /// What is added up: the dense gradients of all, or their sum.
    fn addends(
        &self,
        calling: &mut GroupCall<'_>,
        layout: &Arc<Layout>,
        mine: &[Arc<Flat>],
    ) -> Result<Vec<Addend<'b>>> {
        let packs: Vec<_> = mine.iter().flat_map(|flat| flat.packs().iter().cloned()).collect();
        let sent = Tally::sent_ahead(self.tallies).filter(|sent| sent.layout == layout.digest());
        let come = match sent {
            Some(sent) => calling.receive_early_ranges(sent.call, &packs),
            None => calling.all_to_all_ranges("its gradients", &packs),
        };
        let come = come.map_err(failure("minimize"))?;
        let world = calling.world();
        if world.workers() > 2 {
            let sum = self.sum(calling, layout, &come).map_err(failure("minimize"))?;
            return Ok(vec![Addend { weight: 1., flat: Arc::new(sum), replica: None, of_shard: None }]);
        }
        let mut all = Vec::with_capacity(mine.len() * world.workers());
        for (worker, come) in come.iter().enumerate() {
            if worker == world.worker() {
                all.extend(mine.iter().cloned());
                continue;
            }
            for packs in come.chunks(layout.packs().len()) {
                all.push(Arc::new(Flat::received(layout, packs.to_vec(), calling.buffers())));
            }
        }
        Ok(all.into_iter().enumerate().map(|(at, flat)| self.addend(world, at, flat, None)).collect())
    }

    /// The dense gradients of all, of which each worker has sent this one the elements that it owns.
    fn shards(
        &self,
        calling: &mut GroupCall<'_>,
        layout: &Arc<Layout>,
        mine: &[Arc<Flat>],
        shards: &'b Shards,
    ) -> Result<Vec<Addend<'b>>> {
        let (world, buffers, count) = (calling.world(), calling.buffers().clone(), layout.packs().len());
        let size = |pack| layout.part(world.worker()).map_or(0, |part| part.len(pack));
        let sizes: Vec<_> = mine.iter().flat_map(|_| (0..count).map(size)).collect();
        let sent = Tally::sent_ahead(self.tallies).filter(|sent| sent.layout == layout.digest());
        let come = match sent {
            Some(sent) => calling.receive_early(sent.call, &sizes),
            None => calling.all_to_all("its gradients", &sizes, |worker, number| {
                let (flat, pack) = (&mine[number / count], number % count);
                let piece = layout.part(worker).zip(flat.packs().get(pack));
                piece.map_or_else(Bytes::new, |(part, bytes)| part.of(pack, bytes, &buffers))
            }),
        };
        let mut all = Vec::with_capacity(mine.len() * world.workers());
        for (worker, come) in come.map_err(failure("minimize"))?.iter().enumerate() {
            if worker == world.worker() {
                all.extend(mine.iter().map(|flat| (flat.clone(), Cut::Here(shards))));
            }
            for packs in come.chunks(count) {
                let part = Flat::received_part(layout, world.worker(), packs.to_vec(), &buffers);
                all.push((Arc::new(part), Cut::BySender));
            }
        }
        let all = all.into_iter().enumerate();
        Ok(all.map(|(at, (flat, cut))| self.addend(world, at, flat, Some(cut))).collect())
    }

    /// The vector that is at this place among those of all.
    fn addend(&self, world: World, at: usize, flat: Arc<Flat>, of_shard: Option<Cut<'b>>) -> Addend<'b> {
        let replica = (!folds_first(world)).then_some(at);
        Addend { weight: replica.map_or(1., |replica| self.weights[replica]), flat, replica, of_shard }
    }

    /// Each worker adds up its range of every pack, and sends the sums to all. `come` are those ranges, of each worker.
    fn sum(
        &self,
        calling: &mut GroupCall<'_>,
        layout: &Arc<Layout>,
        come: &[Vec<Bytes>],
    ) -> Result<Flat, Failure> {
        let world = calling.world();
        let ones = vec![1.; world.workers()];
        let weights = if folds_first(world) { &ones[..] } else { self.weights };
        let part = |worker, pack: &Pack| early_range(world, worker, pack.len);
        let size = |worker| layout.packs().iter().map(|pack| part(worker, pack).len()).sum::<usize>();
        let mut sums = calling.buffers().take(size(world.worker()));
        let mut rest = sums.bytes_mut();
        for (index, pack) in layout.packs().iter().enumerate() {
            let place = rest.split_off_mut(..part(world.worker(), pack).len()).unwrap_or_default();
            let all: Vec<_> =
                come.iter().flat_map(|come| come.iter().skip(index).step_by(layout.packs().len())).collect();
            match pack.dtype {
                DType::F32 => fold::<f32>(&all, weights, place),
                _ => fold::<f64>(&all, weights, place),
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

    /// Every worker gets the rows of all replicas.
    fn exchange_rows(
        &self,
        calling: &mut GroupCall<'_>,
        mine: &Gradients<'b>,
        variables: &[usize],
        parts: &mut [Parts<'b>],
    ) -> Result<()> {
        let world = calling.world();
        let record = row_records::encode(mine, variables, calling.buffers());
        let records = calling.all_gather_bytes(record).map_err(failure("minimize"))?;
        let mut weights = self.weights.iter();
        let of_rows: Vec<_> = variables.iter().map(|number| &self.trained.variables[*number].1).collect();
        for (worker, record) in records.iter().enumerate() {
            if worker == world.worker() {
                for (gradients, weight) in mine.iter().zip(&mut weights) {
                    for number in variables {
                        parts[*number].push((*weight, gradients[*number].as_ref().map(Cow::Borrowed)));
                    }
                }
                continue;
            }
            let theirs = row_records::decode(record, world.replicas(), &of_rows)
                .map_err(|source| Error::Tensor { operation: "minimize", source })?;
            for (rows, weight) in theirs.into_iter().zip(&mut weights) {
                for (number, rows) in variables.iter().zip(rows) {
                    parts[*number].push((*weight, rows.map(|rows| Cow::Owned(LocalGradient::Rows(rows)))));
                }
            }
        }
        Ok(())
    }
}

/// The weighted sum of these vectors.
fn fold<F: Number>(all: &[&Bytes], weights: &[f64], into: &mut [u8]) {
    let all: Vec<_> = all.iter().map(|bytes| numbers::<F>(bytes)).collect();
    let all: Vec<&[F]> = all.iter().map(|numbers| &**numbers).collect();
    let weights: Vec<F> = weights.iter().map(|weight| F::of(*weight)).collect();
    fold_scaled(&all, &weights, bytemuck::cast_slice_mut(into));
}

/// The dense gradients of one replica in packs: those in which layers have put them, or copies.
fn flat(
    layout: &Arc<Layout>,
    gradients: &[Option<LocalGradient>],
    trained: &Trained,
    buffers: &Buffers,
) -> Result<Arc<Flat>> {
    let in_packs = |gradient: &LocalGradient| match gradient {
        LocalGradient::Deposited(dense) => {
            dense.flat().filter(|flat| Arc::ptr_eq(flat.layout(), layout)).cloned()
        }
        _ => None,
    };
    let mut with_place =
        (0..gradients.len()).filter(|number| layout.has(*number)).filter_map(|n| gradients[n].as_ref());
    if let Some(first) = with_place.next().and_then(in_packs)
        && with_place.all(|gradient| in_packs(gradient).is_some_and(|flat| Arc::ptr_eq(&flat, &first)))
    {
        return Ok(first);
    }
    let mut packs = Filling::new(layout.clone(), buffers);
    for (number, (gradient, (_, variable))) in gradients.iter().zip(&trained.variables).enumerate() {
        match (gradient, variable.dtype()) {
            (None, _) => packs.clear(number),
            (Some(gradient), DType::F32) => copy::<f32>(gradient, number, &mut packs)?,
            (Some(gradient), _) => copy::<f64>(gradient, number, &mut packs)?,
        }
    }
    Ok(Arc::new(packs.freeze()))
}

/// Copies a gradient to its place, if it has one.
fn copy<T: Number>(gradient: &LocalGradient, number: usize, packs: &mut Filling) -> Result<()> {
    let Some(place) = packs.place::<T>(number) else { return Ok(()) };
    match gradient {
        LocalGradient::Dense(tensor) => with_elements(tensor, |all: &[T]| place.copy_from_slice(all))?,
        LocalGradient::Deposited(dense) => place.copy_from_slice(dense.elements().unwrap_or_default()),
        LocalGradient::Rows(rows) => {
            place.fill(T::of(0.));
            rows.add_to(place);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
