//! The order that a worker's process receives with `--child workers/…`.

use super::saving::Saving;
use crate::error::invalid;
use distribute::Result;
use distribute::cluster::World;
use distribute_net::SharedMemory;
use std::fmt;
use std::str::FromStr;

/// The position of a process among the workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// The world, with the number of workers and the rank of this worker.
    pub world: World,
    /// The addresses of all workers, as `host:port`. Only worker 0's port must be known before the rendezvous.
    pub addresses: Vec<String>,
}

/// The links between the workers of an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Sockets, even on the same machine.
    Tcp,
    /// Shared memory.
    Shared,
}

impl Links {
    /// Both kinds of links.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Shared];

    /// Returns a short name for use in figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shared => "shm",
        }
    }

    /// Returns the setting of shared memory that selects these links.
    pub fn shared_memory(self) -> SharedMemory {
        match self {
            Self::Tcp => SharedMemory::Never,
            Self::Shared => SharedMemory::Auto,
        }
    }
}

/// The communication between the workers of a training run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Communication {
    /// The communication is chosen automatically. On one machine, it is shared memory.
    Auto,
    /// Sockets, even on the same machine.
    Sockets,
    /// No communication. Each worker computes only its own part of a step.
    Nothing,
}

impl Communication {
    const ALL: [Self; 3] = [Self::Auto, Self::Sockets, Self::Nothing];

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Sockets => "sockets",
            Self::Nothing => "nothing",
        }
    }
}

/// The work of the workers. Each kind of work takes approximately the given number of seconds.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// All-reduces of vectors of the given size in bytes.
    Sum { links: Links, bytes: usize, seconds: f64 },
    /// Exchanges: each worker sends a vector of the given size in bytes to every other worker, and no vectors are
    /// added.
    Exchange { bytes: usize, seconds: f64 },
    /// Training steps of the model with the given name.
    Train { model: String, communication: Communication, saving: Saving, seconds: f64 },
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sum { links, bytes, seconds } => write!(f, "sum/{}/{bytes}/{seconds}", links.name()),
            Self::Exchange { bytes, seconds } => write!(f, "exchange/{bytes}/{seconds}"),
            Self::Train { model, communication, saving, seconds } => {
                write!(f, "train/{model}/{}/{saving}/{seconds}", communication.name())
            }
        }
    }
}

/// The order that [`start`](super::start) sends to a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    pub place: Place,
    pub work: Work,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { world, addresses } = &self.place;
        write!(f, "workers/{}/{}/{}", world.worker(), addresses.join(","), self.work)
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
    let ["workers", worker, addresses, ref work @ ..] = parts[..] else { return None };
    let work = match *work {
        ["sum", links, bytes, seconds] => Work::Sum {
            links: Links::ALL.into_iter().find(|known| known.name() == links)?,
            bytes: bytes.parse().ok()?,
            seconds: seconds.parse().ok()?,
        },
        ["exchange", bytes, seconds] => {
            Work::Exchange { bytes: bytes.parse().ok()?, seconds: seconds.parse().ok()? }
        }
        ["train", model, communication, saving, seconds] => Work::Train {
            model: model.into(),
            communication: Communication::ALL.into_iter().find(|known| known.name() == communication)?,
            saving: saving.parse().ok()?,
            seconds: seconds.parse().ok()?,
        },
        _ => return None,
    };
    let addresses: Vec<_> = addresses.split(',').map(str::to_string).collect();
    let world = World::new(addresses.len(), worker.parse().ok()?, 1).ok()?;
    Some(Order { place: Place { world, addresses }, work })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_what_was_meant() {
        let addresses = ["127.0.0.1:77", "127.0.0.1:0", "10.0.0.1:0"].map(String::from).into();
        let place = Place { world: World::new(3, 1, 1).unwrap(), addresses };
        for work in [
            Work::Sum { links: Links::Shared, bytes: 4096, seconds: 0.25 },
            Work::Exchange { bytes: 77, seconds: 0.5 },
            Work::Train {
                model: "mlp".into(),
                communication: Communication::Auto,
                saving: Saving::NONE,
                seconds: 1.,
            },
            Work::Train {
                model: "zipf".into(),
                communication: Communication::Sockets,
                saving: Saving::CachedTables(4),
                seconds: 1.,
            },
        ] {
            let order = Order { place: place.clone(), work };
            assert_eq!(order.to_string().parse::<Order>().unwrap(), order);
        }
    }

    #[test]
    fn other_words_are_refused_by_name() {
        for text in [
            "workers",
            "workers/0/a:1,b:1/sum/moon/1/1",
            "workers/5/a:1,b:1/train/mlp/auto/none/1",
            "workers/0/a:1,b:1/train/mlp/moon/none/1",
            "workers/0/a:1,b:1/train/mlp/auto/moon/1",
            "growth/x",
        ] {
            assert!(text.parse::<Order>().unwrap_err().to_string().contains(text), "{text}");
        }
    }
}
