//! What applies reduced gradients.

use super::progress::Change;
use super::together::Together;
use distribute_base::Result;
use distribute_base::internal::LocalGradient;
use std::sync::Arc;

/// What applies the gradients of a step, once they are reduced, to the variables and to what is kept beside them.
///
/// | | variables | rules |
/// |---|---|---|
/// | [`InPlace`](super::in_place::InPlace) | in the memory of this process | that only compute |
/// | [`OnCopies`](super::on_copies::OnCopies) | in the memory of this process | that may do anything |
/// | [`OnDevicesToo`](super::on_devices_too::OnDevicesToo) | in the memory of devices, all or some | that only compute, and have a program |
/// | [`OnServers`](super::on_servers::OnServers) | on parameter servers | that can be sent there |
///
/// Where no code of users is among the transforms and rules, [`InPlace`](super::in_place::InPlace) also reduces, in the same pass.
pub(super) trait Updater {
    /// Applies the gradients and counts the step. A call of all replicas of this process, of which replica 0 has the right to
    /// `change`. Where it fails before anything was written, nothing has changed.
    fn apply(
        &self,
        together: &Together<'_>,
        gradients: &Arc<Vec<Option<LocalGradient>>>,
        change: Option<&Change<'_>>,
    ) -> Result<()>;
}
