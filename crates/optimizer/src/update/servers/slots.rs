//! Slots that are on parameter servers, read and set by the optimizer whose they are, and in a checkpoint.

use super::{OPERATION, Servers};
use crate::Inner;
use crate::update::Saved;
use distribute_base::{Error, Result};
use distribute_checkpoint::{Reader, Writer};
use distribute_core::internal::read_as;
use distribute_tensor::{DType, HostTensor};

/// The slots of one variable in a checkpoint, in the order of the rule.
struct SavedSlots {
    /// The ids of rows, if rows are ids.
    ids: Option<Vec<i64>>,
    slots: Vec<HostTensor>,
}

impl Servers {
    /// All slots of one variable, in the order of the rule.
    pub(super) fn slots(&self, optimizer: &Inner, number: usize) -> Result<Vec<HostTensor>> {
        let names = optimizer.slot_names();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        self.set_rules(optimizer)?;
        let found = self.variables[number].1.value(OPERATION)?.slots(OPERATION, names.len())?;
        let of = |name: &&str| found.iter().find(|(found, _)| found == name).map(|(_, slot)| slot.clone());
        let missing = || {
            Error::invalid(
                OPERATION,
                format!(
                    "the servers have slots {:?}, not {names:?}",
                    found.iter().map(|(name, _)| name).collect::<Vec<_>>()
                ),
            )
        };
        names.iter().map(of).collect::<Option<_>>().ok_or_else(missing)
    }

    /// Adds the slots of all variables to a checkpoint, each under the name of the slot and that of the variable.
    pub(super) fn save_slots(&self, optimizer: &Inner, prefix: &str, writer: &mut Writer) -> Result<()> {
        drop(optimizer.progress.read("Checkpoint::save")?);
        let names = optimizer.slot_names();
        if names.is_empty() {
            return Ok(());
        }
        self.set_rules(optimizer)?;
        // One variable after another, so that there is never more than the slots of one.
        for (number, (name, _)) in optimizer.parameters.variables.iter().enumerate() {
            let named = |slot: &str| format!("{prefix}/{slot}/{name}");
            if self.is_dynamic(number) {
                let beside = format!("{prefix}/{name}");
                self.variables[number].0.save_slots_of_ids(writer, &beside, named)?;
                continue;
            }
            for (slot, value) in names.iter().zip(self.slots(optimizer, number)?) {
                writer.insert(named(slot), value)?;
            }
        }
        Ok(())
    }

    /// The slots of all variables in a checkpoint, of which `names` are those of each.
    pub(super) fn saved_slots<'a>(
        &'a self,
        optimizer: &'a Inner,
        prefix: &str,
        names: &[Vec<String>],
        from: &Reader,
    ) -> Result<Saved<'a>> {
        let one = |(number, names): (usize, &Vec<String>)| {
            let (name, var) = &optimizer.parameters.variables[number];
            let (variable, remote) = &self.variables[number];
            if self.is_dynamic(number) {
                let (mut ids, beside) = (None, format!("{prefix}/{name}"));
                let slot = |name: &String| {
                    let saved = variable.saved_rows(name, &beside, from)?;
                    ids = Some(saved.ids);
                    Ok(saved.values)
                };
                let slots = names.iter().map(slot).collect::<Result<_>>()?;
                return Ok((variable, remote, SavedSlots { ids, slots }));
            }
            let dtype = if var.dtype() == candle_core::DType::F64 { DType::F64 } else { DType::F32 };
            let slots = names.iter().map(|name| read_as(from, name, dtype, var.dims()));
            let slots = slots.collect::<Result<_>>()?;
            Ok((variable, remote, SavedSlots { ids: None, slots }))
        };
        let all = names.iter().enumerate().map(one).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(move |_| {
            const OPERATION: &str = "Checkpoint::restore";
            self.set_rules(optimizer)?;
            for (variable, remote, SavedSlots { ids, slots }) in all {
                let named: Vec<_> = optimizer.slot_names().into_iter().map(String::from).zip(slots).collect();
                if !named.is_empty() {
                    variable.writing(|| match &ids {
                        None => remote.value(OPERATION)?.set_slots(OPERATION, &named),
                        Some(ids) => variable.set_slots_of_ids(OPERATION, ids, &named),
                    })?;
                }
            }
            Ok(())
        }))
    }

    /// Sets the rules of all variables, which make their slots, once all updates have been acknowledged.
    fn set_rules(&self, optimizer: &Inner) -> Result<()> {
        let Some(session) = optimizer.parameters.strategy.session() else { return Ok(()) };
        session.flush()?;
        // A server that came back without them is asked for slots before the next push.
        self.variables.iter().for_each(|(_, remote)| remote.forget_rule());
        let (rules, variables) = (optimizer.groups.rules_of_step(0, 0.), self.variables.iter().enumerate());
        let rules =
            variables.filter_map(|(number, (_, remote))| Some((&**remote, rules.of(number).0.spec()?)));
        session.set_rules(OPERATION, rules)
    }
}
