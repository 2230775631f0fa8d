//! The measurements of a figure, and their evaluation.

use super::figure::{About, Better, Role, Target};
use super::numbers::number;
use super::statistics::Summary;

/// The measurements of a figure.
pub struct Report {
    /// The figure that was measured.
    pub about: About,
    /// The values of this library's rounds.
    pub ours: Summary,
    /// The number of bytes that one of two hosts sent per step, if they were counted.
    pub sent: Option<f64>,
    /// The number of rounds.
    pub rounds: usize,
    /// The values of the alternatives.
    pub rivals: Vec<Rival>,
}

/// The values of another library or of a bound.
#[derive(Clone, Debug)]
pub struct Rival {
    /// The name and the configuration of the library.
    pub name: String,
    /// The version of the library.
    pub version: String,
    /// The values of the rounds.
    pub values: Summary,
    /// The number of bytes that one of two hosts sent per step, if they were counted.
    pub sent: Option<f64>,
    /// The role of the alternative in the comparison.
    pub role: Role,
    /// Whether the alternative was measured in this process.
    pub in_process: bool,
    /// The maximum difference between the alternative's losses and those of this library, if losses are compared.
    pub difference: Option<f64>,
    /// The machine and the day of the measurement, if the values are recorded, rather than measured in this run.
    pub recorded: Option<String>,
}

impl Report {
    /// Returns the factor by which the median of this library is better than that of the best peer. Returns `None` if
    /// there is no peer, or if values must be equal.
    pub fn ratio(&self) -> Option<f64> {
        self.about.ratio(self.ours.median, self.best_peer()?.values.median)
    }

    /// Returns the factor by which the best round of this library is better than the best round of any peer. Even on a
    /// busy machine, these rounds are undisturbed. Returns `None` if there is no peer, or if values must be equal.
    pub fn best_ratio(&self) -> Option<f64> {
        let ratio = |rival: &Rival| self.about.ratio(self.best(&self.ours), self.best(&rival.values));
        self.of(Role::Peer).filter_map(ratio).min_by(f64::total_cmp)
    }

    /// Returns the best of the values of rounds. If values must be equal, this is the smallest.
    pub fn best(&self, values: &Summary) -> f64 {
        match self.about.better {
            Better::More => values.max,
            Better::Less | Better::Same => values.min,
        }
    }

    /// Returns the alternatives, with this library's ratio to each, for plots. Omits those of which the figure is a
    /// part.
    pub fn ratios(&self) -> Vec<(&Rival, f64)> {
        let ratio = |r: &Rival| self.about.ratio(self.ours.median, r.values.median);
        let compared = self.rivals.iter().filter(|rival| rival.role != Role::Whole);
        compared.filter_map(|r| Some((r, ratio(r)?))).collect()
    }

    fn of(&self, role: Role) -> impl Iterator<Item = &Rival> {
        self.rivals.iter().filter(move |rival| rival.role == role)
    }

    /// Returns `true` if all targets are reached. Returns `None` if there are no targets, or if a value for a
    /// comparison is missing.
    pub fn reached(&self) -> Option<bool> {
        let reached = self.about.targets.iter().map(|target| self.reaches(*target));
        reached
            .collect::<Option<Vec<_>>>()
            .filter(|all| !all.is_empty())
            .map(|all| all.into_iter().all(|r| r))
    }

    fn reaches(&self, target: Target) -> Option<bool> {
        let ratio = |other| self.about.ratio(self.ours.median, other);
        Some(match target {
            Target::Value(value) => ratio(value)? >= 1.,
            Target::BestPeer(times) => self.ratio()? >= times,
            Target::Library(name, times) => ratio(self.library(name)?.values.median)? >= times,
            Target::Bound(times) => ratio(self.of(Role::Bound).next()?.values.median)? >= times,
            Target::Difference(most) => self.difference()? <= most,
        })
    }

    /// Returns the maximum difference between this library's losses and those of any peer. Returns `None` if no losses
    /// were compared.
    pub fn difference(&self) -> Option<f64> {
        self.rivals.iter().filter_map(|rival| rival.difference).max_by(f64::total_cmp)
    }

    /// Returns the peer with the best median, or `None` if there is no peer.
    pub fn best_peer(&self) -> Option<&Rival> {
        self.library("")
    }

    /// Returns the best of the peers whose names begin with `name`, or `None` if there are none.
    fn library(&self, name: &str) -> Option<&Rival> {
        let goodness = |rival: &&Rival| match self.about.better {
            Better::Less | Better::Same => -rival.values.median,
            Better::More => rival.values.median,
        };
        let peers = self.of(Role::Peer).filter(|r| r.values.median.is_finite() && r.name.starts_with(name));
        peers.max_by(|a, b| goodness(a).total_cmp(&goodness(b)))
    }

    /// Describes the targets, and whether they are reached. If the figure is a part of a complete value, describes its
    /// share.
    pub fn verdicts(&self) -> String {
        let text = |target: &Target| {
            let what = match target {
                Target::Value(value) => format!("{} {}", number(*value), self.about.unit),
                Target::BestPeer(times) => format!("{times} x the best peer"),
                Target::Library(name, times) => match self.library(name) {
                    Some(best) => format!("{times} x {name} ({})", number(best.values.median)),
                    None => format!("{times} x {name}"),
                },
                Target::Bound(times) => match self.of(Role::Bound).next() {
                    Some(bound) => format!("{times} x {} ({})", bound.name, number(bound.values.median)),
                    None => format!("{times} x the bound"),
                },
                Target::Difference(most) => match self.difference() {
                    Some(found) => format!("losses within {most:e} (greatest difference {found:.1e})"),
                    None => format!("losses within {most:e}"),
                },
            };
            let verdict = match self.reaches(*target) {
                Some(true) => "yes",
                Some(false) => "no",
                None => "not known",
            };
            format!("{what}: {verdict}")
        };
        let part = self.of(Role::Whole).map(|whole| {
            let (ours, all, unit) = (self.ours.median, whole.values.median, self.about.unit);
            let percent = number(100. * ours / all);
            format!("{} of {} {unit} ({percent} %) of {}", number(ours), number(all), whole.name)
        });
        self.about.targets.iter().map(text).chain(part).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    fn rival(name: &str, value: f64, role: Role) -> Rival {
        Rival {
            name: name.into(),
            version: "1".into(),
            values: Summary::of(&[value]),
            sent: None,
            role,
            in_process: false,
            difference: None,
            recorded: None,
        }
    }

    pub fn report() -> Report {
        let about = About {
            name: "empty_step".into(),
            unit: "µs",
            better: Better::Less,
            measures: "an empty step".into(),
            targets: vec![Target::Value(5.), Target::BestPeer(2.)],
        };
        let rivals = vec![
            rival("slow", 300., Role::Peer),
            rival("fast", 160., Role::Peer),
            rival("bound", 3., Role::Bound),
        ];
        Report { about, ours: Summary::of(&[2., 4., 6.]), sent: None, rounds: 3, rivals }
    }

    #[test]
    fn every_target_has_to_be_reached() {
        let mut report = report();
        report.about.targets.push(Target::Bound(0.8));
        assert_eq!(report.reached(), Some(false));
        report.about.targets.pop();
        report.rivals.clear();
        assert_eq!(report.reached(), None);
    }

    #[test]
    fn losses_are_compared_by_their_difference() {
        let mut report = report();
        report.about.better = Better::Same;
        report.about.targets = vec![Target::Difference(1e-3)];
        report.rivals[0].difference = Some(1e-5);
        assert_eq!(report.reached(), Some(true));
        report.rivals[1].difference = Some(0.5);
        assert_eq!(report.reached(), Some(false));
    }

    #[test]
    fn a_library_is_the_best_of_its_ways_and_a_part_is_said_of_its_whole() {
        let mut report = report();
        report.about.targets = vec![Target::Library("fast", 40.), Target::Library("slow", 76.)];
        assert_eq!(report.verdicts(), "40 x fast (160): yes, 76 x slow (300): no");
        report.about.targets = vec![Target::Library("other", 1.)];
        assert_eq!(report.reached(), None);
        assert_eq!(report.verdicts(), "1 x other: not known");
        report.about.targets.clear();
        report.rivals.push(rival("the step", 5., Role::Whole));
        assert_eq!(report.verdicts(), "4.00 of 5.00 µs (80.0 %) of the step");
        assert_eq!(report.ratios().len(), 3);
        assert_eq!(report.best_peer().unwrap().name, "fast");
    }
}
