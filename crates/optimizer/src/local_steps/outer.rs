//! The new weights of an outer step, as pure functions.

use distribute_base::internal::Number;
use distribute_optim::{Momentum, RuleExt, Step, UpdateError};

/// Writes the weights `before` minus the mean of what workers have changed, with the opposite sign.
pub(super) fn change<F: Number>(weights: &mut [F], before: &[F], changed: &[F]) {
    for ((weight, before), changed) in weights.iter_mut().zip(before).zip(changed) {
        *weight = *before - *changed;
    }
}

/// Returns what local steps have changed, with the opposite sign. It is zero for equal numbers, also for infinite ones.
pub(super) fn changed<F: Number>(before: &[F], after: &[F]) -> impl ExactSizeIterator<Item = F> {
    let changed = |(before, after): (&F, &F)| if before == after { F::of(0.) } else { *before - *after };
    before.iter().zip(after).map(changed)
}

/// Divides a sum over the workers by their number. The division is exact if the number is a power of two.
pub(super) fn divide<F: Number>(sum: &mut [F], workers: usize) {
    let workers = F::of(workers as f64);
    for x in sum {
        let mean = *x / workers;
        *x = mean;
    }
}

/// Updates `weights` by a step of SGD with Nesterov momentum. `decay` is the fraction of `momentum` that is kept.
pub(super) fn descend<F: Number>(
    weights: &mut [F],
    gradient: &[F],
    momentum: &mut [F],
    learning_rate: f64,
    decay: f64,
) -> Result<(), UpdateError> {
    // The rule does not depend on the number of the step.
    Momentum::nesterov(decay).update(Step::after(0, learning_rate), weights, gradient, &mut [momentum])
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-98
    #[test]
    fn diloco_by_hand() {
        let (before, after) = ([4f64, 1.], [[3., 1.], [1., 1.]]);
        let mut gradient: Vec<f64> = changed(&before, &after[0]).collect();
        let other = changed(&before, &after[1]);
        gradient.iter_mut().zip(other).for_each(|(sum, x)| *sum += x);
        divide(&mut gradient, 2);
        assert_eq!(gradient, [2., 0.]);
        let (mut weights, mut momentum) = (before, [0., 8.]);
        descend(&mut weights, &gradient, &mut momentum, 0.5, 0.5).unwrap();
        // momentum = 0.5 · before + gradient; weight − 0.5 · (gradient + 0.5 · momentum)
        assert_eq!((weights, momentum), ([4. - 0.5 * 3., 1. - 0.5 * 2.], [2., 4.]));
    }

    #[test]
    fn a_weight_that_no_worker_has_changed_has_no_gradient() {
        for workers in 1..9 {
            let weights = [0.1f32, 1e30, -3e-39, f32::INFINITY, f32::NEG_INFINITY];
            let mut gradient: Vec<f32> = changed(&weights, &weights).collect();
            divide(&mut gradient, workers);
            assert_eq!(gradient, [0.; 5]);
            let mut after = [7f32; 5];
            change(&mut after, &weights, &gradient);
            assert_eq!(after, weights);
        }
    }
}
