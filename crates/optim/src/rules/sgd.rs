//! Plain gradient descent.

use crate::{Float, Formula, RuleSpec, Sgd, SlotSpec, Step};

impl Formula for Sgd {
    type Slots<T: Copy> = [T; 0];

    fn label(&self) -> &'static str {
        "sgd"
    }

    fn layout(&self) -> [SlotSpec; 0] {
        []
    }

    fn only_computes(&self) -> bool {
        true
    }

    fn spec(&self) -> Option<RuleSpec> {
        Some(RuleSpec::Sgd(*self))
    }

    fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 0]) -> (F, [F; 0]) {
        let lr = F::from_f64(at.learning_rate());
        move |var, grad, []| (var - lr * grad, [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleExt;

    #[test]
    fn by_hand() {
        let mut var = [1.0f32, -2.0];
        Sgd.update(Step::after(0, 0.5), &mut var, &[0.5, 3.0], &mut []).unwrap();
        assert_eq!(var, [0.75, -3.5]);
        Sgd.update(Step::after(1, 0.25), &mut var, &[-1.0, 2.0], &mut []).unwrap();
        assert_eq!(var, [1.0, -4.0]);
        Sgd.update_rows(Step::after(2, 1.0), &mut var, 1, &[1], &[-4.5], &mut []).unwrap();
        assert_eq!(var, [1.0, 0.5]);
    }
}
