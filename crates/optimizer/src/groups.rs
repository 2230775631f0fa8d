//! The rules of variables: that of the optimizer, and those of groups that are trained otherwise.

use crate::parameters::Parameters;
use candle_core::DType;
use distribute_base::{Error, Result};
use distribute_optim::{Rule, Step};

/// The rule of an optimizer, those of groups of variables, and which variable has what of its own.
#[derive(Debug)]
pub(crate) struct Groups {
    /// First that of the optimizer.
    rules: Vec<Box<dyn Rule>>,
    of_variables: Vec<Choice>,
    /// No variable's factor is larger.
    largest_factor: f64,
}

/// The rule and the rate of one variable.
#[derive(Clone, Copy, Debug)]
struct Choice {
    /// The position among the rules.
    rule: usize,
    rate_factor: f64,
}

/// The rule and the step of each variable.
pub(crate) struct Rules<'r>(Vec<(&'r dyn Rule, Step)>);

impl<'r> Rules<'r> {
    pub(crate) fn of(&self, variable: usize) -> (&'r dyn Rule, Step) {
        self.0[variable]
    }
}

impl Groups {
    pub(crate) fn new(rule: Box<dyn Rule>, variables: usize) -> Self {
        let of_variables = vec![Choice { rule: 0, rate_factor: 1. }; variables];
        Self { rules: vec![rule], of_variables, largest_factor: 1. }
    }

    /// Returns the factor of a variable's rate, and its rule, if that is not the optimizer's.
    pub(crate) fn of(&self, variable: usize) -> (f64, Option<&dyn Rule>) {
        let Choice { rule, rate_factor } = self.of_variables[variable];
        (rate_factor, (rule > 0).then(|| &*self.rules[rule]))
    }

    /// The rule of the optimizer.
    pub(crate) fn rule(&self) -> &dyn Rule {
        &*self.rules[0]
    }

    /// All rules, first that of the optimizer.
    pub(crate) fn rules(&self) -> impl Iterator<Item = &dyn Rule> {
        self.rules.iter().map(|rule| &**rule)
    }

    /// Returns whether all rules only compute.
    pub(crate) fn only_compute(&self) -> bool {
        self.rules().all(Rule::only_computes)
    }

    /// Returns, for each variable, whether its rule can be expressed as a program for devices.
    pub(crate) fn have_programs(&self) -> impl Iterator<Item = bool> {
        let has = |rule: &dyn Rule| matches!(rule.program(Step::after(0, 1.)), Ok(Some(_)));
        let all: Vec<_> = self.rules().map(has).collect();
        self.of_variables.iter().map(move |choice| all[choice.rule])
    }

    /// Gives some variables another rule.
    pub(crate) fn set_rule(&mut self, variables: &[usize], rule: Box<dyn Rule>) {
        variables.iter().for_each(|variable| self.of_variables[*variable].rule = self.rules.len());
        self.rules.push(rule);
    }

    /// Multiplies the rate of a variable.
    ///
    /// # Errors
    /// The product and the factor before, if the product is not finite and positive.
    pub(crate) fn multiply_rate(&mut self, variable: usize, factor: f64) -> Result<(), (f64, f64)> {
        let rate_factor = &mut self.of_variables[variable].rate_factor;
        let (before, product) = (*rate_factor, *rate_factor * factor);
        if !(product.is_finite() && product > 0.) {
            return Err((product, before));
        }
        *rate_factor = product;
        self.largest_factor = self.largest_factor.max(product);
        Ok(())
    }

    /// Forgets all variables but some.
    pub(crate) fn keep(&mut self, stays: impl Fn(usize) -> bool) {
        let mut index = 0..;
        self.of_variables.retain(|_| index.next().is_some_and(&stays));
    }

    /// Refuses a step in which a variable's rate is more than numbers of its dtype can be: the update would be
    /// infinite.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the variable.
    pub(crate) fn require_rates(
        &self,
        operation: &'static str,
        parameters: &Parameters,
        learning_rate: f64,
    ) -> Result<()> {
        // One comparison in each step, unless a rate is out of all proportion.
        if learning_rate * self.largest_factor <= f64::from(f32::MAX) {
            return Ok(());
        }
        for (Choice { rate_factor, .. }, (name, variable)) in
            self.of_variables.iter().zip(&parameters.variables)
        {
            let (dtype, rate) = (variable.dtype(), learning_rate * rate_factor);
            let most = if dtype == DType::F64 { f64::MAX } else { f64::from(f32::MAX) };
            if rate > most {
                let reason = format!(
                    "variable {name} cannot be updated with the learning rate {learning_rate:e} times its rate_factor \
                     {rate_factor:e}: a {dtype:?} is {most:.2e} at most; lower the rate or the factor"
                );
                return Err(Error::invalid(operation, reason));
            }
        }
        Ok(())
    }

    /// The rule and the rate of each variable in the step after `finished` others.
    pub(crate) fn rules_of_step(&self, finished: u64, learning_rate: f64) -> Rules<'_> {
        let of = |choice: &Choice| {
            (&*self.rules[choice.rule], Step::after(finished, learning_rate * choice.rate_factor))
        };
        Rules(self.of_variables.iter().map(of).collect())
    }
}
