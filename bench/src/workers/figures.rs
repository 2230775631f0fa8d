//! Figures for two processes: all-reduces over both kinds of links, and training.

use super::place::{Communication, Links, Work};
use super::saving::Saving;
use super::start::measured;
use crate::figure::{About, Better, Effort, Figure, Target};
use crate::numbers::size;
use crate::sample::Sample;
use crate::work::{Mlp, Model, Recommender};
use distribute::Result;
use std::marker::PhantomData;

const WORKERS: usize = 2;

/// The sizes of vectors in bytes, from latency-bound to bandwidth-bound.
const SIZES: [usize; 10] =
    [64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// The figure for all-reduces between two processes.
struct AllReduce {
    links: Links,
    bytes: usize,
}

/// The figure for training by two processes.
struct Trained<M>(PhantomData<fn() -> M>);

/// Returns the figures for all sizes over both links, and for both models.
pub fn figures() -> Vec<Box<dyn Figure>> {
    let sums = Links::ALL.into_iter().flat_map(|links| SIZES.map(|bytes| AllReduce { links, bytes }));
    let mut all: Vec<_> = sums.map(|figure| Box::new(figure) as Box<dyn Figure>).collect();
    all.push(Box::new(Trained::<Mlp>(PhantomData)));
    all.push(Box::new(Trained::<Recommender>(PhantomData)));
    all
}

impl Figure for AllReduce {
    fn about(&self) -> About {
        let Self { links, bytes } = self;
        let over = match links {
            Links::Tcp => "TCP on this machine",
            Links::Shared => "shared memory",
        };
        About {
            name: format!("all_reduce_{WORKERS}p_{}_{}", links.name(), size(*bytes)),
            unit: "µs",
            better: Better::Less,
            measures: format!("sum of one f32 vector of {bytes} bytes, {WORKERS} processes over {over}"),
            targets: vec![Target::BestPeer(1.)],
        }
    }

    fn round(&self, effort: Effort) -> Result<Sample> {
        let work = Work::Sum { links: self.links, bytes: self.bytes, seconds: effort.seconds };
        measured(WORKERS, &work)
    }
}

impl<M: Model> Figure for Trained<M> {
    fn about(&self) -> About {
        About {
            name: format!("{}_{WORKERS}_processes", M::NAME),
            unit: "steps/s",
            better: Better::More,
            measures: format!(
                "SGD steps of {}, global batch {}, {WORKERS} processes of one replica and thread each",
                M::WORK,
                M::BATCH
            ),
            targets: vec![Target::BestPeer(1.)],
        }
    }

    fn round(&self, effort: Effort) -> Result<Sample> {
        let (model, seconds) = (M::NAME.into(), effort.seconds);
        let (communication, saving) = (Communication::Auto, Saving::NONE);
        measured(WORKERS, &Work::Train { model, communication, saving, seconds })
    }
}
