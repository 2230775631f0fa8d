//! The exchange of headers, after which every replica has the headers of all replicas.

use crate::Inner;
use crate::header::{self, OuterHeader, StepHeader};
use crate::parameters::Parameters;
use crate::step::agreement;
use crate::step::replica::ReplicaGradients;
use distribute_base::Result;
use distribute_cluster::Fingerprint;
use distribute_collective::Failure;
use distribute_collective::group::GroupCall;
use distribute_collective::threads::Member;
use distribute_decisions::internal::Settings;
use std::sync::Arc;

/// The contributions of all replicas to a step.
pub(crate) struct GatheredStep {
    /// The contributions of this process's replicas.
    pub(crate) mine: Vec<Arc<ReplicaGradients>>,
    /// The headers of the replicas of all workers; `None` if there are no other workers, or in a local step.
    all: Option<Arc<Gathered>>,
}

/// The result of the exchange with the other workers.
enum Gathered {
    /// The headers of all replicas, in the order of replica ids.
    Headers(Vec<StepHeader>),
    /// A description of the differences between the settings of the workers' optimizers.
    Differ(String),
}

impl Inner {
    /// Exchanges headers between all replicas of all workers or, in a local step, of this worker.
    ///
    /// # Errors
    /// - The same error on all replicas: a replica fails, times out or makes a different call.
    pub(crate) fn gather(
        &self,
        member: &Member,
        call: &Fingerprint,
        mine: ReplicaGradients,
    ) -> Result<GatheredStep, Failure> {
        let variables = self.parameters.variables.len();
        let (mine, all) =
            member.all_gather_with_group(call.clone(), mine, |mine: &[Arc<ReplicaGradients>], calling| {
                exchange(calling, mine, variables, || self.settings())
            })?;
        Ok(GatheredStep { mine, all })
    }
}

/// Exchanges the headers of a step with the other workers. Also exchanges `settings` if the headers require it.
fn exchange(
    mut calling: GroupCall<'_>,
    mine: &[Arc<ReplicaGradients>],
    variables: usize,
    settings: impl FnOnce() -> Settings,
) -> Result<Gathered, Failure> {
    let world = calling.world();
    let records = calling.all_gather_bytes(header::encode(mine.iter().map(|of| &of.header))?.into())?;
    let mut all = Vec::with_capacity(world.num_replicas_in_sync());
    for (worker, record) in records.iter().enumerate() {
        if worker == world.worker() {
            all.extend(mine.iter().map(|of| of.header.clone()))
        } else {
            all.extend(header::decode(record, world.replicas_of(worker).len())?)
        }
    }
    if let Some(differences) = agreement::find_differences(&mut calling, &all, settings)? {
        return Ok(Gathered::Differ(differences));
    }
    header::require_fit(&all, variables)?;
    Ok(Gathered::Headers(all))
}

impl GatheredStep {
    /// Returns `true` if only replicas of this process take part in the step.
    pub(crate) fn is_alone(&self) -> bool {
        self.all.is_none()
    }

    /// Returns the facts that workers compare in the outer step at the end of this step; `None` if no outer step is
    /// due.
    pub(crate) fn outer(&self) -> Option<OuterHeader> {
        self.mine.first()?.outer
    }

    /// Returns a description of the differences between the workers' settings; `None` if there are none.
    pub(crate) fn differences(&self) -> Option<&str> {
        match self.all.as_deref() {
            Some(Gathered::Differ(differences)) => Some(differences),
            _ => None,
        }
    }

    /// Returns the headers of all replicas, in the order of replica ids.
    pub(crate) fn headers(&self) -> Vec<&StepHeader> {
        match self.all.as_deref() {
            Some(Gathered::Headers(all)) => all.iter().collect(),
            _ => self.mine.iter().map(|of| &of.header).collect(),
        }
    }

    /// Returns `true` if some losses are still on a device, so the headers do not contain them.
    pub(crate) fn has_pending_losses(&self) -> bool {
        self.mine.iter().any(|of| of.has_pending_losses())
    }

    /// Returns the contributions of this process's replicas, with all gradients and losses on the host. Waits for the
    /// devices on which some of them are.
    pub(crate) fn on_host(&self, parameters: &Parameters) -> Result<Vec<Arc<ReplicaGradients>>> {
        let host = |of: &Arc<ReplicaGradients>| of.to_host(parameters).map(Arc::new);
        self.mine.iter().map(host).collect()
    }
}
