//! The figures for training by two processes on two hosts.

use super::super::place::{Communication, Work};
use super::super::start::{measured, measured_between};
use super::rate::Rate;
use crate::figure::{About, Beside, Better, Effort, Figure, Role, Target};
use crate::hosts::Hosts;
use crate::sample::Sample;
use crate::work::{Mlp, Model, Recommender};
use distribute::Result;
use std::cell::Cell;
use std::marker::PhantomData;

const WORKERS: usize = 2;

/// The name of the bound on steps per second that computing alone sets.
pub const COMPUTING: &str = "computing alone";
/// The name of the bound on steps per second that sending alone sets.
pub const SENDING: &str = "sending alone";

/// The figure for training on two hosts.
struct Trained<M> {
    rate: Rate,
    hosts: Hosts,
    model: PhantomData<fn() -> M>,
}

/// Returns the names of both models' figures over a link with this rate.
pub fn names(rate: Rate) -> [String; 2] {
    [name::<Mlp>(rate), name::<Recommender>(rate)]
}

/// Returns the figures of both models between the hosts, whose link has the given rate.
pub fn figures(rate: Rate, hosts: Hosts) -> [Box<dyn Figure>; 2] {
    [
        Box::new(Trained::<Mlp> { rate, hosts, model: PhantomData }),
        Box::new(Trained::<Recommender> { rate, hosts, model: PhantomData }),
    ]
}

/// Returns the figure `name` between the hosts, or `None` if there is none of this name.
pub fn named(name: &str, hosts: Hosts) -> Option<Box<dyn Figure>> {
    let rate = name.rsplit('_').next()?.parse().ok()?;
    figures(rate, hosts).into_iter().find(|figure| figure.about().name == name)
}

fn name<M: Model>(rate: Rate) -> String {
    format!("{}_{WORKERS}p_{rate}", M::NAME)
}

fn training<M: Model>(communication: Communication, effort: Effort) -> Work {
    Work::Train { model: M::NAME.into(), communication, seconds: effort.seconds }
}

/// Returns the number of bytes that a step sends, rounded up to a multiple of the size of an f32. It is measured over a
/// few steps.
fn bytes_of_a_step<M: Model>(hosts: &Hosts) -> Result<usize> {
    let few = training::<M>(Communication::Sockets, Effort { seconds: 0. });
    let bytes = measured_between(hosts, &few)?.sent.unwrap_or_default() as usize;
    Ok(bytes.next_multiple_of(size_of::<f32>()))
}

impl<M: Model> Figure for Trained<M> {
    fn about(&self) -> About {
        About {
            name: name::<M>(self.rate),
            unit: "steps/s",
            better: Better::More,
            measures: format!(
                "SGD steps of {}, global batch {}, {WORKERS} processes of one replica and thread each, over a link of rate {}",
                M::WORK,
                M::BATCH,
                self.rate
            ),
            targets: vec![Target::BestPeer(1.)],
        }
    }

    fn round(&self, effort: Effort) -> Result<Sample> {
        measured_between(&self.hosts, &training::<M>(Communication::Sockets, effort))
    }

    fn peers(&self) -> String {
        format!("{}_{WORKERS}_processes", M::NAME)
    }

    fn hosts(&self) -> Option<&Hosts> {
        Some(&self.hosts)
    }

    fn beside(&self) -> Vec<Beside> {
        let bound = |name: &str, round| Beside { name: name.into(), version: "", role: Role::Bound, round };
        let computing = |effort| measured(WORKERS, &training::<M>(Communication::Nothing, effort));
        let (hosts, known) = (self.hosts, Cell::new(None));
        let sending = move |Effort { seconds }| {
            let bytes = match known.get() {
                Some(bytes) => bytes,
                None => bytes_of_a_step::<M>(&hosts)?,
            };
            known.set(Some(bytes));
            let micros = measured_between(&hosts, &Work::Exchange { bytes, seconds })?.value;
            Ok(Sample::from(1e6 / micros))
        };
        vec![bound(COMPUTING, Box::new(computing)), bound(SENDING, Box::new(sending))]
    }
}
