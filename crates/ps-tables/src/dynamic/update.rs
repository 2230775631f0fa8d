//! Pushes of gradients for ids.

use super::segment::{Number, Segment, Update};
use super::{Bound, DynamicTable, Segments, elements, split, with_segments};
use crate::table::require_rows;
use crate::{Error, Push, Result};
use distribute_optim::{Rule, RuleExt, UpdateError};
use distribute_tensor::HostTensor;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The numbers of rows that a push has updated, created and evicted, and of ids that got no row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushResult {
    /// The number of different rows that were updated.
    pub rows: usize,
    /// The number of rows that were created.
    pub created: usize,
    /// The number of the push's ids that have not occurred often enough to get a row.
    pub waiting: usize,
    /// The number of the push's ids that got no row because rows of the same push already fill the table.
    pub full: usize,
    /// The number of rows that were evicted, to make space or because of their age.
    pub evicted: usize,
}

impl PushResult {
    fn plus(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            created: self.created + other.created,
            waiting: self.waiting + other.waiting,
            full: self.full + other.full,
            evicted: self.evicted + other.evicted,
        }
    }
}

impl DynamicTable {
    /// Sets the rule that applies gradients. The slots of existing rows get the rule's initial values. Does nothing if
    /// the table already has the same rule.
    ///
    /// # Errors
    /// - [`Error::RuleSet`]: the table has a different rule.
    /// - [`Error::Rule`]: a hyper-parameter of the rule is out of range.
    /// - [`Error::NeedsVariable`]: the rule needs complete variables.
    /// - [`Error::MovesAbsentRows`]: the rule changes rows without a gradient.
    pub fn set_rule(&self, rule: Arc<dyn Rule>) -> Result<()> {
        rule.validate()?;
        require_rows(&self.name, &*rule)?;
        if rule.moves_absent_rows() {
            return Err(Error::MovesAbsentRows { table: self.name.clone(), rule: rule.name() });
        }
        let present = self.rule.get_or_init(|| {
            let slots = rule.slots();
            with_segments!(&self.segments, all => all.iter().for_each(|s| s.write().set_slots(&slots)));
            Bound { rule: rule.clone(), slots }
        });
        let (present, found) = (format!("{:?}", present.rule), format!("{rule:?}"));
        if present == found {
            Ok(())
        } else {
            Err(Error::RuleSet { table: self.name.clone(), present, found })
        }
    }

    /// Applies the gradient of some ids. `gradient` contains one row for each id. Gradients of the same id are first
    /// summed, in the order of `ids`. Rows are created and evicted according to the [options](super::DynamicOptions).
    ///
    /// # Errors
    /// - [`Error::NoRule`]: the table has no rule.
    /// - [`Error::Shape`]: the gradient has a wrong shape.
    /// - [`Error::DType`]: the gradient has a wrong dtype.
    /// - [`Error::NotFinite`]: the gradient contains a NaN or infinite value, and the push [rejects](Push::finite) such
    ///   gradients.
    /// - [`Error::Update`]: the rule does not accept the learning rate.
    pub fn push_rows(&self, push: Push, ids: &[i64], gradient: &HostTensor) -> Result<PushResult> {
        const OPERATION: &str = "push_rows";
        let (operation, table) = (OPERATION, || self.name.clone());
        let bound = self.rule.get().ok_or_else(|| Error::NoRule { operation, table: table() })?;
        self.check_rows(OPERATION, ids, gradient)?;
        let pushed = with_segments!(&self.segments, all => {
            let gradient = elements(gradient);
            if let Some((element, value)) = push.refused(gradient) {
                return Err(Error::NotFinite { operation, table: table(), value, element });
            }
            self.push_as(all, push, bound, ids, gradient)
        });
        pushed.map_err(|source| Error::Update { operation, table: table(), source })
    }

    fn push_as<T: Number>(
        &self,
        all: &[RwLock<Segment<T>>],
        push: Push,
        bound: &Bound,
        ids: &[i64],
        gradient: &[T],
    ) -> Result<PushResult, UpdateError> {
        let (rule, step) = (&*bound.rule, self.steps.of(push));
        // The rule is tried on no rows first, so that an error creates no rows.
        let mut nothing: Vec<&mut [T]> = bound.slots.iter().map(|_| <&mut [T]>::default()).collect();
        let refused = |_: &UpdateError| self.steps.undo(push, step);
        rule.update_shaped(step, &[0, self.width()], &mut [], &[], &mut nothing).inspect_err(refused)?;
        let split = split(all.len(), ids);
        let rounding = self.rounding.map(|rounding| rounding.of_step(step));
        let update = Update { rule, step, rounding, gradient, initializer: &self.initializer };
        let mut pushed = PushResult::default();
        for (i, segment) in all.iter().enumerate() {
            if !split.of(i).is_empty() {
                pushed = pushed.plus(segment.write().push(split.of(i), split.positions(i), &update)?);
            }
        }
        // This depends only on the number of the step, so a restarted server repeats its changes with the same
        // result.
        if let Some(age) = self.options.max_age
            && step.number().is_multiple_of((age / 8).max(1))
        {
            pushed.evicted += self.evict(step.number());
        }
        Ok(pushed)
    }
}
