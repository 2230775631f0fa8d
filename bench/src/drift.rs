//! The cost of comparing variables between workers, which detects divergence.

use super::figure::{About, Better, Effort, Figure, Target};
use super::sample::Sample;
use super::training::{steps_per_second, warmed_up};
use super::work::{Mlp, Model, RATE, Recommender, Training};
use distribute::cluster::Stopwatch;
use distribute::{MultiWorkerMirroredStrategy, Result};
use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const WORKERS: usize = 2;

/// The name of the timeline's slice in which a worker computes its checksum of a step.
const SLICE: &str = "compare";

/// The figure for the share of checksums in the time of a model's steps.
struct Share<M> {
    reach: Option<f64>,
    model: PhantomData<fn() -> M>,
}

/// Returns figures for a model whose step reads all of its variables, and for a model whose step reads a few rows of
/// its tables.
pub fn figures() -> Vec<Box<dyn Figure>> {
    let model = PhantomData;
    vec![
        Box::new(Share::<Mlp> { reach: Some(0.1), model }),
        Box::new(Share::<Recommender> { reach: None, model: PhantomData }),
    ]
}

impl<M: Model> Figure for Share<M> {
    fn about(&self) -> About {
        About {
            name: format!("drift_{}", M::NAME),
            unit: "%",
            better: Better::Less,
            measures: format!(
                "share of the time of SGD steps of {}, global batch {}, in which {WORKERS} workers compare variables, each in 100 steps",
                M::WORK,
                M::BATCH
            ),
            targets: self.reach.map(Target::Value).into_iter().collect(),
        }
    }

    fn round(&self, effort: Effort) -> Result<Sample> {
        let shares = MultiWorkerMirroredStrategy::on_threads(WORKERS, 1, |strategy| {
            let mut training = Training::<M>::by(strategy.clone(), RATE, M::BATCH)?;
            let agree = training.agreement();
            let mut step = || training.step().map(|loss| drop(black_box(loss)));
            let calls = warmed_up(effort, agree, &mut step)?;
            let spent = Spent::default();
            let pace = tracing::subscriber::with_default(spent.clone(), || steps_per_second(calls, step))?;
            Ok(100. * spent.seconds() * pace / calls as f64)
        })?;
        Ok(shares.into_iter().fold(0., f64::max).into())
    }
}

/// A subscriber that adds up the seconds that this thread spends in the slice.
#[derive(Clone, Default)]
struct Spent(Arc<Mutex<(f64, Option<Stopwatch>)>>);

impl Spent {
    fn seconds(&self) -> f64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Subscriber for Spent {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == SLICE
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(Stopwatch::start());
    }
    fn exit(&self, _: &Id) {
        let mut spent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watch) = spent.1.take() {
            spent.0 += watch.seconds();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slice_is_there_in_each_step_and_nothing_else_is_counted() {
        let spent = MultiWorkerMirroredStrategy::on_threads(2, 1, |strategy| {
            let spent = Spent::default();
            tracing::subscriber::with_default(spent.clone(), || {
                drop(tracing::trace_span!("update").entered());
                assert!(spent.seconds() == 0.);
                strategy.run((), |_, ()| Ok(()))
            })?;
            Ok(spent.seconds())
        });
        assert!(spent.unwrap().into_iter().all(|seconds| seconds > 0.));
    }
}
