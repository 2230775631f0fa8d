//! Slots that are on parameter servers, read and set by the optimizer whose they are, and in a checkpoint.

use super::Optimizer;
use super::on_servers::{OPERATION, Remote};
use distribute_base::{Error, Result};
use distribute_checkpoint::{Reader, Writer};
use distribute_core::internal::read_as;
use distribute_optim::Rule;
use distribute_tensor::{DType, HostTensor};

/// What a checkpoint has of the slots of one variable, in the order of the rule.
pub(super) struct SavedSlots {
    /// Of which ids, if rows are ids.
    ids: Option<Vec<i64>>,
    slots: Vec<HostTensor>,
}

impl<R: Rule> Optimizer<R> {
    /// All slots of one variable on servers, in the order of the rule.
    pub(super) fn slots_on_servers(&self, remote: &Remote, number: usize) -> Result<Vec<HostTensor>> {
        let names: Vec<_> = self.slot_names().collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        self.bind(remote)?;
        let found = remote.variables[number].1.value(OPERATION)?.slots(OPERATION, names.len())?;
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

    /// Puts all slots of all variables back, each in the order of the rule.
    pub(super) fn set_slots_on_servers(&self, remote: &Remote, all: Vec<SavedSlots>) -> Result<()> {
        const OPERATION: &str = "Checkpoint::restore";
        self.bind(remote)?;
        for ((variable, tables), SavedSlots { ids, slots }) in remote.variables.iter().zip(all) {
            let named: Vec<_> = self.slot_names().map(String::from).zip(slots).collect();
            if !named.is_empty() {
                variable.writing(|| match &ids {
                    None => tables.value(OPERATION)?.set_slots(OPERATION, &named),
                    Some(ids) => variable.set_slots_of_ids(OPERATION, ids, &named),
                })?;
            }
        }
        Ok(())
    }

    /// Adds the slots of all variables to a checkpoint, each under the name of the slot and that of the variable.
    pub(super) fn save_from_servers(&self, remote: &Remote, prefix: &str, writer: &mut Writer) -> Result<()> {
        if self.slot_names().next().is_none() {
            return Ok(());
        }
        self.bind(remote)?;
        // One variable after another, so that there is never more than the slots of one.
        for (number, (name, _)) in self.trained.variables.iter().enumerate() {
            let named = |slot: &str| format!("{prefix}/{slot}/{name}");
            if remote.is_dynamic(number) {
                let beside = format!("{prefix}/{name}");
                remote.variables[number].0.save_slots_of_ids(writer, &beside, named)?;
                continue;
            }
            for (slot, value) in self.slot_names().zip(self.slots_on_servers(remote, number)?) {
                writer.insert(named(slot), value)?;
            }
        }
        Ok(())
    }

    /// The slots of all variables in a checkpoint, of which `names` are those of each.
    pub(super) fn saved_slots(
        &self,
        remote: &Remote,
        prefix: &str,
        names: &[Vec<String>],
        from: &Reader,
    ) -> Result<Vec<SavedSlots>> {
        let one = |(number, names): (usize, &Vec<String>)| {
            let (name, var) = &self.trained.variables[number];
            if remote.is_dynamic(number) {
                let (mut ids, beside) = (None, format!("{prefix}/{name}"));
                let slot = |name: &String| {
                    let saved = remote.variables[number].0.saved_rows(name, &beside, from)?;
                    ids = Some(saved.ids);
                    Ok(saved.values)
                };
                let slots = names.iter().map(slot).collect::<Result<_>>()?;
                return Ok(SavedSlots { ids, slots });
            }
            let dtype = if var.dtype() == candle_core::DType::F64 { DType::F64 } else { DType::F32 };
            let slots = names.iter().map(|name| read_as(from, name, dtype, var.dims()));
            Ok(SavedSlots { ids: None, slots: slots.collect::<Result<_>>()? })
        };
        names.iter().enumerate().map(one).collect()
    }

    /// Sets the rules of all variables, which make their slots, once all updates have been acknowledged.
    fn bind(&self, remote: &Remote) -> Result<()> {
        let Some(session) = self.trained.strategy.session() else { return Ok(()) };
        session.flush()?;
        let rules = self.groups.rules(&self.rule, 0, 0.);
        let variables = remote.variables.iter().enumerate();
        let rules =
            variables.filter_map(|(number, (_, remote))| Some((&**remote, rules.of(number).0.spec()?)));
        session.set_rules(OPERATION, rules)
    }
}
