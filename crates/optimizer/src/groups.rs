//! The rules that update variables: the optimizer's rule, and the rules and rates of groups of variables.

use crate::parameters::Parameters;
use candle_core::DType;
use distribute_base::{Error, Result};
use distribute_optim::{Averaged, Rule, Step, Unit};
use std::sync::Arc;

/// The rule of an optimizer, the rules of groups of variables, and the choice of rule and rate for each variable.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    /// The rules, beginning with the optimizer's.
    rules: Vec<Arc<dyn Rule>>,
    by_variable: Vec<VariableRule>,
    /// The largest rate factor that any variable has had, at least 1.
    largest_factor: f64,
}

/// The rule and the rate factor of one variable.
#[derive(Clone, Copy, Debug)]
struct VariableRule {
    /// The index of the rule in [`Groups::rules`]; 0 is the optimizer's rule.
    rule: usize,
    rate_factor: f64,
}

/// The rule of each variable in one step, with the step's number and the variable's learning rate.
pub(crate) struct Rules<'r>(Vec<(&'r dyn Rule, Step)>);

impl<'r> Rules<'r> {
    pub(crate) fn of(&self, variable: usize) -> (&'r dyn Rule, Step) {
        self.0[variable]
    }

    /// Returns whether the update of a variable visits all of its rows, even rows without a gradient. This is so if the
    /// rule changes such rows, or needs the complete variable at once.
    pub(crate) fn visits_every_row(&self, variable: usize) -> bool {
        let (rule, _) = self.of(variable);
        rule.moves_absent_rows() || rule.unit() == Unit::Variable
    }
}

impl Groups {
    pub(crate) fn new(rule: Arc<dyn Rule>, variables: usize) -> Self {
        let by_variable = vec![VariableRule { rule: 0, rate_factor: 1. }; variables];
        Self { rules: vec![rule], by_variable, largest_factor: 1. }
    }

    /// Returns the rate factor of a variable, and its rule if this is not the optimizer's.
    pub(crate) fn of(&self, variable: usize) -> (f64, Option<&dyn Rule>) {
        let VariableRule { rule, rate_factor } = self.by_variable[variable];
        (rate_factor, (rule > 0).then(|| &*self.rules[rule]))
    }

    /// Returns the rule of the optimizer.
    pub(crate) fn rule(&self) -> &dyn Rule {
        &*self.rules[0]
    }

    /// Returns all rules, beginning with the optimizer's.
    pub(crate) fn rules(&self) -> impl Iterator<Item = &dyn Rule> {
        self.rules.iter().map(|rule| &**rule)
    }

    /// Returns `true` if all rules only compute, so they can be applied in place.
    pub(crate) fn only_compute(&self) -> bool {
        self.rules().all(Rule::only_computes)
    }

    /// Returns, for each variable, whether its rule can run as a program on devices.
    pub(crate) fn have_programs(&self) -> impl Iterator<Item = bool> {
        let has = |rule: &dyn Rule| {
            // Operations on tensors do not know rows.
            rule.unit() == Unit::Element && matches!(rule.program(Step::after(0, 1.)), Ok(Some(_)))
        };
        let all: Vec<_> = self.rules().map(has).collect();
        self.by_variable.iter().map(move |choice| all[choice.rule])
    }

    /// Makes all rules also keep averages of the weights.
    pub(crate) fn average(&mut self, momentum: f64) {
        for rule in &mut self.rules {
            *rule = Arc::new(Averaged { rule: rule.clone(), momentum });
        }
    }

    pub(crate) fn set_rule(&mut self, variables: &[usize], rule: Arc<dyn Rule>) {
        variables.iter().for_each(|variable| self.by_variable[*variable].rule = self.rules.len());
        self.rules.push(rule);
    }

    /// Multiplies the rate factor of a variable by `factor`.
    ///
    /// # Errors
    /// If the product is not finite and positive, returns the product and the previous factor.
    pub(crate) fn multiply_rate(&mut self, variable: usize, factor: f64) -> Result<(), (f64, f64)> {
        let rate_factor = &mut self.by_variable[variable].rate_factor;
        let (before, product) = (*rate_factor, *rate_factor * factor);
        if !(product.is_finite() && product > 0.) {
            return Err((product, before));
        }
        *rate_factor = product;
        self.largest_factor = self.largest_factor.max(product);
        Ok(())
    }

    /// Keeps only the variables for which `predicate` returns `true`.
    pub(crate) fn retain(&mut self, predicate: impl Fn(usize) -> bool) {
        let mut index = 0..;
        self.by_variable.retain(|_| index.next().is_some_and(&predicate));
    }

    /// Returns an error if a variable's rate exceeds the largest number of the variable's dtype, because the update
    /// would be infinite.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the rate of a variable is too large. The error names the variable.
    pub(crate) fn require_rates(
        &self,
        operation: &'static str,
        parameters: &Parameters,
        learning_rate: f64,
    ) -> Result<()> {
        // One comparison in each step, unless a rate is extremely large.
        if learning_rate * self.largest_factor <= f64::from(f32::MAX) {
            return Ok(());
        }
        for (VariableRule { rate_factor, .. }, (name, variable)) in
            self.by_variable.iter().zip(&parameters.variables)
        {
            let (dtype, rate) = (variable.dtype(), learning_rate * rate_factor);
            let most = if dtype == DType::F64 { f64::MAX } else { f64::from(f32::MAX) };
            if rate > most {
                let reason = format!(
                    "variable {name} cannot be updated with the learning rate {learning_rate:e} times its rate_factor \
                     {rate_factor:e}: the largest {dtype:?} is {most:.2e}; lower the rate or the factor"
                );
                return Err(Error::invalid(operation, reason));
            }
        }
        Ok(())
    }

    /// Returns the rule and the rate of each variable in the step after `finished` completed steps.
    pub(crate) fn rules_of_step(&self, finished: u64, learning_rate: f64) -> Rules<'_> {
        let of = |choice: &VariableRule| {
            (&*self.rules[choice.rule], Step::after(finished, learning_rate * choice.rate_factor))
        };
        Rules(self.by_variable.iter().map(of).collect())
    }
}
