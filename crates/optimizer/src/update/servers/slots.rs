//! Slots on parameter servers: reading, saving and restoring them.

use super::{OPERATION, OnServers, Servers};
use crate::Inner;
use crate::update::{Backend, Saved};
use candle_core::Var;
use distribute_base::Result;
use distribute_checkpoint::{Reader, Writer};
use distribute_core::Variable;
use distribute_core::internal::{OwnSlot, SavedIds, read_as, verify_as};
use distribute_ps_client::internal::Sharded;
use distribute_tensor::{DType, HostTensor};

const SAVE: &str = "Checkpoint::save";
const RESTORE: &str = "Checkpoint::restore";

/// The slots of one variable in a checkpoint, in the order of the rule's slots.
enum SavedSlots {
    Numbered(Vec<HostTensor>),
    /// Slots of rows that have ids. They are read by ranges of rows when they are restored.
    ByIds(SavedIds),
    /// A checkpoint, and the names of the slots in it. The slots are read by ranges of rows when they are restored.
    ByRange(Reader, Vec<String>),
}

impl Servers {
    /// Returns all slots of one variable, in the order of the rule's slots; an empty list if the variable is not on
    /// servers. [`set_rules`](Self::set_rules) must have been called before.
    pub(super) fn slots(&self, optimizer: &Inner, number: usize) -> Result<Vec<HostTensor>> {
        let names = optimizer.slot_names();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let Some(OnServers { remote, .. }) = self.get(number) else { return Ok(Vec::new()) };
        let tables = remote.value(OPERATION)?;
        tables.read_slots(OPERATION, &names, 0..tables.rows())
    }

    /// Adds the slots of the variables on servers that this process saves to a checkpoint, under the names of the slot
    /// and the variable. First sets the rules of all variables on the servers.
    pub(super) fn save_slots(&self, optimizer: &Inner, prefix: &str, writer: &mut Writer) -> Result<()> {
        drop(optimizer.progress.read("Checkpoint::save")?);
        let names = optimizer.slot_names();
        if names.is_empty() {
            return Ok(());
        }
        self.set_rules(optimizer)?;
        // One variable after another, so that only the slots of one are in memory.
        for (number, OnServers { variable, remote }) in self.on_servers() {
            let (name, var) = &optimizer.parameters.variables[number];
            let named = |slot: &str| format!("{prefix}/{slot}/{name}");
            if writer.is_in_parts() && variable.has_own_rows() {
                let slots = optimizer.groups.rule().slots().into_iter().map(|slot| OwnSlot {
                    name: slot.name,
                    saved: named(slot.name),
                    dtype: slot_dtype(var),
                    row: slot.shape.dims(remote.tables().dims()).get(1..).unwrap_or_default().to_vec(),
                });
                variable.save_own_slots(writer, &format!("{prefix}/{name}"), slots.collect())?;
                continue;
            }
            if !variable.is_saved_here() {
                continue;
            }
            if self.is_dynamic(number) {
                let beside = format!("{prefix}/{name}");
                variable.save_slots_of_ids(writer, &beside, named)?;
                continue;
            }
            if let Some(tables) = variable.saved_by_range().filter(|_| writer.is_saved_at_once()) {
                for slot in optimizer.groups.rule().slots() {
                    let (tables, dims) = (tables.clone(), slot.shape.dims(tables.dims()));
                    let read = move |rows| {
                        let found = tables.read_slots(SAVE, &[slot.name], rows)?.pop();
                        found.ok_or_else(|| format!("no slot {}", slot.name).into())
                    };
                    writer.insert_read(named(slot.name), slot_dtype(var), dims, read)?;
                }
                continue;
            }
            for (slot, value) in names.iter().zip(self.slots(optimizer, number)?) {
                writer.insert(named(slot), value)?;
            }
        }
        Ok(())
    }

    /// Reads the slots of all variables from a checkpoint; slots that are restored by ranges of rows are only verified.
    /// For each variable, `names` contains the names of its slots. Returns a closure that sets the slots, on servers
    /// and in this process.
    pub(super) fn saved_slots<'a>(
        &'a self,
        optimizer: &'a Inner,
        prefix: &str,
        names: &[Vec<String>],
        from: &Reader,
    ) -> Result<Saved<'a>> {
        let here = |(number, names): (usize, &Vec<String>)| match self.get(number) {
            Some(_) => Ok(None),
            None => self.read_slots(optimizer, number, names, from).map(Some),
        };
        let here = names.iter().enumerate().map(here).collect::<Result<Vec<_>>>()?;
        let one = |(number, OnServers { variable, remote }): (usize, &'a OnServers)| {
            let ((name, var), names) = (&optimizer.parameters.variables[number], &names[number]);
            let shapes = optimizer.groups.rule().slots();
            let shapes = shapes.iter().map(|slot| slot.shape.dims(remote.tables().dims()));
            if self.is_dynamic(number) {
                let rows = names.iter().zip(shapes);
                let rows =
                    rows.map(|(name, dims)| (name.clone(), dims.get(1..).unwrap_or_default().to_vec()));
                let saved = variable.saved_ids(&format!("{prefix}/{name}"), rows.collect(), from)?;
                return Ok((variable, remote, SavedSlots::ByIds(saved)));
            }
            let dtype = slot_dtype(var);
            let mut each = names.iter().zip(shapes);
            if variable.saved_by_range().is_some() {
                each.try_for_each(|(name, dims)| verify_as(from, name, dtype, &dims))?;
                return Ok((variable, remote, SavedSlots::ByRange(from.clone(), names.clone())));
            }
            let slots = each.map(|(name, dims)| read_as(from, name, dtype, &dims)).collect::<Result<_>>()?;
            Ok((variable, remote, SavedSlots::Numbered(slots)))
        };
        let all = self.on_servers().map(one).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(move |change| {
            if self.in_lock_step {
                change.begin();
            }
            for (slots, here) in change.slots().iter_mut().zip(here) {
                here.into_iter().for_each(|here| *slots = here);
            }
            self.set_rules(optimizer)?;
            let names: Vec<_> = optimizer.slot_names().into_iter().map(String::from).collect();
            if names.is_empty() {
                return Ok(());
            }
            for (variable, remote, saved) in all {
                variable.writing(|| set_slots(variable, remote.tables(), &names, saved))?;
            }
            Ok(())
        }))
    }

    /// Waits until all updates have been acknowledged, and sets the rules of all variables on servers. This creates
    /// their slots.
    pub(super) fn set_rules(&self, optimizer: &Inner) -> Result<()> {
        let Some(session) = optimizer.parameters.strategy.session() else { return Ok(()) };
        session.flush()?;
        // A server that has restarted without slots must have them before the next push.
        self.on_servers().for_each(|(_, of)| of.remote.forget_rule());
        let rules = optimizer.groups.rules_of_step(0, 0.);
        let rules =
            self.on_servers().filter_map(|(number, of)| Some((&*of.remote, rules.of(number).0.spec()?)));
        session.set_rules(OPERATION, rules)
    }
}

/// Sets the slots of a variable to their saved values. `names` are the names of the slots.
fn set_slots(variable: &Variable, tables: &Sharded, names: &[String], saved: SavedSlots) -> Result<()> {
    match saved {
        SavedSlots::Numbered(slots) => tables.write_slots(RESTORE, names, &slots),
        SavedSlots::ByIds(saved) => variable.restore_slots_of_ids(RESTORE, names, &saved),
        SavedSlots::ByRange(from, saved) => {
            // The largest slot has the smallest ranges.
            let elements =
                |name: &&String| from.describe(name).map_or(0, |slot| slot.shape.iter().product::<usize>());
            let Some(largest) = saved.iter().max_by_key(elements) else { return Ok(()) };
            let scans: Vec<_> = saved.iter().map(|name| from.scan(name.as_str())).collect();
            variable.write_ranges(from.row_ranges(largest)?, |rows| {
                if !tables.sends_some(&rows) {
                    return Ok(());
                }
                let slots = scans.iter().map(|scan| scan.rows(rows.clone()));
                tables.write_slot_range(RESTORE, rows.start, names, &slots.collect::<Result<Vec<_>, _>>()?)
            })
        }
    }
}

/// Returns the dtype in which the slots of a variable are saved.
fn slot_dtype(variable: &Var) -> DType {
    if variable.dtype() == candle_core::DType::F64 { DType::F64 } else { DType::F32 }
}
