//! The gradients of one replica: ready to be reduced, with their header.

use crate::checks::finite::all_finite;
use crate::gradients::Gradient;
use crate::header::{EarlyGradients, GradientKind, StepHeader};
use crate::parameters::Parameters;
use crate::step::backward::{self, Losses};
use crate::update::devices;
use crate::{Inner, Weighting, reduce};
use candle_core::{Tensor, Var};
use distribute_base::Result;
use distribute_base::internal::{Bucket, ReplicaGradient};
use std::sync::Arc;

/// The gradients of one replica in a step.
#[derive(Debug)]
pub(crate) struct ReplicaGradients {
    pub(crate) header: StepHeader,
    /// The gradient of each variable, on the host or on the replica's device; `None` if the loss does not depend on
    /// it.
    pub(crate) gradients: Vec<Option<ReplicaGradient>>,
    /// Mean losses on a device, each with its examples, until they are read into the header.
    unread: Option<Vec<(Tensor, usize)>>,
}

impl ReplicaGradients {
    /// Makes them ready on the replica's own thread: transformed, with duplicates of rows added up. Those of variables
    /// with a copy in `stay` stay on the replica's device, and so does the loss of a lone replica, where there are such
    /// variables.
    pub(crate) fn new(optimizer: &Inner, mine: Losses, stay: &[Option<&Var>]) -> Result<Self> {
        let Losses { gradients, bucket, weighting, losses, dtype, .. } = mine;
        let parameters = &*optimizer.parameters;
        let found = gradients.of_optimizer(parameters)?;
        let header = StepHeader::new(weighting, dtype, found.len());
        let mut made = Self { header, gradients: Vec::new(), unread: Some(losses) };
        let (stays, looks) = (stay.iter().any(Option::is_some), optimizer.not_finite.looks_at_gradients());
        // Of several replicas the mean is taken on the host.
        if !stays || looks || parameters.strategy.world().replicas() > 1 {
            made.read_losses()?;
        }
        // INV-9: of no examples they have no weight, not even if they are NaN. Added up over none, they are the
        // others': their losses depend on this replica, through collectives.
        if weighting == Weighting::MeanOver(0) {
            made.gradients = vec![None; found.len()];
            return Ok(made);
        }
        made.gradients = collected(parameters, found, bucket, stay)?;
        if !optimizer.before_reduce.is_empty() && weighting != Weighting::SumOver(0) {
            made.transform(optimizer, stay)?;
        }
        made.header.kinds = made.gradients.iter().map(GradientKind::of).collect();
        made.header.early = early_gradients(&made.gradients);
        if looks && made.header.finite {
            made.header.finite =
                all_finite(parameters, &made.gradients)? && devices::are_finite(&made.gradients)?;
        }
        Ok(made)
    }

    /// Returns the mean loss over this replica's examples, if it has not been read.
    pub(crate) fn unread_loss(&self) -> Result<Option<Tensor>> {
        self.unread.as_deref().map_or(Ok(None), backward::mean)
    }

    pub(crate) fn has_unread_losses(&self) -> bool {
        self.unread.is_some()
    }

    /// The same, with everything on the host. Waits for the device.
    pub(crate) fn to_host(&self, parameters: &Parameters) -> Result<Self> {
        let gradients = devices::to_host(parameters, &self.gradients)?;
        let mut made = Self { header: self.header.clone(), gradients, unread: self.unread.clone() };
        made.read_losses()?;
        Ok(made)
    }

    fn read_losses(&mut self) -> Result<()> {
        if let Some(losses) = self.unread.take() {
            self.header.set_loss(backward::read(&losses)?);
        }
        Ok(())
    }

    /// Applies what is asked for before the reduction.
    fn transform(&mut self, optimizer: &Inner, stay: &[Option<&Var>]) -> Result<()> {
        let transforms = &optimizer.before_reduce;
        // What users clip is the gradient of the mean, whose size does not grow with the piece of the batch.
        let weight = match self.header.weighting {
            Weighting::SumOver(examples) => {
                self.header.weighting = Weighting::MeanOver(examples);
                1. / examples as f64
            }
            _ => 1.,
        };
        let on_host = reduce::transformed(transforms, &optimizer.parameters, weight, &self.gradients)?;
        devices::weigh(&mut self.gradients, weight)?;
        devices::transform(transforms, &mut self.gradients, stay)?;
        for (gradient, on_host) in self.gradients.iter_mut().zip(on_host) {
            if gradient.as_ref().is_none_or(|gradient| !gradient.is_on_device()) {
                *gradient = on_host;
            }
        }
        Ok(())
    }
}

/// The gradients that candle has `found` and those that layers have put into the bucket, where the replica needs them.
fn collected(
    parameters: &Parameters,
    found: Vec<Option<Gradient>>,
    mut bucket: Option<Bucket>,
    stay: &[Option<&Var>],
) -> Result<Vec<Option<ReplicaGradient>>> {
    let copy = |number: usize| stay.get(number).copied().flatten();
    let mut there: Vec<(usize, &Var, ReplicaGradient)> = Vec::new();
    let mut on_host = Vec::with_capacity(found.len());
    for (number, (gradient, (_, variable))) in found.into_iter().zip(&parameters.variables).enumerate() {
        on_host.push(match (gradient, copy(number)) {
            (Some(gradient), Some(copy)) => {
                there.push((number, copy, gradient.on_device(copy)?));
                None
            }
            (gradient, _) => gradient.map(|gradient| gradient.on_host(variable)).transpose()?,
        });
    }
    if let Some(bucket) = &mut bucket {
        for (number, rows) in bucket.take_device_rows() {
            match copy(number) {
                Some(copy) => there.push((number, copy, ReplicaGradient::Rows(rows))),
                None => bucket.add_rows(number, rows.to_host(parameters.variables[number].1.dtype())?),
            }
        }
    }
    let mut all = match bucket {
        Some(bucket) => bucket.into_gradients(on_host)?,
        None => on_host,
    };
    for (number, copy, gradient) in there {
        all[number] = Some(match all[number].take() {
            Some(before) => before.into_device(copy)?.plus_on_device(gradient, copy)?,
            None => gradient,
        });
    }
    Ok(all)
}

/// Returns the early send of the dense gradients, if it had all of them. It lacks a gradient that is in no pack, and
/// one by row of a variable that has a place in a pack.
fn early_gradients(gradients: &[Option<ReplicaGradient>]) -> Option<EarlyGradients> {
    let all = gradients.iter().flatten().find_map(ReplicaGradient::packs)?;
    let is_sent = |(number, gradient): (usize, &Option<ReplicaGradient>)| match gradient {
        Some(ReplicaGradient::Rows(_)) => !all.layout().has(number),
        Some(dense) => dense.packs().is_some_and(|packs| Arc::ptr_eq(packs, all)),
        None => true,
    };
    let call = all.early_call()?;
    gradients.iter().enumerate().all(is_sent).then(|| EarlyGradients { call, layout: all.layout().digest() })
}
