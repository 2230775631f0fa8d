//! What one replica brings to a step.

use super::losses::{self, Losses};
use super::on_devices::{self, DeviceGradient};
use super::reduction;
use super::tally::{Kind, SentAhead, Tally};
use super::transform::Transform;
use super::{Trained, Weighting};
use candle_core::{Tensor, Var};
use distribute_base::Result;
use distribute_base::internal::{Bucket, LocalGradient};
use std::sync::Arc;

/// What one replica brings to a step.
#[derive(Debug)]
pub(super) struct Contribution {
    pub(super) tally: Tally,
    /// For each variable its gradient on the host, none where the loss doesn't depend on it.
    pub(super) gradients: Vec<Option<LocalGradient>>,
    /// What has stayed on the replica's device, if anything has.
    pub(super) on_device: Option<OnDevice>,
}

/// What a replica brings without having waited for its device.
#[derive(Debug)]
pub(super) struct OnDevice {
    /// For each variable its gradient, if that is there.
    pub(super) gradients: Vec<Option<DeviceGradient>>,
    /// As [`Losses`] has them, until they are read into the tally.
    losses: Option<Vec<(Tensor, usize)>>,
}

impl Contribution {
    /// The replica's gradients, transformed, with duplicates of rows added up: here, on the replica's own thread. Those of variables
    /// with a copy in `stay` stay on the replica's device, and so does the loss of a lone replica, where there are such variables.
    pub(super) fn new(
        trained: &Trained,
        mine: Losses,
        before_reduce: &[Transform],
        stay: &[Option<&Var>],
        looks_at_gradients: bool,
    ) -> Result<Self> {
        let Losses { gradients, mut bucket, weighting, losses, dtype, .. } = mine;
        let gradients = gradients.of_optimizer(trained)?;
        let mut tally = Tally {
            weighting,
            loss: 0.,
            dtype,
            rows: None,
            finite: true,
            position: None,
            kinds: vec![Kind::Nothing; gradients.len()],
            sent: None,
            order: None,
        };
        let mut on_device = OnDevice { gradients: vec![None; gradients.len()], losses: Some(losses) };
        let stays = stay.iter().any(Option::is_some);
        // Of several replicas the mean is taken on the host.
        if !stays || looks_at_gradients || trained.strategy.world().replicas() > 1 {
            on_device.read_losses(&mut tally)?;
        }
        // INV-9: of no examples they have no weight, not even if they are NaN. Added up over none, they are the others':
        // their losses depend on this replica, through collectives.
        if weighting == Weighting::MeanOver(0) {
            let none = vec![None; gradients.len()];
            return Ok(Self { tally, gradients: none, on_device: stays.then_some(on_device) });
        }
        let mut found = Vec::with_capacity(gradients.len());
        for (number, (gradient, (_, variable))) in gradients.into_iter().zip(&trained.variables).enumerate() {
            let Some(gradient) = gradient else {
                found.push(None);
                continue;
            };
            match stay.get(number).copied().flatten() {
                Some(copy) => {
                    on_device.gradients[number] = Some(DeviceGradient::of(gradient, copy)?);
                    found.push(None);
                }
                None => found.push(Some(gradient.into_local(variable)?)),
            }
        }
        if let Some(bucket) = &mut bucket {
            on_device.add_rows_of(bucket, stay)?;
        }
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
            on_devices::weigh(&mut on_device.gradients, weight)?;
            on_devices::transform(before_reduce, &mut on_device.gradients, stay)?;
        }
        tally.kinds = gradients.iter().map(Kind::of).collect();
        for (kind, gradient) in tally.kinds.iter_mut().zip(&on_device.gradients) {
            *kind = kind.plus(gradient.as_ref().map_or(Kind::Nothing, DeviceGradient::kind));
        }
        tally.sent = sent_ahead(&gradients);
        let mut made = Self { tally, gradients, on_device: stays.then_some(on_device) };
        if looks_at_gradients && made.tally.finite {
            made.tally.finite = made.is_finite(trained)?;
        }
        Ok(made)
    }

    /// The loss, a mean over this replica's examples, where nobody has read it.
    pub(super) fn unread_loss(&self) -> Result<Option<Tensor>> {
        let losses = self.on_device.as_ref().and_then(|on_device| on_device.losses.as_deref());
        losses.map_or(Ok(None), losses::mean)
    }

    pub(super) fn has_unread_losses(&self) -> bool {
        self.on_device.as_ref().is_some_and(|on_device| on_device.losses.is_some())
    }

    /// The same, with everything on the host. Waits for the device.
    pub(super) fn to_host(&self, trained: &Trained) -> Result<Self> {
        let (mut tally, mut gradients) = (self.tally.clone(), self.gradients.clone());
        if let Some(OnDevice { gradients: there, losses }) = &self.on_device {
            for ((gradient, there), (_, variable)) in gradients.iter_mut().zip(there).zip(&trained.variables)
            {
                if let Some(there) = there {
                    *gradient = Some(there.to_host(variable)?);
                }
            }
            let mut unread = OnDevice { gradients: Vec::new(), losses: losses.clone() };
            unread.read_losses(&mut tally)?;
        }
        Ok(Self { tally, gradients, on_device: None })
    }

    fn is_finite(&self, trained: &Trained) -> Result<bool> {
        let there = self.on_device.iter().flat_map(|on_device| on_device.gradients.iter().flatten());
        Ok(super::finite::all_finite(trained, &self.gradients)?
            && on_devices::are_finite(there.filter_map(DeviceGradient::values))?)
    }
}

impl OnDevice {
    /// Adds the rows that layers have put into the bucket; those of variables that don't `stay` go to the host.
    fn add_rows_of(&mut self, bucket: &mut Bucket, stay: &[Option<&Var>]) -> Result<()> {
        for (number, rows) in bucket.take_device_rows() {
            let Some(copy) = stay.get(number).copied().flatten() else {
                bucket.add_rows(number, rows.to_host()?);
                continue;
            };
            let gradient = &mut self.gradients[number];
            let rows = DeviceGradient::Rows(rows);
            *gradient = Some(match gradient.take() {
                Some(before) => before.plus(rows, copy)?,
                None => rows,
            });
        }
        Ok(())
    }

    fn read_losses(&mut self, tally: &mut Tally) -> Result<()> {
        if let Some(losses) = self.losses.take() {
            tally.loss = losses::read(&losses)?;
            tally.finite &= tally.loss.is_finite();
        }
        Ok(())
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
    let call = all.early_call()?;
    gradients.iter().enumerate().all(is_sent).then(|| SentAhead { call, layout: all.layout().digest() })
}
