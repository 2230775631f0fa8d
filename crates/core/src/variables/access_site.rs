//! The context in which a variable is accessed, and the copy that belongs to it.

use super::storage::Storage;
use super::variable::Variable;
use crate::context::{Mode, ReplicaContext, mixed, with_mode};
use distribute_base::{ContextKind, DeviceName, Error, Result};
use distribute_decisions::internal::{Access, AccessPlan, VariableKind, plan};

/// The context in which a variable is accessed.
pub(super) struct AccessSite {
    pub(super) kind: ContextKind,
    /// The devices of the replicas, or of the copies that are being updated. `index` is the index of the current one.
    /// The list is empty in other contexts.
    devices: Vec<DeviceName>,
    index: usize,
    pub(super) replica: Option<ReplicaContext>,
}

impl Variable {
    // VAR-8
    /// Returns the context of the calling code with respect to this variable. Returns an error in the context of a
    /// different strategy. There, an ordinary variable can still be read, and written outside replicas and updates.
    pub(super) fn access_site(&self, operation: &'static str, writes: bool) -> Result<AccessSite> {
        let ours = self.strategy();
        let other = || mixed(operation, Some(format!("variable {}", self.name())), ours);
        let outside = AccessSite { kind: ContextKind::Default, devices: Vec::new(), index: 0, replica: None };
        let mut site = with_mode(|mode| match mode {
            None => Ok(outside),
            Some(Mode::Update(context)) if context.strategy() == ours => Ok(AccessSite {
                kind: ContextKind::Update,
                devices: context.devices().to_vec(),
                index: context.copy(),
                replica: None,
            }),
            Some(Mode::Replica(context)) if context.strategy() == ours => Ok(AccessSite {
                kind: ContextKind::Replica,
                index: context.local_replica(),
                replica: Some(context.clone()),
                ..outside
            }),
            Some(mode) if mode.strategy() == ours => Ok(AccessSite { kind: mode.kind(), ..outside }),
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
        if site.replica.is_some() {
            site.devices = ours.devices();
        }
        Ok(site)
    }

    pub(super) fn plan(
        &self,
        operation: &'static str,
        access: Access,
        found: ContextKind,
    ) -> Result<AccessPlan> {
        plan(self.0.kind, self.0.aggregation, access, found).map_err(|advice| Error::VariableAccess {
            operation,
            variable: self.name().to_string(),
            synchronization: self.0.synchronization,
            aggregation: self.0.aggregation,
            found,
            advice,
        })
    }

    /// Returns the copy that this code writes: the copy of its replica, or the copy that is being updated.
    ///
    /// In an update, a variable that is not ON_READ must have exactly one copy on each device that is being updated.
    /// Otherwise the copies would drift apart, or a copy would be written more than once. An exception is a variable
    /// with a single copy, if a single copy is updated.
    pub(super) fn own_copy(&self, operation: &'static str, site: &AccessSite) -> Result<&Storage> {
        let (copies, devices) = (self.0.copies.len(), site.devices.len());
        let same = self.0.copies.iter().map(|copy| &copy.device).eq(&site.devices);
        let update = site.kind == ContextKind::Update && self.0.kind != VariableKind::OnRead;
        if update && !same && (copies, devices) != (1, 1) {
            let names = |devices: &[DeviceName]| {
                devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            };
            let reason = format!(
                "variable {} has copies on {}, but the updated variable is on {}; create it inside colocate_vars_with \
                 of the updated variable",
                self.name(),
                names(&self.devices()),
                names(&site.devices)
            );
            return Err(Error::invalid(operation, reason));
        }
        self.nearest(site)
    }

    /// Returns the copy that this replica or this update reads: its own copy, a copy on its device, or the only copy.
    pub(super) fn nearest(&self, site: &AccessSite) -> Result<&Storage> {
        let copies = &self.0.copies;
        let device = site.devices.get(site.index);
        let found = if copies.iter().map(|copy| &copy.device).eq(&site.devices) {
            copies.get(site.index)
        } else {
            copies.iter().find(|copy| copies.len() == 1 || Some(&copy.device) == device)
        };
        found.ok_or_else(|| {
            let device = device.map(ToString::to_string).unwrap_or_default();
            Error::invalid("variables", format!("variable {} has no copy on {device}", self.name()))
        })
    }

    /// Returns the copy that this code reads: in a replica or an update the nearest copy, elsewhere the first copy.
    pub(super) fn nearest_or_first(&self, site: &AccessSite) -> Result<&Storage> {
        match site.kind {
            ContextKind::Replica | ContextKind::Update => self.nearest(site),
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
