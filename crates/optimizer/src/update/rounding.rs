//! The rounding of mirrored tables that are stored in bf16, after an update.
//!
//! Tables on servers or on workers round their values there, by the same function.

use crate::gradients::row_len;
use crate::groups::Rules;
use crate::parameters::Parameters;
use crate::reduce::operands::VariableOperands;
use crate::update::touched::Touched;
use candle_core::Var;
use distribute_base::Result;
use distribute_base::internal::candle_write;

/// Returns the elements of a variable that change in this step.
pub(crate) fn touched(variable: &VariableOperands<'_>, rules: &Rules<'_>) -> Touched {
    let every_row = rules.visits_every_row(variable.index);
    match variable.rows().filter(|_| !every_row) {
        Some(rows) => Touched::Rows(rows, row_len(variable.variable)),
        None => Touched::All,
    }
}

/// Rounds the values of variables that have been updated and are stored in bf16.
///
/// # Errors
/// Returns candle's error if a variable cannot be written.
pub(crate) fn round_updated(
    parameters: &Parameters,
    rules: &Rules<'_>,
    variables: &[VariableOperands<'_>],
) -> Result<()> {
    let rounded = variables.iter().filter(|variable| parameters.rounding[variable.index].is_some());
    for variable in rounded {
        round(parameters, rules, variable.index, &touched(variable, rules))?;
    }
    Ok(())
}

// INV-95
/// Rounds the updated elements of a variable, if it is stored in bf16.
///
/// # Errors
/// Returns candle's error if the variable cannot be written.
pub(crate) fn round(
    parameters: &Parameters,
    rules: &Rules<'_>,
    number: usize,
    touched: &Touched,
) -> Result<()> {
    let Some(rounding) = parameters.rounding[number] else { return Ok(()) };
    let (_, step) = rules.of(number);
    let (rounding, variable): (_, &Var) = (rounding.of_step(step), &parameters.variables[number].1);
    let width = row_len(variable);
    candle_write::change_f32(variable, |values| {
        let round = |row: usize| rounding.round_row(row as u64, &mut values[row * width..(row + 1) * width]);
        match touched {
            Touched::All => (0..variable.dims().first().copied().unwrap_or(0)).for_each(round),
            Touched::Rows(rows, _) => rows.iter().copied().for_each(round),
        }
    })
}
