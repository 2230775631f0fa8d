//! The rules of a step.

use distribute_optim::{Rule, Step};

/// For each variable, by what it is updated in one step.
pub(crate) struct Rules<'r>(Vec<(&'r dyn Rule, Step)>);

impl<'r> Rules<'r> {
    pub(crate) fn new(of_variables: Vec<(&'r dyn Rule, Step)>) -> Self {
        Self(of_variables)
    }

    pub(crate) fn of(&self, variable: usize) -> (&'r dyn Rule, Step) {
        self.0[variable]
    }
}
