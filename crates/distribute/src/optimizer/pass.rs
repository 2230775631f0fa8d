//! The pass over all parameters: every replica reduces and updates the range that it owns.

use super::gradients::Contribution;
use super::locked::{Elements, contiguous_range, with_elements};
use crate::{Error, Result};
use candle_core::{CpuStorage, DType, Storage, Tensor, Var};
use distribute_optim::{Float, Rule, RuleExt, SlotSpec, Step, UpdateError};
use distribute_tensor::kernel::{Scale, fold_scaled};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Elements that are reduced and updated at a time: they fit the first-level cache with their slots. Ranges of
/// replicas end at multiples of it, so sums over blocks don't depend on the number of replicas.
const BLOCK: usize = 2048;

/// What a rule keeps beside one variable.
#[derive(Debug)]
pub(super) enum Slots {
    F32(Vec<Vec<f32>>),
    F64(Vec<Vec<f64>>),
}

impl Slots {
    pub(super) fn new(name: &str, variable: &Var, layout: &[SlotSpec]) -> Result<Self> {
        let n = variable.elem_count();
        match (variable.dtype(), variable.device().is_cpu()) {
            (DType::F32, true) => {
                Ok(Slots::F32(layout.iter().map(|slot| vec![slot.initial as f32; n]).collect()))
            }
            (DType::F64, true) => Ok(Slots::F64(layout.iter().map(|slot| vec![slot.initial; n]).collect())),
            (dtype, _) => Err(Error::invalid(
                "Optimizer::new",
                format!(
                    "variable {name} is {dtype:?} on {:?}; optimizers train f32 and f64 on the CPU",
                    variable.device().location()
                ),
            )),
        }
    }
}

impl Slots {
    /// A copy of one slot, of the shape of its variable.
    pub(super) fn tensor(&self, index: usize, variable: &Var) -> Result<Tensor> {
        let (shape, device) = (variable.shape(), variable.device());
        Ok(match self {
            Slots::F32(slots) => Tensor::from_slice(&slots[index], shape, device)?,
            Slots::F64(slots) => Tensor::from_slice(&slots[index], shape, device)?,
        })
    }
}

/// What is run on several threads at once, with the number of each.
pub(super) type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// The threads that share the pass.
pub(super) struct Workers<'a> {
    pub(super) count: usize,
    /// Runs a closure once on each.
    pub(super) broadcast: &'a dyn Fn(&Work<'_>),
}

impl Workers<'_> {
    /// The calling thread only.
    pub(super) fn alone() -> Workers<'static> {
        Workers { count: 1, broadcast: &|work| work(0) }
    }
}

/// A float that can be reduced, updated and found in a tensor.
trait Number: Float + Scale {
    fn of(value: f64) -> Self;
    fn square(self) -> f64;
    fn slice(storage: &CpuStorage) -> Option<&[Self]>;
    fn piece(piece: Piece<'_, Self>) -> AnyPiece<'_>;
}

macro_rules! number {
    ($t:ident, $variant:ident) => {
        impl Number for $t {
            fn of(value: f64) -> Self {
                value as $t
            }
            fn square(self) -> f64 {
                f64::from(self) * f64::from(self)
            }
            fn slice(storage: &CpuStorage) -> Option<&[Self]> {
                match storage {
                    CpuStorage::$variant(v) => Some(v),
                    _ => None,
                }
            }
            fn piece(piece: Piece<'_, Self>) -> AnyPiece<'_> {
                AnyPiece::$variant(piece)
            }
        }
    };
}
number!(f32, F32);
number!(f64, F64);

/// A stretch of one variable: what it is, what is kept beside it, and its gradients on the replicas that have one.
struct Piece<'a, F> {
    values: &'a mut [F],
    slots: Vec<&'a mut [F]>,
    gradients: Vec<&'a [F]>,
    weights: Arc<[F]>,
    /// The reduced gradient, where it is needed whole before the update.
    reduced: Vec<F>,
}

enum AnyPiece<'a> {
    F32(Piece<'a, f32>),
    F64(Piece<'a, f64>),
}

/// Reduces the gradients, clips them, and applies the rule, to all variables that have a gradient on some replica.
#[allow(clippy::too_many_arguments)]
pub(super) fn run(
    rule: &dyn Rule,
    step: Step,
    clip: Option<f64>,
    variables: &[(String, Var)],
    slots: &mut [Slots],
    all: &[Arc<Contribution>],
    weights: &[f64],
    workers: &Workers<'_>,
) -> Result<()> {
    let has_gradient = |v: usize| all.iter().any(|c| c.examples > 0 && c.gradients[v].is_some());
    let active: Vec<usize> = (0..variables.len()).filter(|v| has_gradient(*v)).collect();
    let tensors: Vec<&Var> = active.iter().map(|v| &variables[*v].1).collect();
    let slots: Vec<&mut Slots> = slots
        .iter_mut()
        .enumerate()
        .filter(|(v, _)| active.binary_search(v).is_ok())
        .map(|(_, s)| s)
        .collect();

    // Read guards of all gradients, for as long as the pieces live.
    let contributes = |c: &&Arc<Contribution>| c.examples > 0;
    let guards: Vec<Vec<(f64, _)>> = active
        .iter()
        .map(|v| {
            let of_replica = all.iter().zip(weights).filter(|(c, _)| contributes(c));
            of_replica
                .filter_map(|(c, w)| Some((*w, c.gradients[*v].as_ref()?.storage_and_layout())))
                .collect()
        })
        .collect();

    with_elements(&tensors, |elements| {
        let total: usize = elements.iter().map(|e| e.len().div_ceil(BLOCK)).sum();
        let mut owners = Owners::new(workers.count, total);
        for ((elements, slots), guards) in elements.into_iter().zip(slots).zip(&guards) {
            match (elements, slots) {
                (Elements::F32(values), Slots::F32(slots)) => owners.deal(values, slots, guards)?,
                (Elements::F64(values), Slots::F64(slots)) => owners.deal(values, slots, guards)?,
                _ => return Err(Error::invalid("minimize", "a variable has changed its dtype")),
            }
        }
        let factor = match clip {
            None => 1.,
            Some(max_norm) => {
                let squares = owners.each(workers, |pieces| {
                    Ok(pieces.iter_mut().flat_map(AnyPiece::reduce).collect::<Vec<_>>())
                })?;
                let norm = squares.into_iter().flatten().sum::<f64>().sqrt();
                if norm > max_norm { max_norm / norm } else { 1. }
            }
        };
        owners.each(workers, |pieces| {
            pieces.iter_mut().try_for_each(|piece| piece.update(rule, step, factor))
        })?;
        Ok(())
    })
}

/// The pieces of each worker: contiguous ranges of all parameters taken together.
struct Owners<'a> {
    pieces: Vec<Vec<AnyPiece<'a>>>,
    blocks_each: usize,
    blocks_dealt: usize,
}

impl<'a> Owners<'a> {
    fn new(workers: usize, blocks: usize) -> Self {
        let pieces = (0..workers).map(|_| Vec::new()).collect();
        Self { pieces, blocks_each: blocks.div_ceil(workers).max(1), blocks_dealt: 0 }
    }

    /// Cuts a variable at the borders between workers.
    fn deal<F: Number>(
        &mut self,
        mut values: &'a mut [F],
        slots: &'a mut [Vec<F>],
        gradients: &'a [(f64, (candle_core::StorageRef<'_>, &candle_core::Layout))],
    ) -> Result<()> {
        let weights: Arc<[F]> = gradients.iter().map(|(weight, _)| F::of(*weight)).collect();
        let mut slots: Vec<&'a mut [F]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
        let mut gradients = gradients
            .iter()
            .map(|(_, (storage, layout))| elements(storage, layout))
            .collect::<Result<Vec<_>>>()?;
        while !values.is_empty() {
            let owner = self.blocks_dealt / self.blocks_each;
            let room = (owner + 1) * self.blocks_each - self.blocks_dealt;
            let len = (room * BLOCK).min(values.len());
            let piece = Piece {
                values: values.split_off_mut(..len).unwrap_or_default(),
                slots: slots.iter_mut().map(|slot| slot.split_off_mut(..len).unwrap_or_default()).collect(),
                gradients: gradients.iter_mut().map(|g| g.split_off(..len).unwrap_or_default()).collect(),
                weights: weights.clone(),
                reduced: Vec::new(),
            };
            self.pieces[owner].push(F::piece(piece));
            self.blocks_dealt += len.div_ceil(BLOCK);
        }
        Ok(())
    }

    /// Runs `work` on each worker with its pieces. Results are in the order of the parameters.
    fn each<T: Send>(
        &mut self,
        workers: &Workers<'_>,
        work: impl Fn(&mut [AnyPiece<'a>]) -> Result<T, UpdateError> + Sync,
    ) -> Result<Vec<T>> {
        let cells: Vec<_> = self.pieces.iter_mut().map(|pieces| Mutex::new((pieces, None))).collect();
        (workers.broadcast)(&|worker| {
            if let Some(cell) = cells.get(worker) {
                let (pieces, result) = &mut *lock(cell);
                *result = Some(work(pieces));
            }
        });
        let results =
            cells.into_iter().map(|cell| cell.into_inner().unwrap_or_else(PoisonError::into_inner).1);
        Ok(results.flatten().collect::<Result<Vec<T>, UpdateError>>()?)
    }
}

fn elements<'a, F: Number>(storage: &'a Storage, layout: &candle_core::Layout) -> Result<&'a [F]> {
    let (start, end) = contiguous_range(layout)?;
    match storage {
        Storage::Cpu(storage) => F::slice(storage).map(|all| &all[start..end]),
        _ => None,
    }
    .ok_or_else(|| Error::invalid("minimize", "a gradient is of another dtype or device than its variable"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AnyPiece<'_> {
    fn reduce(&mut self) -> Vec<f64> {
        match self {
            AnyPiece::F32(piece) => piece.reduce(),
            AnyPiece::F64(piece) => piece.reduce(),
        }
    }

    fn update(&mut self, rule: &dyn Rule, step: Step, factor: f64) -> Result<(), UpdateError> {
        match self {
            AnyPiece::F32(piece) => piece.update(rule, step, factor),
            AnyPiece::F64(piece) => piece.update(rule, step, factor),
        }
    }
}

impl<F: Number> Piece<'_, F> {
    /// Reduces the whole piece and keeps it; gives the sum of squares of each block.
    fn reduce(&mut self) -> Vec<f64> {
        self.reduced = vec![F::of(0.); self.values.len()];
        let mut squares = Vec::with_capacity(self.reduced.len().div_ceil(BLOCK));
        let mut start = 0;
        for out in self.reduced.chunks_mut(BLOCK) {
            reduce_block(&self.gradients, &self.weights, start, out);
            squares.push(out.iter().map(|x| x.square()).sum());
            start += out.len();
        }
        squares
    }

    /// Reduces, where that has not been done, and applies the rule, block by block.
    fn update(&mut self, rule: &dyn Rule, step: Step, factor: f64) -> Result<(), UpdateError> {
        let mut scratch = [F::of(0.); BLOCK];
        let factor = F::of(factor);
        let alone = self.gradients.len() == 1 && self.weights[0] == F::of(1.);
        let kept = self.slots.len().min(4);
        let mut start = 0;
        while start < self.values.len() {
            let end = self.values.len().min(start + BLOCK);
            let gradient = if !self.reduced.is_empty() {
                for (out, x) in scratch.iter_mut().zip(&self.reduced[start..end]) {
                    *out = x.times(factor);
                }
                &scratch[..end - start]
            } else if alone {
                &self.gradients[0][start..end]
            } else {
                reduce_block(&self.gradients, &self.weights, start, &mut scratch[..end - start]);
                &scratch[..end - start]
            };
            // Rules keep three slots at most; an array spares an allocation for each block.
            let mut slots: [&mut [F]; 4] = Default::default();
            for (block, slot) in slots.iter_mut().zip(&mut self.slots) {
                *block = &mut slot[start..end];
            }
            rule.update(step, &mut self.values[start..end], gradient, &mut slots[..kept])?;
            start = end;
        }
        Ok(())
    }
}

/// The weighted sum over replicas, in the order of replica ids, of one block.
fn reduce_block<F: Number>(gradients: &[&[F]], weights: &[F], start: usize, out: &mut [F]) {
    let end = start + out.len();
    // A stack of slices would need a bound on the number of replicas.
    match gradients {
        [a] => fold_scaled(&[&a[start..end]], weights, out),
        [a, b] => fold_scaled(&[&a[start..end], &b[start..end]], weights, out),
        many => {
            let blocks: Vec<&[F]> = many.iter().map(|g| &g[start..end]).collect();
            fold_scaled(&blocks, weights, out);
        }
    }
}
