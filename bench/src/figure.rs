//! What a figure is: something measured, and what it is compared with.

use super::hosts::Hosts;
use super::sample::Sample;
use distribute::Result;

/// Something that `distribute-bench` measures. One kind a file; [`figures`](crate::figures::figures) lists them.
pub trait Figure {
    /// What it is called, what it means, and what is to be reached.
    fn about(&self) -> About;

    /// Measures once, from nothing: prepares, warms up, and gives the value in [`About::unit`].
    ///
    /// # Errors
    /// Those of the library.
    fn round(&self, effort: Effort) -> Result<Sample>;

    /// How many rounds there are where `wanted` are asked for: fewer of what takes seconds each time, or never changes.
    fn rounds(&self, wanted: usize) -> usize {
        wanted
    }

    /// What its name is in the peers' scripts.
    fn peers(&self) -> String {
        self.about().name
    }

    /// The hosts between which it is measured, if that isn't done on this one.
    fn hosts(&self) -> Option<&Hosts> {
        None
    }

    /// What is measured beside it in this process.
    fn beside(&self) -> Vec<Beside> {
        Vec::new()
    }
}

/// Something else that does the same work in this process.
pub struct Beside {
    /// The library, and how it is used.
    pub name: String,
    /// Its version.
    pub version: &'static str,
    /// What it is to us.
    pub role: Role,
    /// Measures once.
    pub round: Box<dyn Fn(Effort) -> Result<Sample>>,
}

/// What something that is measured beside is to us.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// A library that one could use instead.
    Peer,
    /// It only bounds what is possible.
    Bound,
    /// What the figure is a part of.
    Whole,
}

/// What a figure is called, what it means, and what is to be reached.
#[derive(Clone, Debug)]
pub struct About {
    /// A name for `--filter`, with words joined by `_`. Peers' scripts use the same.
    pub name: String,
    /// The unit of the values.
    pub unit: &'static str,
    /// Which values are better.
    pub better: Better,
    /// What exactly is measured.
    pub measures: String,
    /// What we want to reach, all of it.
    pub targets: Vec<Target>,
}

/// Which values are better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Better {
    /// As of times.
    Less,
    /// As of rates.
    More,
    /// As of losses, which are to be the same.
    Same,
}

/// What we want to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// This value.
    Value(f64),
    /// So many times the best peer.
    BestPeer(f64),
    /// So many times the best of this library's, its name being how peers' names begin.
    Library(&'static str, f64),
    /// So many times the bound.
    Bound(f64),
    /// No loss differs by more from any peer's.
    Difference(f64),
}

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// How long one round measures, warm-up not counted, in seconds.
    pub seconds: f64,
}

impl Effort {
    /// How many calls of about `estimate` seconds fill a round.
    pub fn calls(&self, estimate: f64) -> usize {
        ((self.seconds / estimate) as usize).clamp(8, 1_000_000)
    }
}

impl About {
    /// How many times better than `other` a value is: above 1 it is better, for times too. None where neither is better.
    pub fn ratio(&self, value: f64, other: f64) -> Option<f64> {
        match self.better {
            Better::Less => Some(other / value),
            Better::More => Some(value / other),
            Better::Same => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_one_is_better_for_times_too() {
        let mut about = About {
            name: "x".into(),
            unit: "µs",
            better: Better::Less,
            measures: String::new(),
            targets: Vec::new(),
        };
        assert_eq!(about.ratio(1., 2.), Some(2.));
        about.better = Better::More;
        assert_eq!(about.ratio(1., 2.), Some(0.5));
        about.better = Better::Same;
        assert_eq!(about.ratio(1., 2.), None);
    }
}
