//! The exchange of headers: after it each replica knows what there is on all.

use crate::Inner;
use crate::header::{self, StepHeader};
use crate::parameters::Parameters;
use crate::rate::Rate;
use crate::step::agreement;
use crate::step::replica::ReplicaGradients;
use distribute_base::Result;
use distribute_cluster::Fingerprint;
use distribute_collective::Failure;
use distribute_collective::group::GroupCall;
use distribute_collective::threads::Member;
use distribute_core::internal::{Mode, Settings, enter};
use std::sync::Arc;

/// The contributions of all replicas to a step.
pub(crate) struct GatheredStep {
    /// The replicas of this process.
    pub(crate) mine: Vec<Arc<ReplicaGradients>>,
    /// The headers of all workers' replicas, if there are other workers.
    all: Option<Arc<Gathered>>,
}

/// The outcome of the exchange with the other workers.
enum Gathered {
    /// The headers of all replicas, in the order of their ids.
    Headers(Vec<StepHeader>),
    /// The settings in which the optimizers of the workers differ.
    Differ(String),
}

impl Inner {
    /// Meets the other replicas of this process, which exchanges headers with the other workers.
    ///
    /// # Errors
    /// The same on all replicas, where one is lost or late or makes another call.
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

    /// Returns the position of this process in its training, if it is compared or the learning rate has a schedule.
    pub(crate) fn position(&self, operation: &'static str, member: &Member) -> Option<header::Position> {
        let finished = self.finished_steps();
        if matches!(self.rate, Rate::Set(_)) && member.session().is_none() {
            return None;
        }
        let _once = enter(Mode::CrossReplica(self.parameters.strategy.clone()));
        let learning_rate = self.rate.of_step(finished, operation).map_err(Arc::new);
        let incomplete = self.progress.is_incomplete();
        let settings = member.session().and_then(|_| self.digest_to_compare());
        Some(header::Position { finished, incomplete, settings, learning_rate })
    }
}

/// Exchanges the headers of a step with the other workers, and `settings` where they have not been compared.
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
            all.extend(header::decode(record, world.replicas())?)
        }
    }
    if let Some(differences) = agreement::differing(&mut calling, &all, settings)? {
        return Ok(Gathered::Differ(differences));
    }
    header::require_fit(&all, variables)?;
    Ok(Gathered::Headers(all))
}

impl GatheredStep {
    /// The settings that differ between workers, if any do.
    pub(crate) fn differences(&self) -> Option<&str> {
        match self.all.as_deref() {
            Some(Gathered::Differ(differences)) => Some(differences),
            _ => None,
        }
    }

    /// The headers of all replicas, in the order of their ids.
    pub(crate) fn headers(&self) -> Vec<&StepHeader> {
        match self.all.as_deref() {
            Some(Gathered::Headers(all)) => all.iter().collect(),
            _ => self.mine.iter().map(|of| &of.header).collect(),
        }
    }

    /// Returns whether losses are on devices still, and not in the headers.
    pub(crate) fn is_unread(&self) -> bool {
        self.mine.iter().any(|of| of.has_unread_losses())
    }

    /// The gradients of this process's replicas, with everything on the host.
    pub(crate) fn on_host(&self, parameters: &Parameters) -> Result<Vec<Arc<ReplicaGradients>>> {
        let host = |of: &Arc<ReplicaGradients>| of.to_host(parameters).map(Arc::new);
        self.mine.iter().map(host).collect()
    }
}
