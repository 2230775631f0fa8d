//! The gradients of a step over the workers of a group: what is sent, and what is added up from what has come.
//!
//! Dense gradients are one vector of each replica, or of each worker whose replicas' sum changes no bit of the whole. Two
//! workers exchange their vectors whole, and add the other's as that of further replicas in the pass that updates the
//! variables; more share the sum out. Rows go as they are to everybody.

use super::Trained;
use super::operands::{Operands, Parts};
use super::reduction;
use super::row_records;
use super::tally::{Kind, Tally};
use super::threads::Threads;
use crate::context::failure;
use crate::deposit::{Deposited, Filling, Flat, Layout, LocalGradient};
use crate::number::{Number, with_elements};
use crate::{Error, Result, Strategy};
use bytes::Bytes;
use candle_core::DType;
use distribute_cluster::World;
use distribute_collective::Failure;
use distribute_collective::group::{Buffers, Calling};
use std::borrow::Cow;
use std::ops::Range;
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

/// A vector of dense gradients that is added up with others.
struct Addend {
    weight: f64,
    vector: Arc<Flat>,
    /// Whose it is, if it is that of one replica.
    replica: Option<usize>,
}

/// Where a replica's vector comes from, if there are other workers to which it is sent as it is.
pub(super) fn vectors(strategy: &Strategy) -> Option<Buffers> {
    let group = strategy.extended().group().filter(|group| group.world().is_multi_worker())?;
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
    pub(super) fn operands(&self, mut calling: Calling<'_>, mine: &Gradients<'b>) -> Result<Operands<'b>> {
        let parts = self.parts(&mut calling, mine);
        if parts.as_ref().is_err_and(|error| !matches!(error, Error::Collective(_))) {
            calling.decline();
        }
        Operands::of_parts(self.trained, parts?.into_iter(), self.tallies.len())
    }

    /// For each variable what is added up.
    fn parts(&self, calling: &mut Calling<'_>, mine: &Gradients<'b>) -> Result<Vec<Parts<'b>>> {
        let mut kinds = vec![Kind::Nothing; self.trained.variables.len()];
        for tally in self.tallies {
            kinds.iter_mut().zip(&tally.kinds).for_each(|(all, kind)| *all = all.plus(*kind));
        }
        let dense: Vec<bool> = kinds.iter().map(|kind| *kind == Kind::Dense).collect();
        let rows: Vec<usize> = (0..kinds.len()).filter(|number| kinds[*number] == Kind::Rows).collect();
        let layout = self.trained.buckets.layout(&dense);
        let vectors = self.flat(&layout, mine, calling.world(), calling.buffers())?;
        let mut parts: Vec<Parts<'b>> = kinds.iter().map(|_| Vec::new()).collect();
        if !rows.is_empty() {
            self.exchange_rows(calling, mine, &rows, &mut parts)?;
        }
        if layout.len() > 0 {
            let world = calling.world();
            let made = if world.workers() == 2 {
                self.exchange_whole(calling, &layout, &vectors)
            } else {
                self.sum_by_ranges(calling, &layout, &vectors)
            };
            for Addend { weight, vector, replica } in made.map_err(failure("minimize"))? {
                for number in (0..kinds.len()).filter(|number| dense[*number]) {
                    let is_there =
                        replica.is_none_or(|id: usize| self.tallies[id].kinds[number] != Kind::Nothing);
                    let part = || Cow::Owned(LocalGradient::Deposited(Deposited::in_flat(&vector, number)));
                    parts[number].push((weight, is_there.then(part)));
                }
            }
        }
        Ok(parts)
    }

    /// The vectors of this worker: one, or one of each replica.
    fn flat(
        &self,
        layout: &Arc<Layout>,
        mine: &Gradients<'_>,
        world: World,
        buffers: &Buffers,
    ) -> Result<Vec<Arc<Flat>>> {
        if layout.len() == 0 {
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

    /// Every worker gets every vector. Gives what is to be added up.
    fn exchange_whole(
        &self,
        calling: &mut Calling<'_>,
        layout: &Arc<Layout>,
        mine: &[Arc<Flat>],
    ) -> Result<Vec<Addend>, Failure> {
        let world = calling.world();
        let mut all = vec![Vec::new(); world.workers()];
        for vector in mine {
            let bytes = calling.exchange("its gradients", vector.bytes().clone())?;
            for (worker, (bytes, all)) in bytes.into_iter().zip(&mut all).enumerate() {
                all.push(if worker == world.worker() {
                    vector.clone()
                } else {
                    Arc::new(Flat::received(layout, bytes, calling.buffers()))
                });
            }
        }
        let addend = |(at, vector)| {
            if folds_first(world) {
                Addend { weight: 1., vector, replica: None }
            } else {
                Addend { weight: self.weights[at], vector, replica: Some(at) }
            }
        };
        Ok(all.into_iter().flatten().enumerate().map(addend).collect())
    }

    /// Each worker adds up a range of all vectors. Gives the sum.
    fn sum_by_ranges(
        &self,
        calling: &mut Calling<'_>,
        layout: &Arc<Layout>,
        mine: &[Arc<Flat>],
    ) -> Result<Vec<Addend>, Failure> {
        let mut sum = Filling::new(layout.clone(), calling.buffers());
        let (wide, narrow) = layout.regions();
        self.sum_region::<f64>(calling, mine, wide, &mut sum)?;
        self.sum_region::<f32>(calling, mine, narrow, &mut sum)?;
        Ok(vec![Addend { weight: 1., vector: Arc::new(sum.freeze()), replica: None }])
    }

    fn sum_region<F: Number>(
        &self,
        calling: &mut Calling<'_>,
        mine: &[Arc<Flat>],
        region: Range<usize>,
        sum: &mut Filling,
    ) -> Result<(), Failure> {
        if region.is_empty() {
            return Ok(());
        }
        let world = calling.world();
        let vectors: Vec<Bytes> = mine.iter().map(|vector| vector.bytes().slice(region.clone())).collect();
        let weights: Vec<F> = if folds_first(world) {
            vec![F::of(1.); world.workers()]
        } else {
            self.weights.iter().map(|weight| F::of(*weight)).collect()
        };
        let mut place = &mut sum.bytes_mut()[region];
        for piece in calling.sum(&vectors, &weights)? {
            let too_long = || Failure::Record("a sum that is longer than its vectors".into());
            let of_piece = place.split_off_mut(..piece.len()).ok_or_else(too_long)?;
            of_piece.copy_from_slice(&piece);
        }
        Ok(())
    }

    /// Every worker gets the rows of all replicas.
    fn exchange_rows(
        &self,
        calling: &mut Calling<'_>,
        mine: &Gradients<'b>,
        variables: &[usize],
        parts: &mut [Parts<'b>],
    ) -> Result<()> {
        let world = calling.world();
        let record = row_records::encode(mine, variables, calling.buffers());
        let records = calling.records(record).map_err(failure("minimize"))?;
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

/// The dense gradients of one replica in a vector: the one in which layers have put them, or a copy.
fn flat(
    layout: &Arc<Layout>,
    gradients: &[Option<LocalGradient>],
    trained: &Trained,
    buffers: &Buffers,
) -> Result<Arc<Flat>> {
    let in_vector = |gradient: &LocalGradient| match gradient {
        LocalGradient::Deposited(dense) => {
            dense.flat().filter(|flat| Arc::ptr_eq(flat.layout(), layout)).cloned()
        }
        _ => None,
    };
    let mut with_place =
        (0..gradients.len()).filter(|number| layout.has(*number)).filter_map(|n| gradients[n].as_ref());
    if let Some(first) = with_place.next().and_then(in_vector)
        && with_place.all(|gradient| in_vector(gradient).is_some_and(|flat| Arc::ptr_eq(&flat, &first)))
    {
        return Ok(first);
    }
    let mut vector = Filling::new(layout.clone(), buffers);
    for (number, (gradient, (_, variable))) in gradients.iter().zip(&trained.variables).enumerate() {
        match (gradient, variable.dtype()) {
            (None, _) => vector.clear(number),
            (Some(gradient), DType::F32) => copy::<f32>(gradient, number, &mut vector)?,
            (Some(gradient), _) => copy::<f64>(gradient, number, &mut vector)?,
        }
    }
    Ok(Arc::new(vector.freeze()))
}

/// Copies a gradient to its place, if it has one.
fn copy<T: Number>(gradient: &LocalGradient, number: usize, vector: &mut Filling) -> Result<()> {
    let Some(place) = vector.place::<T>(number) else { return Ok(()) };
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
