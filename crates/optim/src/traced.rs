//! A number type that records operations. Calling a formula with such numbers results in its [`Program`].

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

use distribute_tensor::kernel::Sum;

use crate::float::{Sealed, Slices};
use crate::program::{Operation, Program};
use crate::sweep::Slots;
use crate::{Float, UpdateError};

thread_local! {
    /// The operations recorded so far.
    static TAPE: RefCell<Vec<Operation>> = const { RefCell::new(Vec::new()) };
    /// Whether the kernel has done something that a program cannot contain: compared numbers, converted them to `f64`,
    /// or used an exponent that is not a constant.
    static LOST: Cell<bool> = const { Cell::new(false) };
}

/// Returns the operations of a kernel, (variable, gradient, slots) → (variable, slots), including those that compute
/// its coefficients.
///
/// Returns `None` if the kernel compares numbers or converts them to `f64`, or if an exponent is not a constant.
pub(crate) fn trace<S: Slots<Traced>>(
    kernel: impl FnOnce(Traced, Traced, S) -> (Traced, S),
) -> Option<Program> {
    TAPE.take();
    LOST.set(false);
    let input = |number| write(Operation::Input(number));
    let (var, grad) = (input(0), input(1));
    let slots = S::of(|slot| input(2 + slot));
    let (var, slots) = kernel(var, grad, slots);
    let outputs = std::iter::once(var).chain(slots.into_vec()).map(Traced::at).collect();
    let operations = TAPE.take();
    (!LOST.get()).then_some(Program { operations, outputs })
}

/// The result of an operation, as its position on the tape. `None` is the number 0.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traced(Option<usize>);

fn write(operation: Operation) -> Traced {
    TAPE.with_borrow_mut(|tape| {
        tape.push(operation);
        Traced(Some(tape.len() - 1))
    })
}

impl Traced {
    /// Returns the position of the result. If this is the number 0 without an operation, a constant is recorded
    /// first.
    fn at(self) -> usize {
        self.0.or_else(|| write(Operation::Constant(0.)).0).unwrap_or_default()
    }
}

macro_rules! binary {
    ($($trait:ident $method:ident,)*) => {$(
        impl $trait for Traced {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                let (a, b) = (self.at(), other.at());
                write(Operation::$trait(a, b))
            }
        }
    )*};
}
binary! { Add add, Sub sub, Mul mul, Div div, }

impl AddAssign for Traced {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl PartialEq for Traced {
    fn eq(&self, _: &Self) -> bool {
        LOST.set(true);
        false
    }
}

impl PartialOrd for Traced {
    fn partial_cmp(&self, _: &Self) -> Option<Ordering> {
        LOST.set(true);
        None
    }
}

impl Sum for Traced {
    const ZERO: Self = Traced(None);

    fn plus(self, other: Self) -> Self {
        self + other
    }
}

impl Sealed for Traced {}

impl Float for Traced {
    fn from_f64(value: f64) -> Self {
        write(Operation::Constant(value))
    }

    fn widened(self) -> f64 {
        LOST.set(true);
        0.0
    }

    fn sqrt(self) -> Self {
        let a = self.at();
        write(Operation::Sqrt(a))
    }

    fn powf(self, exponent: Self) -> Self {
        let (a, b) = (self.at(), exponent.at());
        // Tensors only support a constant exponent.
        if !TAPE.with_borrow(|tape| matches!(tape[b], Operation::Constant(_))) {
            LOST.set(true);
        }
        write(Operation::Pow(a, b))
    }

    fn abs(self) -> Self {
        let a = self.at();
        write(Operation::Abs(a))
    }

    fn copysign(self, sign: Self) -> Self {
        let (a, b) = (self.at(), sign.at());
        write(Operation::CopySign(a, b))
    }

    fn select_at_most(self, bound: Self, then: Self, otherwise: Self) -> Self {
        let (value, bound) = (self.at(), bound.at());
        let (then, otherwise) = (then.at(), otherwise.at());
        write(Operation::Select { value, bound, then, otherwise })
    }

    fn by_type(
        _: Slices<'_, '_, Self>,
        _: impl FnOnce(Slices<'_, '_, f32>) -> Result<(), UpdateError>,
        _: impl FnOnce(Slices<'_, '_, f64>) -> Result<(), UpdateError>,
    ) -> Result<(), UpdateError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Adagrad, Adam, AdamW, Averaged, Formula, Ftrl, Lion, Momentum, NAdam, RmsProp, Rule, RuleExt, Sgd,
        SlotSpec, Step,
    };
    use std::sync::Arc;

    fn same_as_on_slices(rule: &dyn Rule) {
        for grad in [0., 0.25, -3., 1e-9, 1e9, f64::NAN] {
            for finished in [0, 1, 999] {
                let at = Step::after(finished, 0.013);
                let program = rule.program(at).unwrap().unwrap();
                let mut var = [0.7f64];
                let mut slots: Vec<[f64; 1]> =
                    rule.slots().iter().map(|slot| [slot.initial + 0.31]).collect();
                let inputs: Vec<f64> = [var[0], grad].into_iter().chain(slots.iter().map(|s| s[0])).collect();
                let mut views: Vec<&mut [f64]> = slots.iter_mut().map(|slot| &mut slot[..]).collect();
                rule.update(at, &mut var, &[grad], &mut views).unwrap();
                let expected: Vec<u64> =
                    var.iter().chain(slots.iter().flatten()).map(|x| x.to_bits()).collect();
                let made = program.of_element(&inputs).unwrap();
                let made: Vec<u64> = made.iter().map(|x| x.to_bits()).collect();
                let nan = |bits: &u64| f64::from_bits(*bits).is_nan();
                let same = made.iter().zip(&expected).all(|(a, b)| a == b || nan(a) && nan(b));
                assert!(
                    same && made.len() == expected.len(),
                    "{rule:?}, gradient {grad}: {made:x?} {expected:x?}"
                );
            }
        }
    }

    #[test]
    fn programs_have_the_bits_of_updates_of_slices() {
        same_as_on_slices(&Sgd);
        same_as_on_slices(&Momentum::new(0.9));
        same_as_on_slices(&Momentum::nesterov(0.9));
        same_as_on_slices(&Adagrad::default());
        same_as_on_slices(&Adam::default());
        same_as_on_slices(&AdamW::default());
        same_as_on_slices(&RmsProp { momentum: 0.5, ..RmsProp::default() });
        same_as_on_slices(&Ftrl { l1: 0.1, l2: 0.2, l2_shrinkage: 0.3, ..Ftrl::default() });
        same_as_on_slices(&Ftrl { lr_power: -0.7, ..Ftrl::default() });
        same_as_on_slices(&NAdam::default());
        same_as_on_slices(&Lion { weight_decay: 0.1, ..Lion::default() });
        same_as_on_slices(&Averaged { rule: Arc::new(Adam::default()), momentum: 0.9 });
        same_as_on_slices(&Averaged { rule: Arc::new(Sgd), momentum: 0.9 });
    }

    #[derive(Debug)]
    struct Custom {
        branches: bool,
    }

    impl Formula for Custom {
        type Slots<T: Copy> = [T; 1];
        fn label(&self) -> &'static str {
            "custom"
        }
        fn layout(&self) -> [SlotSpec; 1] {
            [SlotSpec::zeros("seen")]
        }
        fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 1]) -> (F, [F; 1]) {
            let rate = F::from_f64(at.learning_rate());
            move |var, grad, [seen]| {
                if self.branches && grad > seen {
                    return (var, [F::ZERO]);
                }
                let mut sum = F::ZERO;
                sum += grad;
                (var - rate.copysign(sum), [F::ZERO])
            }
        }
    }

    #[test]
    fn a_rule_of_ones_own_is_traced_unless_it_looks_at_elements() {
        same_as_on_slices(&Custom { branches: false });
        assert_eq!(Custom { branches: true }.program(Step::after(0, 0.1)), Ok(None));
        // A lost recording does not affect the next one.
        same_as_on_slices(&Custom { branches: false });
    }

    #[test]
    fn a_learning_rate_that_the_rule_cannot_take_is_refused() {
        assert!(matches!(Ftrl::default().program(Step::after(0, 0.)), Err(UpdateError::LearningRate(_))));
    }
}
