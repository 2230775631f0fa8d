//! Custom rules that need complete rows or variables, and slots with other shapes than the variable.

use crate::optimizer::mirrored;
use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::optimizer::rules::{
    self, InvalidHyperparameter, Rule, SlotShape, SlotSpec, Step, Unit, UpdateError,
};
use distribute::{OneDeviceStrategy, Result, prelude::*};
use distribute_testing::watched;

/// A rule that subtracts the mean of each unit's gradient, times the rate, and counts the updates of each row in a
/// slot.
#[derive(Clone, Debug)]
struct MeanOfUnit {
    unit: Unit,
    counts: SlotShape,
    only_computes: bool,
}

impl Rule for MeanOfUnit {
    fn name(&self) -> &'static str {
        "mean_of_unit"
    }

    fn slots(&self) -> Vec<SlotSpec> {
        vec![SlotSpec::zeros("counts").with_shape(self.counts)]
    }

    fn unit(&self) -> Unit {
        self.unit
    }

    fn validate(&self) -> std::result::Result<(), InvalidHyperparameter> {
        Ok(())
    }

    fn moves_absent_rows(&self) -> bool {
        self.unit == Unit::Variable
    }

    fn only_computes(&self) -> bool {
        self.only_computes
    }

    fn update_shaped_f32(
        &self,
        at: Step,
        dims: &[usize],
        var: &mut [f32],
        grad: &[f32],
        slots: &mut [&mut [f32]],
    ) -> std::result::Result<(), UpdateError> {
        let row_len: usize = dims.iter().skip(1).product();
        let len = if self.unit == Unit::Row { row_len } else { var.len() };
        let rate = at.learning_rate() as f32;
        for (var, grad) in var.chunks_mut(len).zip(grad.chunks(len)) {
            let mean = grad.iter().sum::<f32>() / len as f32;
            var.iter_mut().for_each(|var| *var -= rate * mean);
        }
        slots[0].iter_mut().for_each(|count| *count += 1.);
        Ok(())
    }

    fn update_rows_f32(
        &self,
        at: Step,
        var: &mut [f32],
        row_len: usize,
        rows: &[usize],
        grads: &[f32],
        slots: &mut [&mut [f32]],
    ) -> std::result::Result<(), UpdateError> {
        for (row, grad) in rows.iter().zip(grads.chunks(row_len)) {
            let slot = &mut slots[0][*row..=*row];
            self.update_shaped_f32(
                at,
                &[1, row_len],
                &mut var[row * row_len..][..row_len],
                grad,
                &mut [slot],
            )?;
        }
        Ok(())
    }

    fn update_f32(
        &self,
        _: Step,
        _: &mut [f32],
        _: &[f32],
        _: &mut [&mut [f32]],
    ) -> std::result::Result<(), UpdateError> {
        Err(UpdateError::NeedsShape { rule: self.name(), unit: self.unit })
    }

    fn update_f64(
        &self,
        _: Step,
        _: &mut [f64],
        _: &[f64],
        _: &mut [&mut [f64]],
    ) -> std::result::Result<(), UpdateError> {
        Err(UpdateError::NeedsShape { rule: self.name(), unit: self.unit })
    }

    fn update_rows_f64(
        &self,
        _: Step,
        _: &mut [f64],
        _: usize,
        _: &[usize],
        _: &[f64],
        _: &mut [&mut [f64]],
    ) -> std::result::Result<(), UpdateError> {
        Err(UpdateError::NeedsShape { rule: self.name(), unit: self.unit })
    }
}

fn of_rows() -> MeanOfUnit {
    MeanOfUnit { unit: Unit::Row, counts: SlotShape::Rows, only_computes: true }
}

/// The weights of a variable, and the shape and elements of its slot.
type Trained = (Vec<f32>, Vec<usize>, Vec<f32>);

/// Returns the results for a table, a vector and a scalar after two steps with a dense gradient.
fn trained(strategy: &Strategy, rule: MeanOfUnit) -> Result<Vec<Trained>> {
    const NAMES: [&str; 3] = ["table", "vector", "scalar"];
    let model = strategy.replicate(|vb: VarBuilder| {
        Ok::<_, candle_core::Error>((
            vb.get_with_hints((3000, 2), "table", Init::Const(0.))?,
            vb.get_with_hints(2, "vector", Init::Const(0.))?,
            vb.get_with_hints((), "scalar", Init::Const(0.))?,
        ))
    })?;
    let optimizer = Optimizer::with_rule(rule, &model.variables, 1.)?;
    for _ in 0..2 {
        strategy.run(&model, |ctx, (table, vector, scalar)| {
            let weights = Tensor::arange(0f32, 6000., &Device::Cpu)?.reshape((3000, 2))?;
            let sums = ((table * weights)?.sum_all()?
                + (vector * Tensor::new(&[1f32, 3.], &Device::Cpu)?)?.sum_all()?)?;
            optimizer.minimize(ctx, (sums + scalar * 5.)?, 1)
        })?;
    }
    let one = |name: &str| {
        let slot = optimizer.slot(name, "counts")?;
        let flat = |tensor: Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        Ok((flat(model.variables.get(name)?)?, slot.dims().to_vec(), flat(slot)?))
    };
    NAMES.iter().map(|name| one(name)).collect()
}

#[test]
fn a_custom_rule_of_rows_gets_complete_rows_and_one_of_variables_all_of_them() {
    watched(|| {
        for n in [1, 2, 4] {
            let all = trained(&mirrored(n), of_rows()).unwrap();
            let (table, vector, scalar) = (&all[0], &all[1], &all[2]);
            // Row i has the gradients 2i and 2i + 1.
            let expected = (0..6000).map(|i| -2. * ((i / 2 * 2) as f32 + 0.5));
            assert!(table.0.iter().copied().eq(expected), "{n} replicas");
            assert_eq!((&table.1[..], &table.2[..]), (&[3000][..], &[2.; 3000][..]));
            assert_eq!(*vector, (vec![-2., -6.], vec![2], vec![2.; 2]));
            assert_eq!(*scalar, (vec![-10.], vec![], vec![2.]));

            let rule =
                MeanOfUnit { unit: Unit::Variable, counts: SlotShape::ColumnFactor, only_computes: true };
            let all = trained(&mirrored(n), rule).unwrap();
            assert_eq!(all[0].1, [2]);
            assert_eq!(all[1], (vec![-4.; 2], vec![0], vec![]));
            assert_eq!(all[2], (vec![-10.], vec![0], vec![]));
        }
    });
}

#[test]
fn rules_that_do_not_fit_are_refused_with_what_to_do() {
    let strategy = OneDeviceStrategy::new("cpu:0").unwrap();
    let model = strategy.replicate(|vb: VarBuilder| vb.get_with_hints((3, 2), "w", Init::Const(1.))).unwrap();
    let refused = |rule: MeanOfUnit, text: &str| {
        let error = Optimizer::with_rule(rule, &model.variables, 1.).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    refused(MeanOfUnit { only_computes: false, ..of_rows() }, "return true from only_computes");
    refused(MeanOfUnit { unit: Unit::Element, ..of_rows() }, "return a larger unit");
    refused(MeanOfUnit { counts: SlotShape::ColumnFactor, ..of_rows() }, "return a larger unit");
    let optimizer = Optimizer::with_rule(of_rows(), &model.variables, 1.).unwrap();
    let other = MeanOfUnit { unit: Unit::Variable, ..of_rows() };
    let error = optimizer.with_rule_for(|_| true, other).unwrap_err().to_string();
    assert!(error.contains("train with two optimizers"), "{error}");
    // That servers refuse custom rules, and restores other shapes, is tested with servers and checkpoints.
    let rows = rules::RowAdagrad::default();
    assert_eq!((rows.unit(), rows.slots()[0].shape), (Unit::Row, SlotShape::Rows));
}

/// Checks a checkpoint of Adagrad, whose slot has the same name but another shape.
#[test]
fn slots_of_another_shape_are_refused_and_change_nothing() {
    use distribute::checkpoint::Checkpoint;
    let strategy = OneDeviceStrategy::new("cpu:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let model = strategy.replicate(|vb: VarBuilder| vb.get_with_hints((3, 2), "w", Init::Const(1.))).unwrap();
    let rows = Optimizer::with_rule(of_rows(), &model.variables, 1.).unwrap();
    let state = Checkpoint::new().part("optimizer", &rows);
    state.save(folder.path().join("rows")).unwrap();
    let all = MeanOfUnit { counts: SlotShape::Variable, ..of_rows() };
    let all = Optimizer::with_rule(all, &model.variables, 1.).unwrap();
    let error = Checkpoint::new().part("optimizer", &all).restore(folder.path().join("rows")).unwrap_err();
    assert!(error.to_string().contains("[3], but here it is"), "{error}");
    assert_eq!(all.slot("w", "counts").unwrap().dtype(), DType::F32);
}
