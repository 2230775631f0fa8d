//! [`Push`]: the step of a gradient. A table that several workers train counts its own steps.

use distribute_optim::{Float, Step};
use std::sync::atomic::{AtomicU64, Ordering};

/// The options with which a gradient is applied: its step, and whether it is checked and counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Push {
    step: Step,
    finite: bool,
    counted: bool,
}

impl Push {
    /// Creates a push at the given step, with the step's learning rate. It accepts NaN and infinite values, and is not
    /// counted.
    pub fn at(step: Step) -> Self {
        Self { step, finite: false, counted: false }
    }

    /// Makes the push fail if the gradient contains a NaN or infinite value.
    pub fn finite(self) -> Self {
        Self { finite: true, ..self }
    }

    /// Makes the push count as a step of its table, for tables that several workers train. It is applied at the step
    /// after the last counted one, or at its own step if that is later. With one worker, that is always its own step.
    pub fn counted(self) -> Self {
        Self { counted: true, ..self }
    }

    /// Returns whether the push is counted.
    pub fn is_counted(&self) -> bool {
        self.counted
    }

    /// Returns the step, with its learning rate.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Returns whether gradients with NaN or infinite values are rejected.
    pub fn is_finite(&self) -> bool {
        self.finite
    }

    /// Returns the index and the value of the first element because of which the push is rejected, if there is one.
    pub(crate) fn refused<F: Float + Into<f64>>(&self, gradient: &[F]) -> Option<(usize, f64)> {
        // 0 times a finite number is 0, otherwise NaN. All elements are checked because this compiles to vector
        // instructions.
        let finite = || gradient.iter().fold(true, |all, x| all & (*x * F::ZERO == F::ZERO));
        if !self.finite || finite() {
            return None;
        }
        let mut wide = gradient.iter().map(|x| (*x).into()).enumerate();
        wide.find(|(_, x): &(usize, f64)| !x.is_finite())
    }
}

/// The number of the last counted step of a table.
#[derive(Debug, Default)]
pub struct Steps(AtomicU64);

impl Steps {
    /// Assigns a step to a push. A counted push gets the step after the last counted one, or its own step if that is
    /// later.
    pub(crate) fn of(&self, push: Push) -> Step {
        let step = push.step();
        if !push.is_counted() {
            return step;
        }
        let next = |last: u64| last.saturating_add(1).max(step.number());
        let last = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        Step::after(next(last.unwrap_or_else(|last| last)) - 1, step.learning_rate())
    }

    /// Takes back the step of a push that was rejected, unless another push was counted since.
    pub(crate) fn undo(&self, push: Push, step: Step) {
        if push.is_counted() {
            let number = step.number();
            // If another push was counted in the meantime, the number stays.
            let _ = self.0.compare_exchange(number, number - 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    pub(crate) fn last(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set_last(&self, last: u64) {
        self.0.store(last, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DynamicTable, Initializer, Table};
    use distribute_optim::Adam;
    use distribute_tensor::random::Distribution;
    use distribute_tensor::{DType, HostTensor};
    use std::sync::Arc;

    #[test]
    fn two_workers_train_with_the_bias_correction_of_all_steps() {
        let gradient = |step: u64| HostTensor::new(vec![step as f32 - 1.5; 2], [1, 2]).unwrap();
        let trained = |pushes: [Push; 4]| {
            let dense = Table::new("w", HostTensor::new(vec![1f32; 2], [1, 2]).unwrap()).unwrap();
            let ones = Initializer::new(Distribution::Constant(1.), 7, "ids");
            let ids = DynamicTable::new("ids", &[2], DType::F32, ones, Default::default()).unwrap();
            dense.set_rule(Arc::new(Adam::lazy())).unwrap();
            ids.set_rule(Arc::new(Adam::lazy())).unwrap();
            for (i, push) in (0..).zip(pushes) {
                if i % 2 == 0 {
                    dense.push(push, &gradient(i)).unwrap();
                } else {
                    dense.push_rows(push, &[0], &gradient(i)).unwrap();
                }
                ids.push_rows(push, &[0], &gradient(i)).unwrap();
            }
            (dense.read().unwrap().value, ids.read_rows(&[0]).unwrap())
        };
        let at = |finished| Push::at(Step::after(finished, 0.5));
        assert_eq!(trained([0, 0, 1, 1].map(|n| at(n).counted())), trained([0, 1, 2, 3].map(at)));
        assert_ne!(trained([0, 0, 1, 1].map(at)), trained([0, 1, 2, 3].map(at)));
    }

    #[test]
    fn a_refused_update_is_no_step() {
        let table = Table::new("w", HostTensor::vector(vec![1f32; 2])).unwrap();
        table.set_rule(Arc::new(Adam::default())).unwrap();
        let gradient = HostTensor::vector(vec![1f32; 2]);
        let push = |rate| table.push(Push::at(Step::after(4, rate)).counted(), &gradient);
        push(f64::NAN).unwrap_err();
        assert_eq!(table.steps.last(), 4);
        push(0.1).unwrap();
        assert_eq!(table.steps.last(), 5);
    }

    #[test]
    fn steps_of_several_workers_are_counted_together_and_those_of_one_are_its_own() {
        let steps = Steps::default();
        let number = |push: Push| steps.of(push).number();
        let at = |finished| Push::at(Step::after(finished, 0.5));
        // One worker, which has no gradient of the table in some steps.
        assert_eq!([0, 1, 4].map(|finished| number(at(finished).counted())), [1, 2, 5]);
        // Another worker, which has just begun.
        assert_eq!([0, 5, 1].map(|finished| number(at(finished).counted())), [6, 7, 8]);
        assert_eq!((number(at(0)), steps.last()), (1, 8));
        assert_eq!(steps.of(at(u64::MAX - 1).counted()).number(), u64::MAX);
        assert_eq!(steps.of(at(0).counted()), Step::after(u64::MAX - 1, 0.5));
    }
}
