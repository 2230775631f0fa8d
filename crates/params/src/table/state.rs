//! A table as it is saved and restored: values and slots of one moment.

use super::Table;
use super::read::Whole;
use super::stripes::initial;
use super::write::part;
use crate::{Error, Result};
use distribute_tensor::{HostTensor, Write};

/// Values and slots of one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct TableState {
    /// The table's version.
    pub version: u64,
    /// The values.
    pub values: HostTensor,
    /// The name of each slot of the table's rule, and what is in it, of the shape of the values.
    pub slots: Vec<(String, HostTensor)>,
}

impl Table {
    /// Values and slots, as they are between two pushes of all of it.
    pub fn state(&self) -> Result<TableState> {
        let version = self.version();
        let specs = self.rule.get().map_or(&[][..], |bound| &bound.slots);
        let mut values = Whole::new(self);
        let mut slots: Vec<Whole> = specs.iter().map(|_| Whole::new(self)).collect();
        self.stripes.read_all(|stripe, stretches| {
            let stretches: Vec<_> = stretches.collect();
            values.put(&stripe.values, &mut stretches.iter().cloned());
            for (i, (slot, spec)) in slots.iter_mut().zip(specs).enumerate() {
                match stripe.slots.get(i) {
                    Some(made) => slot.put(made, &mut stretches.iter().cloned()),
                    None => slot.put(&initial(&stripe.values, spec.initial), &mut stretches.iter().cloned()),
                }
            }
        });
        let named =
            |(slot, spec): (Whole, &distribute_optim::SlotSpec)| Ok((spec.name.to_string(), slot.finish()?));
        let slots = slots.into_iter().zip(specs).map(named).collect::<Result<_>>()?;
        Ok(TableState { version, values: values.finish()?, slots })
    }

    /// Puts values and slots back, all of them at once. The slots may stand in any order.
    ///
    /// # Errors
    /// [`Error::Shape`] and [`Error::DType`], and [`Error::Slots`] unless they are those of the table's rule, which
    /// [`set_rule`](Table::set_rule) sets first. Nothing has changed then.
    pub fn restore(&self, values: &HostTensor, slots: &[(String, HostTensor)]) -> Result<()> {
        const OPERATION: &str = "restore";
        self.check_whole(OPERATION, values)?;
        slots.iter().try_for_each(|(_, slot)| self.check_whole(OPERATION, slot))?;
        let specs = self.rule.get().map_or(&[][..], |bound| &bound.slots);
        let of = |name: &str| slots.iter().find(|(found, _)| found == name).map(|(_, slot)| slot);
        let sorted: Option<Vec<&HostTensor>> = specs.iter().map(|spec| of(spec.name)).collect();
        let Some(sorted) = sorted.filter(|_| slots.len() == specs.len()) else {
            let expected = specs.iter().map(|spec| spec.name).collect();
            let found = slots.iter().map(|(name, _)| name.clone()).collect();
            return Err(Error::Slots { table: self.name.clone(), expected, found });
        };
        let width = self.width();
        let done = self.stripes.write_all(|_, stripe, stretches| {
            let stretches: Vec<_> = stretches.collect();
            let part = |whole: &HostTensor| part(whole.buffer(), width, &mut stretches.iter().cloned());
            stripe.values.write(Write::Assign, &part(values))?;
            stripe.slots = sorted.iter().map(|slot| part(slot)).collect();
            Ok(())
        });
        self.changed();
        done
    }
}
