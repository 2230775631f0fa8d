//! What a worker's process is told by `bench --child workers/…`.

use super::super::figure::Effort;
use super::super::invalid;
use super::super::work::{Mlp, Model, Recommender};
use super::{sum, train};
use crate::output;
use distribute::Result;
use distribute::cluster::World;
use distribute_net::SharedMemory;
use std::fmt;
use std::str::FromStr;

/// Where a process is among the workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// How many there are, and which one this is.
    pub world: World,
    /// Where worker 0 listens, `host:port`.
    pub leader: String,
}

impl Place {
    /// The addresses of all workers. Only worker 0's is known before they meet.
    pub fn addresses(&self) -> Vec<String> {
        let others = (1..self.world.workers()).map(|_| "127.0.0.1:0".to_string());
        std::iter::once(self.leader.clone()).chain(others).collect()
    }
}

/// What links the workers of an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Sockets.
    Tcp,
    /// Memory that they share.
    Shared,
}

impl Links {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Shared];

    /// Short, for names of figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shared => "shm",
        }
    }

    /// What has workers use them.
    pub fn shared_memory(self) -> SharedMemory {
        match self {
            Self::Tcp => SharedMemory::Never,
            Self::Shared => SharedMemory::Auto,
        }
    }
}

/// What all workers do, for about so many seconds.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// All-reduces of vectors of so many bytes.
    Sum { links: Links, bytes: usize, seconds: f64 },
    /// Training steps of the model of this name.
    Train { model: String, seconds: f64 },
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sum { links, bytes, seconds } => write!(f, "sum/{}/{bytes}/{seconds}", links.name()),
            Self::Train { model, seconds } => write!(f, "train/{model}/{seconds}"),
        }
    }
}

/// What [`start`](super::start) tells a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    pub place: Place,
    pub work: Work,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { world, leader } = &self.place;
        write!(f, "workers/{}/{}/{leader}/{}", world.workers(), world.worker(), self.work)
    }
}

impl FromStr for Order {
    type Err = distribute::Error;

    fn from_str(text: &str) -> Result<Self> {
        parsed(text).ok_or_else(|| invalid(format!("--child knows no {text:?}")))
    }
}

fn parsed(text: &str) -> Option<Order> {
    let parts: Vec<_> = text.split('/').collect();
    let ["workers", workers, worker, leader, ref work @ ..] = parts[..] else { return None };
    let work = match *work {
        ["sum", links, bytes, seconds] => Work::Sum {
            links: Links::ALL.into_iter().find(|known| known.name() == links)?,
            bytes: bytes.parse().ok()?,
            seconds: seconds.parse().ok()?,
        },
        ["train", model, seconds] => Work::Train { model: model.into(), seconds: seconds.parse().ok()? },
        _ => return None,
    };
    let world = World::new(workers.parse().ok()?, worker.parse().ok()?, 1).ok()?;
    Some(Order { place: Place { world, leader: leader.into() }, work })
}

/// In the process of a worker: does its work. Worker 0 prints what it measured.
pub fn child(name: &str) -> Result<()> {
    let Order { place, work } = name.parse()?;
    let value = match work {
        Work::Sum { links, bytes, seconds } => sum::micros(&place, links, bytes, Effort { seconds })?,
        Work::Train { model, seconds } if model == Mlp::NAME => {
            train::steps_per_second::<Mlp>(&place, Effort { seconds })?
        }
        Work::Train { model, seconds } if model == Recommender::NAME => {
            train::steps_per_second::<Recommender>(&place, Effort { seconds })?
        }
        Work::Train { model, .. } => return Err(invalid(format!("--child knows no model {model:?}"))),
    };
    if place.world.is_chief() { output::line(value.to_string()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_what_was_meant() {
        let place = Place { world: World::new(3, 1, 1).unwrap(), leader: "127.0.0.1:77".into() };
        for work in [
            Work::Sum { links: Links::Shared, bytes: 4096, seconds: 0.25 },
            Work::Train { model: "mlp".into(), seconds: 1. },
        ] {
            let order = Order { place: place.clone(), work };
            assert_eq!(order.to_string().parse::<Order>().unwrap(), order);
        }
        assert_eq!(place.addresses(), ["127.0.0.1:77", "127.0.0.1:0", "127.0.0.1:0"]);
    }

    #[test]
    fn other_words_are_refused_by_name() {
        for text in ["workers", "workers/2/0/a:1/sum/moon/1/1", "workers/2/5/a:1/train/mlp/1", "growth/x"] {
            assert!(text.parse::<Order>().unwrap_err().to_string().contains(text), "{text}");
        }
        let error = child("workers/1/0/a:1/train/moon/1").unwrap_err();
        assert!(error.to_string().contains("moon"), "{error}");
    }
}
