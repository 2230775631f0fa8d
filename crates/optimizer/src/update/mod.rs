//! What applies reduced gradients.

pub(crate) mod copies;
pub(crate) mod devices;
pub(crate) mod in_place;
pub(crate) mod locked;
pub(crate) mod servers;
pub(crate) mod sharded;

use crate::progress::Change;
use crate::sync::Together;
use distribute_base::Result;
use distribute_base::internal::LocalGradient;
use std::sync::Arc;

/// What applies the gradients of a step, once they are reduced, to the variables and to what is kept beside them.
///
/// | | variables | rules |
/// |---|---|---|
/// | [`InPlace`](crate::update::in_place::InPlace) | in the memory of this process | that only compute |
/// | [`OnCopies`](crate::update::copies::OnCopies) | in the memory of this process | that may do anything |
/// | [`OnDevicesToo`](crate::update::devices::mixed::OnDevicesToo) | in the memory of devices, all or some | that only compute, and have a program |
/// | [`OnServers`](crate::update::servers::OnServers) | on parameter servers | that can be sent there |
///
/// Where no code of users is among the transforms and rules, [`InPlace`](crate::update::in_place::InPlace) also reduces, in the same pass.
pub(crate) trait Updater {
    /// Applies the gradients and counts the step. A call of all replicas of this process, of which replica 0 has the right to
    /// `change`. Where it fails before anything was written, nothing has changed.
    fn apply(
        &self,
        together: &Together<'_>,
        gradients: &Arc<Vec<Option<LocalGradient>>>,
        change: Option<&Change<'_>>,
    ) -> Result<()>;
}
