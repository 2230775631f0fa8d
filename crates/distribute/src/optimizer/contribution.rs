//! What one replica brings to a step.

use super::Trained;
use super::Weighting;
use super::losses::Losses;
use super::reduction;
use super::tally::{Kind, SentAhead, Tally};
use super::transform::Transform;
use crate::Result;
use crate::deposit::LocalGradient;
use std::sync::Arc;

/// What one replica brings to a step.
#[derive(Debug)]
pub(super) struct Contribution {
    pub(super) tally: Tally,
    /// For each variable its gradient, none where the loss doesn't depend on it.
    pub(super) gradients: Vec<Option<LocalGradient>>,
}

impl Contribution {
    /// The replica's gradients, transformed, with duplicates of rows added up: here, on the replica's own thread.
    pub(super) fn new(trained: &Trained, mine: Losses, before_reduce: &[Transform]) -> Result<Self> {
        let Losses { gradients, bucket, weighting, loss, dtype, .. } = mine;
        let gradients = gradients.of_optimizer(trained)?;
        let mut tally = Tally {
            weighting,
            loss,
            dtype,
            rows: None,
            finite: loss.is_finite(),
            position: None,
            kinds: vec![Kind::Nothing; gradients.len()],
            sent: None,
            order: None,
        };
        // INV-9: of no examples they have no weight, not even if they are NaN. Added up over none, they are the others':
        // their losses depend on this replica, through collectives.
        if weighting == Weighting::MeanOver(0) {
            return Ok(Self { tally, gradients: vec![None; gradients.len()] });
        }
        let found = gradients.into_iter().zip(&trained.variables).map(|(gradient, (_, variable))| {
            gradient.map(|gradient| LocalGradient::new(gradient, variable)).transpose()
        });
        let found = found.collect::<Result<Vec<_>>>()?;
        let mut gradients = match bucket {
            Some(bucket) => LocalGradient::collected(bucket, found)?,
            None => found,
        };
        if !before_reduce.is_empty() && weighting != Weighting::SumOver(0) {
            // What users clip is the gradient of the mean, whose size does not grow with the piece of the batch.
            let weight = match weighting {
                Weighting::SumOver(examples) => {
                    tally.weighting = Weighting::MeanOver(examples);
                    1. / examples as f64
                }
                _ => 1.,
            };
            gradients = reduction::transformed(before_reduce, trained, weight, &gradients)?;
        }
        tally.kinds = gradients.iter().map(Kind::of).collect();
        tally.sent = sent_ahead(&gradients);
        Ok(Self { tally, gradients })
    }
}

/// How all dense gradients have been sent to the other workers, if all have: those that are in no pack have not, and one by row
/// of a variable that has a place is missing there.
fn sent_ahead(gradients: &[Option<LocalGradient>]) -> Option<SentAhead> {
    let flat = |gradient: &LocalGradient| match gradient {
        LocalGradient::Deposited(dense) => dense.flat().cloned(),
        _ => None,
    };
    let all = gradients.iter().flatten().find_map(flat)?;
    let is_sent = |(number, gradient): (usize, &Option<LocalGradient>)| match gradient {
        Some(LocalGradient::Rows(_)) => !all.layout().has(number),
        Some(dense) => flat(dense).is_some_and(|flat| Arc::ptr_eq(&flat, &all)),
        None => true,
    };
    let call = all.sent_ahead()?;
    gradients.iter().enumerate().all(is_sent).then(|| SentAhead { call, layout: all.layout().digest() })
}
