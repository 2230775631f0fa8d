//! Custom rules whose state is sharded over workers.

use super::sharded::{WORLDS, large};
use super::training::{Plan, assert_trains_equally};
use distribute::optimizer::rules::{InvalidHyperparameter, Rule, SlotSpec, Step, Unit, UpdateError};
use distribute_testing::watched;

/// A rule that moves a variable by the mean of its gradient, divided by the number of updates so far. It needs the
/// complete variable, but declares that rows without a gradient do not change.
#[derive(Clone, Debug)]
struct MeanOfVariable;

impl Rule for MeanOfVariable {
    fn name(&self) -> &'static str {
        "mean_of_variable"
    }

    fn slots(&self) -> Vec<SlotSpec> {
        vec![SlotSpec::zeros("means")]
    }

    fn unit(&self) -> Unit {
        Unit::Variable
    }

    fn validate(&self) -> Result<(), InvalidHyperparameter> {
        Ok(())
    }

    fn moves_absent_rows(&self) -> bool {
        false
    }

    fn only_computes(&self) -> bool {
        true
    }

    fn update_shaped_f32(
        &self,
        at: Step,
        dims: &[usize],
        var: &mut [f32],
        grad: &[f32],
        slots: &mut [&mut [f32]],
    ) -> Result<(), UpdateError> {
        assert_eq!(dims.iter().product::<usize>(), var.len());
        let (rate, len) = (at.learning_rate() as f32, var.len().max(1) as f32);
        let mean = grad.iter().sum::<f32>() / len;
        for ((var, grad), means) in var.iter_mut().zip(grad).zip(slots[0].iter_mut()) {
            *means += mean;
            if *grad != 0. {
                *var -= rate * (grad - *means);
            }
        }
        Ok(())
    }

    fn update_f32(&self, _: Step, _: &mut [f32], _: &[f32], _: &mut [&mut [f32]]) -> Result<(), UpdateError> {
        Err(UpdateError::NeedsShape { rule: self.name(), unit: self.unit() })
    }

    fn update_f64(&self, _: Step, _: &mut [f64], _: &[f64], _: &mut [&mut [f64]]) -> Result<(), UpdateError> {
        Err(UpdateError::NeedsShape { rule: self.name(), unit: self.unit() })
    }

    fn update_rows_f32(
        &self,
        _: Step,
        _: &mut [f32],
        _: usize,
        _: &[usize],
        _: &[f32],
        _: &mut [&mut [f32]],
    ) -> Result<(), UpdateError> {
        Err(UpdateError::NeedsShape { rule: self.name(), unit: self.unit() })
    }

    fn update_rows_f64(
        &self,
        _: Step,
        _: &mut [f64],
        _: usize,
        _: &[usize],
        _: &[f64],
        _: &mut [&mut [f64]],
    ) -> Result<(), UpdateError> {
        Err(UpdateError::NeedsShape { rule: self.name(), unit: self.unit() })
    }
}

// INV-11, INV-40
#[test]
fn a_rule_of_complete_variables_gets_all_rows_of_a_table_even_if_rows_without_a_gradient_stay() {
    watched(|| {
        assert_trains_equally(large(), MeanOfVariable, WORLDS, false);
        assert_trains_equally(Plan { clip: true, ..large() }, MeanOfVariable, [(2, 2), (3, 1)], false);
    });
}
