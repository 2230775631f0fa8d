//! Gradients of ids.

use super::segment::{Number, Segment, Update};
use super::{Bound, DynamicTable, Segments, elements, split, with_segments};
use crate::{Error, Push, Result};
use distribute_optim::{Rule, RuleExt, UpdateError};
use distribute_tensor::HostTensor;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a push has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pushed {
    /// How many rows were updated, each once.
    pub rows: usize,
    /// How many of them were made.
    pub made: usize,
    /// How many ids did not come often enough for a row yet.
    pub waiting: usize,
    /// How many ids got no row because this push has more ids than there may be rows.
    pub full: usize,
    /// How many rows had to go for those that were made.
    pub evicted: usize,
}

impl Pushed {
    fn plus(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            made: self.made + other.made,
            waiting: self.waiting + other.waiting,
            full: self.full + other.full,
            evicted: self.evicted + other.evicted,
        }
    }
}

impl DynamicTable {
    /// The rule by which gradients are applied from now on; slots of the rows that are there begin with its initial values.
    ///
    /// To give it once more is nothing new.
    ///
    /// # Errors
    /// [`Error::RuleSet`] if the table has another rule, [`Error::Rule`] if the rule's hyper-parameters are out of range, and
    /// [`Error::MovesAbsentRows`] for rules that change rows without a gradient.
    pub fn set_rule(&self, rule: Arc<dyn Rule>) -> Result<()> {
        rule.validate()?;
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

    /// Applies the gradient of some ids, of which `gradient` has a row for each. Those of the same id are summed first, in the
    /// order in which they stand. Ids get rows, and others lose theirs, as the [options](super::DynamicOptions) say.
    ///
    /// # Errors
    /// [`Error::NoRule`], [`Error::Shape`], [`Error::DType`], [`Error::NotFinite`] where that is asked for, and
    /// [`Error::Update`] for a learning rate that the rule cannot take.
    pub fn push_rows(&self, push: Push, ids: &[i64], gradient: &HostTensor) -> Result<Pushed> {
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
    ) -> Result<Pushed, UpdateError> {
        let (rule, step) = (&*bound.rule, self.steps.of(push));
        // What the rule refuses, it refuses of nothing, too: before there are new rows.
        let mut nothing: Vec<&mut [T]> = bound.slots.iter().map(|_| <&mut [T]>::default()).collect();
        let refused = |_: &UpdateError| self.steps.take_back(push, step);
        rule.update(step, &mut [], &[], &mut nothing).inspect_err(refused)?;
        let split = split(all.len(), ids);
        let update = Update { rule, step, gradient, initializer: &self.initializer };
        let mut pushed = Pushed::default();
        for (i, segment) in all.iter().enumerate() {
            if !split.of(i).is_empty() {
                pushed = pushed.plus(segment.write().push(split.of(i), split.positions(i), &update)?);
            }
        }
        // By the number of the step alone: a server that comes back makes its changes again, with the same result.
        if let Some(age) = self.options.max_age
            && step.number().is_multiple_of((age / 8).max(1))
        {
            pushed.evicted += self.evict(step.number());
        }
        Ok(pushed)
    }
}
