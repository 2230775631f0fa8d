//! The context in which a variable is used, and the copy that belongs to it.

use super::access::{Access, AccessPlan, VariableKind};
use super::storage::Storage;
use super::variable::Variable;
use crate::context::{Mode, ReplicaContext, mixed, with_mode};
use distribute_base::{ContextKind, DeviceName, Error, Result};

/// The context in which a variable is used.
pub(super) struct Place {
    pub(super) kind: ContextKind,
    /// The devices of the replicas, or of the copies that are being updated, and the index of the current one.
    among: Vec<DeviceName>,
    index: usize,
    pub(super) replica: Option<ReplicaContext>,
}

impl Variable {
    // VAR-8
    /// Returns the context of this code, from the variable's point of view; an error in another strategy's
    /// context.
    pub(super) fn place(&self, operation: &'static str, writes: bool) -> Result<Place> {
        let ours = self.strategy();
        let other = || mixed(operation, Some(format!("variable {}", self.name())), ours);
        let outside = Place { kind: ContextKind::Default, among: Vec::new(), index: 0, replica: None };
        let mut place = with_mode(|mode| match mode {
            None => Ok(outside),
            Some(Mode::Update(context)) if context.strategy() == ours => Ok(Place {
                kind: ContextKind::Update,
                among: context.devices().to_vec(),
                index: context.copy(),
                replica: None,
            }),
            Some(Mode::Replica(context)) if context.strategy() == ours => Ok(Place {
                kind: ContextKind::Replica,
                index: context.local_replica(),
                replica: Some(context.clone()),
                ..outside
            }),
            Some(mode) if mode.strategy() == ours => Ok(Place { kind: mode.kind(), ..outside }),
            // The default strategy's contexts count as none for all other strategies.
            Some(mode) if mode.strategy().is_default() => Ok(outside),
            // Replicas of any strategy may read an ordinary variable, like any captured value. In another
            // strategy's update it would be written once for each copy.
            Some(mode) if self.0.kind == VariableKind::Ordinary => match mode.kind() {
                ContextKind::Update | ContextKind::Replica if writes => Err(other()),
                _ => Ok(outside),
            },
            Some(_) => Err(other()),
        })?;
        if place.replica.is_some() {
            place.among = ours.devices();
        }
        Ok(place)
    }

    pub(super) fn plan(
        &self,
        operation: &'static str,
        access: Access,
        found: ContextKind,
    ) -> Result<AccessPlan> {
        super::access::plan(self.0.kind, self.0.aggregation, access, found).map_err(|advice| {
            Error::VariableAccess {
                operation,
                variable: self.name().to_string(),
                synchronization: self.0.synchronization,
                aggregation: self.0.aggregation,
                found,
                advice,
            }
        })
    }

    /// Returns the copy that this replica writes, or the one that is being updated.
    ///
    /// In an update, an ON_WRITE variable must have exactly one copy on each device that is being updated, or
    /// its copies would drift apart. One copy must not be written more than once.
    pub(super) fn own(&self, operation: &'static str, place: &Place) -> Result<&Storage> {
        let (copies, among) = (self.0.copies.len(), place.among.len());
        let same = self.0.copies.iter().map(|copy| &copy.device).eq(&place.among);
        let update = place.kind == ContextKind::Update && self.0.kind != VariableKind::OnRead;
        if update && !same && (copies, among) != (1, 1) {
            let names = |devices: &[DeviceName]| {
                devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            };
            let reason = format!(
                "variable {} has copies on {}, but what is being updated is on {}; create it inside of \
                 colocate_vars_with the variable that is being updated",
                self.name(),
                names(&self.devices()),
                names(&place.among)
            );
            return Err(Error::invalid(operation, reason));
        }
        self.nearest(place)
    }

    /// Returns the copy that this replica, or this update, reads: its own, or one on its device, or the only
    /// one.
    pub(super) fn nearest(&self, place: &Place) -> Result<&Storage> {
        let copies = &self.0.copies;
        let device = place.among.get(place.index);
        let found = if copies.iter().map(|copy| &copy.device).eq(&place.among) {
            copies.get(place.index)
        } else {
            copies.iter().find(|copy| copies.len() == 1 || Some(&copy.device) == device)
        };
        found.ok_or_else(|| {
            let device = device.map(ToString::to_string).unwrap_or_default();
            Error::invalid("variables", format!("variable {} has no copy on {device}", self.name()))
        })
    }

    /// Returns the copy that is read here; if the context has several devices, the first.
    pub(super) fn nearest_or_first(&self, place: &Place) -> Result<&Storage> {
        match place.kind {
            ContextKind::Replica | ContextKind::Update => self.nearest(place),
            _ => self.copy(0),
        }
    }

    pub(super) fn copy(&self, copy: usize) -> Result<&Storage> {
        self.0.copies.get(copy).ok_or_else(|| {
            let reason = format!("variable {} has no copy {copy}: it has {}", self.name(), self.copy_count());
            Error::invalid("variables", reason)
        })
    }
}
