//! The pass over all parameters: every replica reduces and updates the range that it owns.

use super::gradients::Contribution;
use super::locked::{Elements, contiguous_range, with_elements};
use super::owners::{Cut, Owners};
use crate::{Error, Result};
use candle_core::{CpuStorage, DType, Layout, Storage, StorageRef, Tensor, Var};
use distribute_optim::{Float, Rule, RuleExt, SlotSpec, Step, UpdateError};
use distribute_tensor::kernel::{Scale, fold_scaled};
use std::sync::Arc;

/// Elements that are reduced and updated at a time: they fit the first-level cache with their slots. Ranges of
/// replicas end at multiples of it, so sums over blocks don't depend on the number of replicas.
pub(super) const BLOCK: usize = 2048;

/// How many values a rule may keep beside each element.
pub(super) const MOST_SLOTS: usize = 4;

/// Variables that are locked at a time: candle's calls nest, and each takes stack.
const LOCKED: usize = 64;

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
    fn gradient(gradient: Gradient<'_, Self>) -> Any<Gradient<'_, f32>, Gradient<'_, f64>>;
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
            fn gradient(gradient: Gradient<'_, Self>) -> Any<Gradient<'_, f32>, Gradient<'_, f64>> {
                Any::$variant(gradient)
            }
        }
    };
}
number!(f32, F32);
number!(f64, F64);

/// Something of one of the two dtypes that optimizers train.
enum Any<A, B> {
    F32(A),
    F64(B),
}

impl<A: Cut, B: Cut> Cut for Any<A, B> {
    fn len(&self) -> usize {
        match self {
            Any::F32(x) => x.len(),
            Any::F64(x) => x.len(),
        }
    }
    fn cut(&mut self, len: usize) -> Self {
        match self {
            Any::F32(x) => Any::F32(x.cut(len)),
            Any::F64(x) => Any::F64(x.cut(len)),
        }
    }
}

/// The gradients of a stretch of a variable on the replicas that have one, and their weights.
struct Gradient<'a, F> {
    of_replicas: Vec<&'a [F]>,
    weights: Arc<[F]>,
}

impl<F> Cut for Gradient<'_, F> {
    fn len(&self) -> usize {
        self.of_replicas.first().map_or(0, |gradient| gradient.len())
    }
    fn cut(&mut self, len: usize) -> Self {
        let of_replicas =
            self.of_replicas.iter_mut().map(|g| g.split_off(..len).unwrap_or_default()).collect();
        Self { of_replicas, weights: self.weights.clone() }
    }
}

/// A stretch of a variable, what is kept beside it, and its gradients.
struct Piece<'a, F> {
    values: &'a mut [F],
    slots: Vec<&'a mut [F]>,
    gradient: Gradient<'a, F>,
}

impl<F> Cut for Piece<'_, F> {
    fn len(&self) -> usize {
        self.values.len()
    }
    fn cut(&mut self, len: usize) -> Self {
        Self {
            values: self.values.split_off_mut(..len).unwrap_or_default(),
            slots: self.slots.iter_mut().map(|slot| slot.split_off_mut(..len).unwrap_or_default()).collect(),
            gradient: self.gradient.cut(len),
        }
    }
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
    // Read guards of all gradients, for as long as they are borrowed.
    let contributing: Vec<_> = all.iter().zip(weights).collect();
    let guards: Vec<Vec<(f64, (StorageRef<'_>, &Layout))>> = (0..variables.len())
        .map(|v| {
            let of_replica = contributing.iter();
            of_replica
                .filter_map(|(c, w)| Some((**w, c.gradients[v].as_ref()?.storage_and_layout())))
                .collect()
        })
        .collect();
    let mut active: Vec<_> =
        variables.iter().zip(slots).zip(&guards).filter(|(_, guards)| !guards.is_empty()).collect();
    if active.is_empty() {
        return Err(Error::invalid(
            "minimize",
            "the loss depends on none of this optimizer's variables; \
             compute it with the model whose variables were given to the optimizer, and do not detach it",
        ));
    }

    let factor = match clip {
        None => 1.,
        Some(max_norm) => {
            let gradients = active.iter().map(|((variable, _), guards)| gradient(&variable.1, guards));
            let owners = Owners::deal(workers, gradients.collect::<Result<_>>()?);
            let squares = owners
                .each(workers, |gradients| Ok(gradients.iter().flat_map(squares).collect::<Vec<_>>()))?;
            let norm = squares.into_iter().flatten().sum::<f64>().sqrt();
            if norm > max_norm { max_norm / norm } else { 1. }
        }
    };

    for active in active.chunks_mut(LOCKED) {
        let tensors: Vec<&Var> = active.iter().map(|((variable, _), _)| &variable.1).collect();
        with_elements(&tensors, |elements| {
            let pieces = elements.into_iter().zip(active).map(|(values, ((variable, slots), guards))| {
                let gradient = gradient(&variable.1, guards)?;
                match (values, &mut **slots, gradient) {
                    (Elements::F32(values), Slots::F32(slots), Any::F32(gradient)) => Ok(Any::F32(Piece {
                        values,
                        slots: slots.iter_mut().map(Vec::as_mut_slice).collect(),
                        gradient,
                    })),
                    (Elements::F64(values), Slots::F64(slots), Any::F64(gradient)) => Ok(Any::F64(Piece {
                        values,
                        slots: slots.iter_mut().map(Vec::as_mut_slice).collect(),
                        gradient,
                    })),
                    _ => Err(Error::invalid(
                        "minimize",
                        format!("variable {} has changed its dtype", variable.0),
                    )),
                }
            });
            let owners = Owners::deal(workers, pieces.collect::<Result<Vec<_>>>()?);
            owners.each(workers, |pieces| {
                pieces.into_iter().try_for_each(|piece| match piece {
                    Any::F32(piece) => Ok(piece.update(rule, step, factor)?),
                    Any::F64(piece) => Ok(piece.update(rule, step, factor)?),
                })
            })?;
            Ok(())
        })?;
    }
    Ok(())
}

/// A whole variable's gradients.
fn gradient<'a>(
    variable: &Var,
    guards: &'a [(f64, (StorageRef<'_>, &Layout))],
) -> Result<Any<Gradient<'a, f32>, Gradient<'a, f64>>> {
    fn of<'a, F: Number>(
        guards: &'a [(f64, (StorageRef<'_>, &Layout))],
    ) -> Result<Any<Gradient<'a, f32>, Gradient<'a, f64>>> {
        let of_replicas = guards.iter().map(|(_, (storage, layout))| elements::<F>(storage, layout));
        let weights = guards.iter().map(|(weight, _)| F::of(*weight)).collect();
        Ok(F::gradient(Gradient { of_replicas: of_replicas.collect::<Result<_>>()?, weights }))
    }
    match variable.dtype() {
        DType::F32 => of::<f32>(guards),
        _ => of::<f64>(guards),
    }
}

fn elements<'a, F: Number>(storage: &'a Storage, layout: &Layout) -> Result<&'a [F]> {
    let (start, end) = contiguous_range(layout)?;
    match storage {
        Storage::Cpu(storage) => F::slice(storage).map(|all| &all[start..end]),
        _ => None,
    }
    .ok_or_else(|| Error::invalid("minimize", "a gradient is of another dtype or device than its variable"))
}

/// The sum of squares of each block of a reduced gradient.
fn squares(gradient: &Any<Gradient<'_, f32>, Gradient<'_, f64>>) -> Vec<f64> {
    match gradient {
        Any::F32(gradient) => gradient.squares(),
        Any::F64(gradient) => gradient.squares(),
    }
}

impl<F: Number> Gradient<'_, F> {
    fn squares(&self) -> Vec<f64> {
        let mut scratch = [F::of(0.); BLOCK];
        let starts = (0..self.len()).step_by(BLOCK);
        let square = |start| {
            let block = &mut scratch[..BLOCK.min(self.len() - start)];
            self.reduce(start, block);
            block.iter().map(|x| x.square()).sum()
        };
        starts.map(square).collect()
    }

    /// The weighted sum over replicas, in the order of replica ids, of the block that begins at `start`.
    fn reduce(&self, start: usize, out: &mut [F]) {
        let end = start + out.len();
        // A stack of slices would need a bound on the number of replicas.
        match self.of_replicas.as_slice() {
            [a] => fold_scaled(&[&a[start..end]], &self.weights, out),
            [a, b] => fold_scaled(&[&a[start..end], &b[start..end]], &self.weights, out),
            many => {
                let blocks: Vec<&[F]> = many.iter().map(|g| &g[start..end]).collect();
                fold_scaled(&blocks, &self.weights, out);
            }
        }
    }

    /// Whether there is nothing to reduce.
    fn is_one(&self) -> bool {
        self.of_replicas.len() == 1 && self.weights[0] == F::of(1.)
    }
}

impl<F: Number> Piece<'_, F> {
    /// Reduces the gradient and applies the rule, block by block.
    fn update(mut self, rule: &dyn Rule, step: Step, factor: f64) -> Result<(), UpdateError> {
        let mut scratch = [F::of(0.); BLOCK];
        let kept = self.slots.len().min(MOST_SLOTS);
        let mut start = 0;
        while start < self.values.len() {
            let end = self.values.len().min(start + BLOCK);
            let gradient = if factor == 1. && self.gradient.is_one() {
                &self.gradient.of_replicas[0][start..end]
            } else {
                let block = &mut scratch[..end - start];
                self.gradient.reduce(start, block);
                if factor != 1. {
                    block.iter_mut().for_each(|x| *x = x.times(F::of(factor)));
                }
                &*block
            };
            // `MOST_SLOTS` at most; an array spares an allocation for each block.
            let mut slots: [&mut [F]; MOST_SLOTS] = Default::default();
            for (block, slot) in slots.iter_mut().zip(&mut self.slots) {
                *block = &mut slot[start..end];
            }
            rule.update(step, &mut self.values[start..end], gradient, &mut slots[..kept])?;
            start = end;
        }
        Ok(())
    }
}
