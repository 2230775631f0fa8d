//! The update: what applies reduced gradients to variables and slots.
//!
//! | backend | variables | slots |
//! |---|---|---|
//! | [`Local`](local::Local) | in the memory of this process | there |
//! | [`Devices`](devices::Devices) | on devices with memory of their own, all or some | on each replica's device |
//! | [`Sharded`](sharded::Sharded) | in the memory of each worker, which updates its range | of that range |
//! | [`Servers`](servers::Servers) | on parameter servers | there |

pub(crate) mod copies;
pub(crate) mod devices;
pub(crate) mod local;
pub(crate) mod locked;
pub(crate) mod servers;
pub(crate) mod sharded;

use crate::groups::Rules;
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
use distribute_checkpoint::{Reader, Writer};
use distribute_optim::{Rule, SlotSpec};
use distribute_tensor::HostTensor;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// The backend of an optimizer: the place where its variables are updated, and where its slots are.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    /// Returns whether gradients are reduced, transformed and applied in one pass. Else [`apply`](Self::apply) gets
    /// them whole.
    fn is_one_pass(&self, optimizer: &Inner) -> bool {
        optimizer.groups.only_compute()
    }

    /// Reduces gradients, transforms them and applies the rules, to all variables that have a gradient on some replica.
    fn reduce_and_apply(&self, update: &Update<'_>, pass: &Pass<'_>) -> Result<()>;

    /// Applies gradients that are reduced, and counts the step. A call of all replicas of this process, of which
    /// replica 0 has the right to `change`. If it fails before anything was written, nothing has changed.
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

    /// The variables that are updated on devices.
    fn copies<'a>(&self, _optimizer: &'a Inner) -> Copies<'a> {
        Copies::new()
    }

    /// The copies whose gradients stay on the device of a local replica until they are applied.
    fn staying<'a>(&self, _optimizer: &Inner, _copies: &Copies<'a>, _replica: usize) -> Vec<Option<&'a Var>> {
        Vec::new()
    }

    /// The number of a variable's elements of which this process keeps slots.
    fn kept(&self, parameters: &Parameters, variable: usize, elements: usize) -> usize {
        parameters.partition.as_ref().map_or(elements, |partition| partition.mine(variable).len())
    }

    /// The slots of all variables before the first step, as far as this process keeps them.
    fn new_slots(&self, parameters: &Parameters, layout: &[SlotSpec]) -> Result<Vec<Slots>> {
        let of = |(number, (name, variable)): (usize, &(String, Var))| {
            Slots::new(name, variable, layout, self.kept(parameters, number, variable.elem_count()))
        };
        parameters.variables.iter().enumerate().map(of).collect()
    }

    /// A copy of one slot of a variable.
    fn slot(
        &self,
        optimizer: &Inner,
        variable: usize,
        slot: usize,
        _at: &'static Location<'static>,
    ) -> Result<Tensor> {
        let (_, var) = &optimizer.parameters.variables[variable];
        optimizer.progress.read("slot")?[variable].tensor(slot, var)
    }

    /// Adds all slots to a checkpoint, each under the name of the slot and that of the variable.
    fn save(&self, optimizer: &Inner, prefix: &str, writer: &mut Writer) -> Result<()> {
        let slots = optimizer.progress.read("Checkpoint::save")?;
        for (index, slot) in optimizer.slot_names().iter().enumerate() {
            for ((name, variable), slots) in optimizer.parameters.variables.iter().zip(&*slots) {
                let value = HostTensor::from_candle(&slots.tensor(index, variable)?)?;
                writer.insert(format!("{prefix}/{slot}/{name}"), value)?;
            }
        }
        Ok(())
    }

    /// Reads the slots of all variables from a checkpoint, which has those of each under its `names`, in the order of
    /// the rule.
    fn restore<'a>(
        &'a self,
        optimizer: &'a Inner,
        _prefix: &str,
        names: &[Vec<String>],
        from: &Reader,
    ) -> Result<Saved<'a>> {
        let of_variable = |(number, names): (usize, &Vec<String>)| {
            let (_, variable) = &optimizer.parameters.variables[number];
            let mine = optimizer.parameters.partition.as_ref().map(|partition| partition.mine(number));
            Slots::saved(from, names, variable, mine)
        };
        let slots = names.iter().enumerate().map(of_variable).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(move |change| {
            *change.slots() = slots;
            Ok(())
        }))
    }

    /// Refuses to go back to the last step, if some state of it may be lost.
    fn rewind(&self) -> Result<()> {
        Ok(())
    }

    /// Refuses a rule that cannot be applied here.
    fn require_rule(&self, _operation: &'static str, _rule: &dyn Rule) -> Result<()> {
        Ok(())
    }

    /// Refuses a transform that cannot be applied here.
    fn require_transform(&self, _operation: &'static str, _when: When, _transform: &Transform) -> Result<()> {
        Ok(())
    }
}

/// The backend of an optimizer's variables.
///
/// # Errors
/// [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument) if the strategy has parameter servers, and a
/// variable is not there.
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

/// A closure that puts the slots of a checkpoint in place.
pub(crate) type Saved<'a> = Box<dyn FnOnce(&Change<'_>) -> Result<()> + 'a>;

/// The time at which a transform is applied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    BeforeReduce,
    AfterReduce,
}

/// The update of one step.
pub(crate) struct Update<'a> {
    pub(crate) optimizer: &'a Inner,
    pub(crate) operation: &'static str,
    pub(crate) rules: Rules<'a>,
    /// The transforms of reduced gradients, in one pass; no closures.
    pub(crate) transforms: &'a [Transform],
    pub(crate) copies: &'a Copies<'a>,
}

impl<'a> Update<'a> {
    pub(crate) fn parameters(&self) -> &'a Parameters {
        &self.optimizer.parameters
    }
}

/// The pass of one step over all variables, which replica 0 leads.
pub(crate) struct Pass<'a> {
    pub(crate) change: &'a Change<'a>,
    /// The gradients on the host.
    pub(crate) operands: &'a Operands<'a>,
    /// The gradients of this process's replicas, also on devices.
    pub(crate) replicas: &'a [Weighted<'a>],
    pub(crate) sync: &'a StepSync<'a>,
    pub(crate) threads: &'a Threads<'a>,
}
