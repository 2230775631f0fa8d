//! What a figure is: something measured, and what it is compared with.

use distribute::Result;

/// Something that `distribute bench` measures. One a file; [`figures`](super::figures) lists them.
pub trait Figure {
    /// What it is called, what it means, and what it is compared with.
    fn about(&self) -> About;

    /// Measures once, from nothing: prepares, warms up, and gives the value in [`About::unit`].
    ///
    /// # Errors
    /// Those of the library.
    fn round(&self, effort: Effort) -> Result<f64>;
}

/// What a figure is called, what it means, and what it is compared with.
#[derive(Clone, Debug)]
pub struct About {
    /// A name for `--filter`, with words joined by `_`.
    pub name: String,
    /// The unit of the values.
    pub unit: &'static str,
    /// Whether less is better, as for times.
    pub lower_is_better: bool,
    /// What exactly is measured.
    pub measures: String,
    /// What others reach.
    pub peers: &'static [Peer],
    /// What we want to reach.
    pub reach: Option<f64>,
}

/// What another library reached. Recorded, not measured in this run: the ratio to it compares two machines.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The library, and how it was used.
    pub name: &'static str,
    /// The value, in the unit of the figure.
    pub value: f64,
    /// Where it was written down, and on what machine it was measured.
    pub source: &'static str,
}

/// The machine of the recorded figures of peers.
pub const RECORDED: &str = "DESIGN section 8, measured 2026-11-20 on 2 shared Zen4 cores";

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
    /// The best of the peers.
    pub fn best_peer(&self) -> Option<&Peer> {
        let better = |a: &&Peer, b: &&Peer| match self.lower_is_better {
            true => a.value.total_cmp(&b.value),
            false => b.value.total_cmp(&a.value),
        };
        self.peers.iter().min_by(better)
    }

    /// How many times better than `other` a value is: above 1 it is better, for times too.
    pub fn ratio(&self, value: f64, other: f64) -> f64 {
        match self.lower_is_better {
            true => other / value,
            false => value / other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(lower_is_better: bool) -> About {
        const PEERS: &[Peer] =
            &[Peer { name: "a", value: 2., source: "" }, Peer { name: "b", value: 8., source: "" }];
        About {
            name: "x".into(),
            unit: "µs",
            lower_is_better,
            measures: String::new(),
            peers: PEERS,
            reach: None,
        }
    }

    #[test]
    fn the_best_peer_and_the_ratio_follow_the_direction() {
        let (times, rates) = (about(true), about(false));
        assert_eq!(times.best_peer().map(|p| p.name), Some("a"));
        assert_eq!(rates.best_peer().map(|p| p.name), Some("b"));
        assert_eq!(times.ratio(1., 2.), 2.);
        assert_eq!(rates.ratio(1., 2.), 0.5);
    }
}
