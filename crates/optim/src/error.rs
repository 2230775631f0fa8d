//! Errors of updates and of hyper-parameters.

use crate::Unit;

/// An error in the arguments of an update. The update has changed nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError {
    /// The lengths of two arguments do not match, or the number of slots is wrong.
    #[error("{what}: expected a length of {expected}, found {found}")]
    LengthMismatch {
        /// The name of the argument with the wrong length.
        what: &'static str,
        /// The length that the other arguments require.
        expected: usize,
        /// The actual length of the argument.
        found: usize,
    },
    /// A row index is outside the table.
    #[error("row {row} is outside the table, which has {rows} rows: were global rows passed to a shard?")]
    RowOutOfRange {
        /// The row index.
        row: usize,
        /// The number of rows in the table.
        rows: usize,
    },
    /// A row index is negative.
    #[error("index {index} at position {position} is below zero: rows are counted from 0")]
    NegativeIndex {
        /// The negative index.
        index: i64,
        /// The position of the index in the list of indices.
        position: usize,
    },
    /// The rows are not strictly ascending. A row that occurs twice would be updated twice.
    #[error(
        "row {row} comes after row {previous}: rows must ascend and be unique; pass them through merge_rows"
    )]
    RowsOutOfOrder {
        /// The previous row.
        previous: usize,
        /// The row that should be greater than the previous one.
        row: usize,
    },
    /// The rule needs complete rows or variables, but was called for a range of elements or for rows.
    #[error(
        "rule {rule} needs complete {}: apply it to them by update_shaped",
        if *unit == Unit::Row { "rows" } else { "variables" }
    )]
    NeedsShape {
        /// The name of the rule.
        rule: &'static str,
        /// The part of a variable that the rule needs at once.
        unit: Unit,
    },
    /// The rule does not support the learning rate, for example because it is not finite.
    #[error(transparent)]
    LearningRate(#[from] InvalidHyperparameter),
}

/// A value of a hyper-parameter that is out of range, such as one with which a rule would diverge or divide by zero.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{rule}: {parameter} is {value}, but must be {range}")]
pub struct InvalidHyperparameter {
    /// The name of the rule, as [`Rule::name`](crate::Rule::name) returns it, or the name of the schedule.
    pub rule: &'static str,
    /// The name of the hyper-parameter.
    pub parameter: &'static str,
    /// The value that is out of range.
    pub value: f64,
    /// The allowed values, as text.
    pub range: &'static str,
}

/// Returns an error with the name `what` if two lengths differ.
pub(crate) fn same_length(what: &'static str, expected: usize, found: usize) -> Result<(), UpdateError> {
    if expected == found { Ok(()) } else { Err(UpdateError::LengthMismatch { what, expected, found }) }
}

/// A checker of hyper-parameters. The field is the name of the rule or schedule, for errors.
pub(crate) struct Check(pub(crate) &'static str);

impl Check {
    pub(crate) fn that(
        &self,
        ok: bool,
        parameter: &'static str,
        value: f64,
        range: &'static str,
    ) -> Result<(), InvalidHyperparameter> {
        if ok { Ok(()) } else { Err(InvalidHyperparameter { rule: self.0, parameter, value, range }) }
    }

    /// Checks that a parameter is finite and greater than 0.
    pub(crate) fn positive(&self, parameter: &'static str, value: f64) -> Result<(), InvalidHyperparameter> {
        self.that(value.is_finite() && value > 0.0, parameter, value, "finite and greater than 0")
    }

    /// Checks that a parameter is finite and at least 0.
    pub(crate) fn not_negative(
        &self,
        parameter: &'static str,
        value: f64,
    ) -> Result<(), InvalidHyperparameter> {
        self.that(value.is_finite() && value >= 0.0, parameter, value, "finite and at least 0")
    }

    /// Checks the weight of the past in a running average. It must be less than 1: with 1 the average would never
    /// change, and the bias correction would divide by 0.
    pub(crate) fn decay(&self, parameter: &'static str, value: f64) -> Result<(), InvalidHyperparameter> {
        self.that((0.0..1.0).contains(&value), parameter, value, "at least 0 and less than 1")
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Adafactor, Adagrad, Adam, AdamW, Ftrl, Lamb, Lion, Momentum, NAdam, RmsProp, RowAdagrad, Rule, Sgd,
    };

    #[test]
    fn defaults_are_valid() {
        let rules: [&dyn Rule; 12] = [
            &Sgd,
            &Momentum::default(),
            &Adam::default(),
            &AdamW::default(),
            &Adagrad::default(),
            &RmsProp::default(),
            &Ftrl::default(),
            &NAdam::default(),
            &Lion::default(),
            &RowAdagrad::default(),
            &Lamb::default(),
            &Adafactor::default(),
        ];
        for rule in rules {
            assert_eq!(rule.validate(), Ok(()), "{rule:?}");
        }
    }

    #[test]
    fn errors_name_rule_parameter_value_and_range() {
        let rules: [(&dyn Rule, &str); 23] = [
            (&Momentum { momentum: 1.0, nesterov: false }, "momentum: momentum is 1, but"),
            (
                &Adam { beta1: 1.0, ..Adam::default() },
                "adam: beta1 is 1, but must be at least 0 and less than 1",
            ),
            (&Adam { beta2: f64::NAN, ..Adam::default() }, "adam: beta2 is NaN, but"),
            (&Adam { epsilon: 0.0, lazy: true, ..Adam::default() }, "adam_lazy: epsilon is 0, but"),
            (&AdamW { weight_decay: -1.0, ..AdamW::default() }, "adamw: weight_decay is -1, but"),
            (&AdamW { epsilon: -0.5, ..AdamW::default() }, "adamw: epsilon is -0.5, but"),
            (&Adagrad { initial_accumulator_value: -1.0, ..Adagrad::default() }, "adagrad: initial_acc"),
            (&Adagrad { initial_accumulator_value: 0.0, epsilon: 0.0 }, "adagrad: epsilon is 0, but must be"),
            (&RmsProp { rho: 2.0, ..RmsProp::default() }, "rmsprop: rho is 2, but"),
            (&RmsProp { epsilon: 0.0, ..RmsProp::default() }, "rmsprop: epsilon is 0, but"),
            (&Ftrl { lr_power: 0.5, ..Ftrl::default() }, "ftrl: lr_power is 0.5, but must be"),
            (&Ftrl { l1: -0.5, ..Ftrl::default() }, "ftrl: l1 is -0.5, but"),
            (&Ftrl { l2_shrinkage: f64::INFINITY, ..Ftrl::default() }, "ftrl: l2_shrinkage is inf, but"),
            (&NAdam { epsilon: 0.0, ..NAdam::default() }, "nadam: epsilon is 0, but"),
            (&Lion { beta2: 1.0, lazy: true, ..Lion::default() }, "lion_lazy: beta2 is 1, but"),
            (&Adafactor { beta_2_decay: 0.0, ..Adafactor::default() }, "adafactor: beta_2_decay is 0, but"),
            (&Adafactor { epsilon_1: 0.0, ..Adafactor::default() }, "adafactor: epsilon_1 is 0, but"),
            (
                &Adafactor { clip_threshold: 0.0, ..Adafactor::default() },
                "adafactor: clip_threshold is 0, but",
            ),
            (&Lamb { epsilon: 0.0, ..Lamb::default() }, "lamb: epsilon is 0, but"),
            (&Lamb { weight_decay: f64::NAN, ..Lamb::default() }, "lamb: weight_decay is NaN, but"),
            (&RowAdagrad { epsilon: -1.0, ..RowAdagrad::default() }, "row_adagrad: epsilon is -1, but"),
            (
                &RowAdagrad { initial_accumulator_value: 0.0, epsilon: 0.0 },
                "row_adagrad: epsilon is 0, but must",
            ),
            (&Ftrl { beta: -0.5, ..Ftrl::default() }, "ftrl: beta is -0.5, but"),
        ];
        for (rule, text) in rules {
            let error = rule.validate().unwrap_err().to_string();
            assert!(error.starts_with(text), "{error} | {text}");
        }
    }
}
