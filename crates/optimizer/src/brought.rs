//! What all replicas bring to a step, those of this process and those of other workers.

use super::Trained;
use super::agreement;
use super::contribution::Contribution;
use super::not_finite;
use super::operands::Operands;
use super::over_workers::OverWorkers;
use super::tally::{self, Tally};
use super::threads::Threads;
use distribute_base::Result;
use distribute_collective::Failure;
use distribute_collective::group::GroupCall;
use distribute_core::internal::{Settings, failure};
use std::sync::Arc;

/// What all replicas bring to a step.
pub(super) struct Brought {
    /// Those of this process.
    pub(super) mine: Vec<Arc<Contribution>>,
    /// The outcome of the exchange with the other workers, if there are others.
    pub(super) all: Option<Arc<Told>>,
}

/// The outcome of the exchange of tallies.
pub(super) enum Told {
    /// The tallies of all replicas, in the order of their ids.
    Tallies(Vec<Tally>),
    /// The settings in which the optimizers of the workers differ.
    Differ(String),
}

/// Exchanges the tallies of a step with the other workers, and `settings` where they have not been compared.
pub(super) fn tallies(
    mut calling: GroupCall<'_>,
    mine: &[Arc<Contribution>],
    variables: usize,
    settings: impl FnOnce() -> Settings,
) -> Result<Told, Failure> {
    let world = calling.world();
    let records = calling.all_gather_bytes(tally::encode(mine.iter().map(|c| &c.tally))?.into())?;
    let mut all = Vec::with_capacity(world.num_replicas_in_sync());
    for (worker, record) in records.iter().enumerate() {
        if worker == world.worker() {
            all.extend(mine.iter().map(|c| c.tally.clone()))
        } else {
            all.extend(tally::decode(record, world.replicas())?)
        }
    }
    if let Some(differences) = agreement::differing(&mut calling, &all, settings)? {
        return Ok(Told::Differ(differences));
    }
    tally::require_fit(&all, variables)?;
    Ok(Told::Tallies(all))
}

impl Brought {
    /// Returns the settings that differ between workers, if any do.
    pub(super) fn differences(&self) -> Option<&str> {
        match self.all.as_deref() {
            Some(Told::Differ(differences)) => Some(differences),
            _ => None,
        }
    }

    /// In the order of ids.
    pub(super) fn tallies(&self) -> Vec<&Tally> {
        match self.all.as_deref() {
            Some(Told::Tallies(all)) => all.iter().collect(),
            _ => self.mine.iter().map(|c| &c.tally).collect(),
        }
    }

    /// Whether losses are on devices still, and not in the tallies.
    pub(super) fn is_unread(&self) -> bool {
        self.mine.iter().any(|c| c.has_unread_losses())
    }

    /// What is known of the first replica whose loss or gradients are not finite.
    pub(super) fn not_finite(
        &self,
        calling: Option<GroupCall<'_>>,
        trained: &Trained,
        step: u64,
        number: u64,
    ) -> Result<Option<not_finite::Report>> {
        let mine = self.on_host(trained).and_then(|mine| not_finite::report(trained, &mine, step, number));
        let Some(mut calling) = calling else { return mine };
        let mine = mine.ok().flatten();
        let record = postcard::to_stdvec(&mine).unwrap_or_default();
        let records = calling.all_gather_bytes(record.into()).map_err(failure("minimize"))?;
        Ok(records.iter().find_map(|record| postcard::from_bytes(record).ok().flatten()))
    }

    /// Those of this process, without what has stayed on devices.
    pub(super) fn on_host(&self, trained: &Trained) -> Result<Vec<Arc<Contribution>>> {
        self.mine
            .iter()
            .map(|c| if c.on_device.is_some() { c.to_host(trained).map(Arc::new) } else { Ok(c.clone()) })
            .collect()
    }

    /// What is added up, where there are other workers, with the bits that one process would get with all of the replicas.
    ///
    /// # Errors
    /// The same on all workers: they make other calls, or one is lost or late. Its own on a worker that cannot bring its part.
    pub(super) fn operands<'b>(
        &'b self,
        calling: Option<&mut GroupCall<'_>>,
        trained: &'b Trained,
        weights: impl Fn(&Tally) -> f64,
        threads: &Threads<'_>,
    ) -> Result<Operands<'b>> {
        let tallies = self.tallies();
        let weights: Vec<f64> = tallies.iter().map(|tally| weights(tally)).collect();
        let gradients: Vec<_> = self.mine.iter().map(|c| c.gradients.as_slice()).collect();
        match calling {
            Some(calling) => {
                let over_workers = OverWorkers { trained, tallies: &tallies, weights: &weights, threads };
                over_workers.operands(calling, &gradients)
            }
            None => {
                let all: Vec<_> = weights.into_iter().zip(gradients).collect();
                Operands::new(trained, &all, all.len())
            }
        }
    }
}
