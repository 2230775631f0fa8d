//! The figures for training by two processes on two hosts.

use super::super::place::{Communication, Work};
use super::super::saving::Saving;
use super::super::start::{measured, measured_between};
use super::rate::Rate;
use crate::figure::{About, Beside, Better, Effort, Figure, Role, Target};
use crate::hosts::Hosts;
use crate::sample::Sample;
use crate::work::{Mlp, Model, Recommender, Zipf};
use distribute::Result;
use distribute::strategy::Compression;
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
    saving: Saving,
    model: PhantomData<fn() -> M>,
}

const BF16: Saving = Saving::Compression(Compression::Bf16);

/// The options with which each model is trained.
const MLP: [Saving; 8] = [
    Saving::NONE,
    BF16,
    Saving::Compression(Compression::EightBits),
    Saving::Compression(Compression::TopK),
    Saving::Compression(Compression::LowRank { rank: 4 }),
    Saving::LocalSteps(10, Compression::None),
    Saving::LocalSteps(10, Compression::EightBits),
    Saving::LocalSteps(10, Compression::TopK),
];
const RECOMMENDER: [Saving; 3] = [Saving::NONE, BF16, Saving::Tables];
const ZIPF: [Saving; 3] = [Saving::NONE, Saving::Tables, Saving::CachedTables(4)];

/// Calls the function of each model with each of its options, in the order of the figures.
fn each<T>(
    mlp: impl Fn(Saving) -> T,
    recommender: impl Fn(Saving) -> T,
    zipf: impl Fn(Saving) -> T,
) -> Vec<T> {
    let all = MLP.into_iter().map(mlp).chain(RECOMMENDER.into_iter().map(recommender));
    all.chain(ZIPF.into_iter().map(zipf)).collect()
}

/// Returns the names of all figures over a link with this rate.
pub fn names(rate: Rate) -> Vec<String> {
    each(
        |saving| name::<Mlp>(rate, saving),
        |saving| name::<Recommender>(rate, saving),
        |saving| name::<Zipf>(rate, saving),
    )
}

/// Returns all figures between the hosts, whose link has the given rate.
pub fn figures(rate: Rate, hosts: Hosts) -> Vec<Box<dyn Figure>> {
    fn of<M: Model>(rate: Rate, hosts: Hosts, saving: Saving) -> Box<dyn Figure> {
        Box::new(Trained::<M> { rate, hosts, saving, model: PhantomData })
    }
    each(
        |saving| of::<Mlp>(rate, hosts, saving),
        |saving| of::<Recommender>(rate, hosts, saving),
        |saving| of::<Zipf>(rate, hosts, saving),
    )
}

/// Returns the figure `name` between the hosts, or `None` if there is none of this name.
pub fn named(name: &str, hosts: Hosts) -> Option<Box<dyn Figure>> {
    let rate = name.rsplit('_').next()?.parse().ok()?;
    figures(rate, hosts).into_iter().find(|figure| figure.about().name == name)
}

fn name<M: Model>(rate: Rate, saving: Saving) -> String {
    format!("{}_{WORKERS}p_{rate}", variant::<M>(saving))
}

/// Returns the name of the model, with that of the option.
fn variant<M: Model>(saving: Saving) -> String {
    if saving == Saving::NONE { M::NAME.into() } else { format!("{}_{saving}", M::NAME) }
}

fn training<M: Model>(communication: Communication, saving: Saving, effort: Effort) -> Work {
    Work::Train { model: M::NAME.into(), communication, saving, seconds: effort.seconds }
}

/// Returns the number of bytes that a step sends, rounded up to a multiple of the size of an f32. It is measured over a
/// few steps.
fn bytes_of_a_step<M: Model>(hosts: &Hosts, saving: Saving) -> Result<usize> {
    let few = training::<M>(Communication::Sockets, saving, Effort { seconds: 0. });
    let bytes = measured_between(hosts, &few)?.sent.unwrap_or_default() as usize;
    Ok(bytes.next_multiple_of(size_of::<f32>()))
}

impl<M: Model> Figure for Trained<M> {
    fn about(&self) -> About {
        About {
            name: name::<M>(self.rate, self.saving),
            unit: "steps/s",
            better: Better::More,
            measures: format!(
                "SGD steps of {}, global batch {}, {WORKERS} processes of one replica and thread each, link {}, option {}",
                M::WORK,
                M::BATCH,
                self.rate,
                self.saving
            ),
            targets: vec![Target::BestPeer(1.)],
        }
    }

    fn round(&self, effort: Effort) -> Result<Sample> {
        measured_between(&self.hosts, &training::<M>(Communication::Sockets, self.saving, effort))
    }

    fn peers(&self) -> String {
        format!("{}_{WORKERS}_processes", variant::<M>(self.saving))
    }

    fn hosts(&self) -> Option<&Hosts> {
        Some(&self.hosts)
    }

    fn beside(&self) -> Vec<Beside> {
        let bound = |name: &str, round| Beside { name: name.into(), version: "", role: Role::Bound, round };
        let computing =
            |effort| measured(WORKERS, &training::<M>(Communication::Nothing, Saving::NONE, effort));
        let (hosts, saving, known) = (self.hosts, self.saving, Cell::new(None));
        let sending = move |Effort { seconds }| {
            let bytes = match known.get() {
                Some(bytes) => bytes,
                None => bytes_of_a_step::<M>(&hosts, saving)?,
            };
            known.set(Some(bytes));
            let micros = measured_between(&hosts, &Work::Exchange { bytes, seconds })?.value;
            Ok(Sample::from(1e6 / micros))
        };
        vec![bound(COMPUTING, Box::new(computing)), bound(SENDING, Box::new(sending))]
    }
}
