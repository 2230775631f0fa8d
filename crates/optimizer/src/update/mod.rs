//! The update of an optimizer: backends that apply reduced gradients to variables and slots.
//!
//! | backend | variables | slots |
//! |---|---|---|
//! | [`Local`](local::Local) | in the memory of this process | in the same memory |
//! | [`Devices`](devices::Devices) | all or some on devices with their own memory | on each replica's device |
//! | [`Sharded`](sharded::Sharded) | in the memory of each worker, which updates its range | of that range, in the same memory |
//! | [`Servers`](servers::Servers) | all or only tables on servers | where the variable is |
//!
//! `rounding` rounds tables that are stored in bf16, and `touched` determines which elements a step changes.
//!
//! `copies` contains the update for rules that run the program's code. Such rules are applied to copies, which are
//! written to the variables when all copies are complete. `locked` gives access to several variables at once.

pub(crate) mod copies;
pub(crate) mod devices;
pub(crate) mod local;
pub(crate) mod locked;
pub(crate) mod rounding;
pub(crate) mod servers;
pub(crate) mod sharded;
pub(crate) mod touched;

use crate::groups::Rules;
use crate::live::{LiveSlot, LiveSlots};
use crate::parameters::{Copies, Parameters};
use crate::progress::Change;
use crate::reduce::Weighted;
use crate::reduce::operands::Operands;
use crate::slots::Slots;
use crate::sync::{StepSync, Threads};
use crate::{Inner, Transform};
use candle_core::{Tensor, Var};
use distribute_base::Result;
use distribute_base::internal::ReplicaGradient;
use distribute_checkpoint::{LiveTensors, Reader, Writer};
use distribute_decisions::internal::{Partition, SlotShare};
use distribute_optim::{Rule, SlotSpec};
use distribute_tensor::HostTensor;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// A backend of an optimizer, which updates its variables and keeps its slots.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    /// Returns `true` if gradients are reduced, transformed and applied in a single pass. Otherwise
    /// [`apply`](Self::apply) gets complete gradients.
    fn is_one_pass(&self, optimizer: &Inner) -> bool {
        optimizer.groups.only_compute()
    }

    /// Reduces and transforms gradients, and applies the rules to all variables that have a gradient on at least one
    /// replica.
    fn reduce_and_apply(&self, update: &Update<'_>, pass: &Pass<'_>) -> Result<()>;

    /// Applies reduced gradients, and counts the step. All replicas of this process make this call; `change` is `Some`
    /// only on replica 0. If an error occurs before the first write, nothing has changed.
    fn apply(
        &self,
        update: &Update<'_>,
        sync: &StepSync<'_>,
        gradients: &Arc<Vec<Option<ReplicaGradient>>>,
        change: Option<&Change<'_>>,
    ) -> Result<()> {
        if !self.is_one_pass(update.optimizer) {
            return copies::apply(update, sync, gradients, change);
        }
        sync.run_on_leader(|threads| {
            let Some(change) = change else { return Ok(()) };
            let operands = Operands::new(update.parameters(), &[(1., gradients)], 1)?;
            let pass = Pass { change, operands: &operands, replicas: &[], sync, threads };
            self.reduce_and_apply(update, &pass)?;
            update.parameters().commit(change)
        })
    }

    /// Returns the copies of the variables that are updated on devices.
    fn copies<'a>(&self, _optimizer: &'a Inner) -> Copies<'a> {
        Copies::new()
    }

    /// Returns the copies of variables whose gradients stay on the device of local replica `_replica` until they are
    /// applied.
    fn gradients_on_device<'a>(
        &self,
        _optimizer: &Inner,
        _copies: &Copies<'a>,
        _replica: usize,
    ) -> Vec<Option<&'a Var>> {
        Vec::new()
    }

    /// Returns the elements of a variable for which this process keeps slots.
    fn slot_share(&self, parameters: &Parameters, variable: usize) -> SlotShare {
        parameters.partition.as_ref().map_or(SlotShare::All, |partition| partition.own_share(variable))
    }

    /// Creates the slots that this process keeps for all variables, with their initial values.
    fn new_slots(&self, parameters: &Parameters, layout: &[SlotSpec]) -> Result<Vec<Slots>> {
        new_slots(parameters, layout, |number| self.slot_share(parameters, number))
    }

    /// Creates the copies of another worker's slots, with their initial values. There are none unless workers shard and
    /// replicate the state.
    fn new_copies(&self, _parameters: &Parameters, _layout: &[SlotSpec]) -> Result<Vec<Slots>> {
        Ok(Vec::new())
    }

    /// Returns a copy of one slot of a variable.
    fn slot(
        &self,
        optimizer: &Inner,
        variable: usize,
        slot: usize,
        _at: &'static Location<'static>,
    ) -> Result<Tensor> {
        slot_here(optimizer, variable, slot)
    }

    /// Adds all slots to a checkpoint, each under the names of the slot and the variable.
    fn save(&self, optimizer: &Inner, prefix: &str, writer: &mut Writer) -> Result<()> {
        save_slots_here(optimizer, prefix, writer, |_| true)
    }

    /// Reads the slots of all variables from a checkpoint. For each variable, `names` contains the names of its slots,
    /// in the order of the rule's slots. Returns a closure that sets the slots.
    fn restore<'a>(
        &'a self,
        optimizer: &'a Inner,
        _prefix: &str,
        names: &[Vec<String>],
        from: &Reader,
    ) -> Result<Saved<'a>> {
        let read = |(number, names): (usize, &Vec<String>)| self.read_slots(optimizer, number, names, from);
        let slots = names.iter().enumerate().map(read).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(move |change| {
            *change.slots() = slots;
            Ok(())
        }))
    }

    /// Reads, from a checkpoint, the slots that this process keeps for a variable. `names` are their names in the
    /// checkpoint.
    fn read_slots(&self, optimizer: &Inner, number: usize, names: &[String], from: &Reader) -> Result<Slots> {
        read_slots(optimizer, number, names, from, &self.slot_share(&optimizer.parameters, number))
    }

    /// Returns `true` if a restore of the variables has failed after it may have written some of them, or if this
    /// worker lacks a shard of the state.
    fn is_incomplete(&self, _optimizer: &Inner) -> bool {
        false
    }

    /// Returns an error if some state after the last step may have been lost.
    fn rewind(&self, _optimizer: &Inner) -> Result<()> {
        Ok(())
    }

    /// Returns the partition of the slots, if other workers have copies of them.
    fn replicated(&self) -> Option<&Partition> {
        None
    }

    /// Returns an error if this backend cannot apply a rule.
    fn require_rule(&self, _operation: &'static str, _rule: &dyn Rule) -> Result<()> {
        Ok(())
    }

    /// Returns an error if this backend cannot apply a transform.
    fn require_transform(&self, _operation: &'static str, _when: When, _transform: &Transform) -> Result<()> {
        Ok(())
    }
}

/// Creates the slots of all variables with their initial values, for the elements that `share` returns.
fn new_slots(
    parameters: &Parameters,
    layout: &[SlotSpec],
    share: impl Fn(usize) -> SlotShare,
) -> Result<Vec<Slots>> {
    let of = |(number, (name, variable)): (usize, &(String, Var))| {
        Slots::new(name, variable, layout, &share(number))
    };
    parameters.variables.iter().enumerate().map(of).collect()
}

/// Reads, from a checkpoint, the slots of a variable for the elements in `share`.
fn read_slots(
    optimizer: &Inner,
    number: usize,
    names: &[String],
    from: &Reader,
    share: &SlotShare,
) -> Result<Slots> {
    let (_, variable) = &optimizer.parameters.variables[number];
    Slots::from_checkpoint(from, names, variable, &optimizer.groups.rule().slots(), share)
}

/// Returns a copy of one slot of a variable, from the memory of this process.
pub(crate) fn slot_here(optimizer: &Inner, variable: usize, slot: usize) -> Result<Tensor> {
    let (_, var) = &optimizer.parameters.variables[variable];
    let shape = optimizer.groups.rule().slots()[slot].shape;
    optimizer.progress.read("slot")?[variable].tensor(slot, shape, var)
}

/// Adds the slots that are in the memory of this process to a checkpoint, for the variables whose index satisfies
/// `is_here`.
pub(crate) fn save_slots_here(
    optimizer: &Inner,
    prefix: &str,
    writer: &mut Writer,
    is_here: impl Fn(usize) -> bool,
) -> Result<()> {
    let all = optimizer.progress.read("Checkpoint::save")?;
    let (mut live, mut names) = (Vec::new(), Vec::new());
    for (index, SlotSpec { name: slot, shape, .. }) in optimizer.groups.rule().slots().into_iter().enumerate()
    {
        let variables = optimizer.parameters.variables.iter().zip(&*all).enumerate();
        for (number, ((name, variable), slots)) in variables.filter(|(number, _)| is_here(*number)) {
            let name = format!("{prefix}/{slot}/{name}");
            if writer.is_saved_at_once() && slots.elements(index).is_some() {
                live.push(LiveSlot { variable: number, slot: index, dims: shape.dims(variable.dims()) });
                names.push((name, slots.dtype()));
            } else {
                writer.insert(name, HostTensor::from_candle(&slots.tensor(index, shape, variable)?)?)?;
            }
        }
    }
    drop(all);
    let shapes: Vec<_> = live.iter().map(|slot| slot.dims.clone()).collect();
    let live: Arc<dyn LiveTensors> =
        Arc::new(LiveSlots { slots: optimizer.progress.share_slots(), tensors: live });
    for (index, ((name, dtype), shape)) in names.into_iter().zip(shapes).enumerate() {
        writer.insert_live(name, dtype, shape, &live, index)?;
    }
    Ok(())
}

/// Creates the backend for an optimizer's variables.
///
/// # Errors
/// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the strategy has parameter servers, and a
///   variable is not on them.
pub(crate) fn backend(parameters: &Parameters) -> Result<Box<dyn Backend>> {
    Ok(if parameters.strategy.session().is_some() {
        Box::new(servers::Servers::new(&parameters.strategy, &parameters.variables)?)
    } else if let Some(partition) = &parameters.partition {
        Box::new(sharded::Sharded::new(partition.clone()))
    } else if parameters.device_copies.is_empty() {
        Box::new(local::Local)
    } else {
        Box::new(devices::Devices)
    })
}

/// A closure that sets the slots to their values in a checkpoint.
pub(crate) type Saved<'a> = Box<dyn FnOnce(&Change<'_>) -> Result<()> + 'a>;

/// The time at which a transform is applied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    BeforeReduce,
    AfterReduce,
}

/// The rules and transforms of one step, and the variables' copies on devices.
pub(crate) struct Update<'a> {
    pub(crate) optimizer: &'a Inner,
    pub(crate) operation: &'static str,
    pub(crate) rules: Rules<'a>,
    /// The transforms that are applied to reduced gradients in this pass. None of them is a closure.
    pub(crate) transforms: &'a [Transform],
    pub(crate) copies: &'a Copies<'a>,
}

impl<'a> Update<'a> {
    pub(crate) fn parameters(&self) -> &'a Parameters {
        &self.optimizer.parameters
    }
}

/// A pass of one step over all variables, led by replica 0.
pub(crate) struct Pass<'a> {
    pub(crate) change: &'a Change<'a>,
    /// The gradients on the host, opened for reading.
    pub(crate) operands: &'a Operands<'a>,
    /// The gradients of this process's replicas, including those on devices, with their weights.
    pub(crate) replicas: &'a [Weighted<'a>],
    pub(crate) sync: &'a StepSync<'a>,
    pub(crate) threads: &'a Threads<'a>,
}
