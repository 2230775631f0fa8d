//! Figures: measurements, and the values with which they are compared.

use super::hosts::Hosts;
use super::sample::Sample;
use distribute::Result;

/// A measurement of `distribute-bench`. Each kind of measurement has a separate file;
/// [`figures`](crate::figures::figures) lists them.
pub trait Figure {
    /// Returns the name, the meaning and the targets of the figure.
    fn about(&self) -> About;

    /// Measures one round from scratch: prepares, warms up, and returns the value in [`About::unit`].
    ///
    /// # Errors
    /// Returns the errors of the library.
    fn round(&self, effort: Effort) -> Result<Sample>;

    /// Returns the number of rounds to measure if `wanted` are requested. It is lower if each round takes seconds, or
    /// if the value never changes.
    fn rounds(&self, wanted: usize) -> usize {
        wanted
    }

    /// Returns the name of the figure in the peers' scripts.
    fn peers(&self) -> String {
        self.about().name
    }

    /// Returns the hosts between which the figure is measured, or `None` if it is measured on this host.
    fn hosts(&self) -> Option<&Hosts> {
        None
    }

    /// Returns the alternatives that are measured in this process.
    fn beside(&self) -> Vec<Beside> {
        Vec::new()
    }
}

/// An alternative that does the same work in this process.
pub struct Beside {
    /// The name and the configuration of the library.
    pub name: String,
    /// The version of the library.
    pub version: &'static str,
    /// The role in the comparison.
    pub role: Role,
    /// Measures one round.
    pub round: Box<dyn Fn(Effort) -> Result<Sample>>,
}

/// The role of an alternative in a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// A library that users could choose instead.
    Peer,
    /// A bound on the value that is possible.
    Bound,
    /// The complete value of which the figure is a part.
    Whole,
}

/// The name, the meaning and the targets of a figure.
#[derive(Clone, Debug)]
pub struct About {
    /// The name for `--filter`, with words joined by `_`. The peers' scripts use the same name, unless
    /// [`Figure::peers`] returns another one.
    pub name: String,
    /// The unit of the values.
    pub unit: &'static str,
    /// The direction in which the value improves.
    pub better: Better,
    /// A description of the measurement.
    pub measures: String,
    /// The targets, all of which should be reached.
    pub targets: Vec<Target>,
}

/// The direction in which a figure improves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Better {
    /// Smaller is better, as with times.
    Less,
    /// Larger is better, as with rates.
    More,
    /// Values must be equal, as with losses.
    Same,
}

/// A target for a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// The given value.
    Value(f64),
    /// A multiple of the best peer's value.
    BestPeer(f64),
    /// A multiple of the value of the best peer whose name begins with the given name.
    Library(&'static str, f64),
    /// A multiple of the bound.
    Bound(f64),
    /// The maximum difference between a loss and that of any peer.
    Difference(f64),
}

/// The amount of measurement for a figure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The duration of one round without warm-up, in seconds.
    pub seconds: f64,
}

impl Effort {
    /// Returns the number of calls that fill a round, if each takes about `estimate` seconds: at least 8, and at most
    /// 1,000,000.
    pub fn calls(&self, estimate: f64) -> usize {
        ((self.seconds / estimate) as usize).clamp(8, 1_000_000)
    }
}

impl About {
    /// Returns the factor by which `value` is better than `other`. It is greater than 1 if `value` is better. Returns
    /// `None` if neither can be better.
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
