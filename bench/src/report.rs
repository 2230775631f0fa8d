//! What was measured of one figure, and what is reached by it.

use super::figure::{About, Better, Role, Target};
use super::numbers::number;
use super::statistics::Summary;

/// What was measured of one figure.
pub struct Report {
    /// The figure.
    pub about: About,
    /// What the rounds gave.
    pub ours: Summary,
    /// Bytes that one of two hosts sent in a step, where they were counted.
    pub sent: Option<f64>,
    /// How many rounds there were.
    pub rounds: usize,
    /// What others gave.
    pub rivals: Vec<Rival>,
}

/// What another library gave, or what bounds us.
#[derive(Clone, Debug)]
pub struct Rival {
    /// The library, and how it was used.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What the rounds gave.
    pub values: Summary,
    /// Bytes sent in a step, as of ours.
    pub sent: Option<f64>,
    /// What it is to us.
    pub role: Role,
    /// Whether it was measured in this process.
    pub in_process: bool,
    /// By how much its losses differ from ours at most.
    pub difference: Option<f64>,
    /// The machine and day, where it was not measured in this run.
    pub recorded: Option<String>,
}

impl Report {
    /// Ours over the best peer's, above 1 where ours is better.
    pub fn ratio(&self) -> Option<f64> {
        self.about.ratio(self.ours.median, self.best_peer()?.values.median)
    }

    /// Our best round over the best of any peer: on a busy machine the rounds that nothing disturbed.
    pub fn best_ratio(&self) -> Option<f64> {
        let ratio = |rival: &Rival| self.about.ratio(self.best(&self.ours), self.best(&rival.values));
        self.of(Role::Peer).filter_map(ratio).min_by(f64::total_cmp)
    }

    /// The best of rounds.
    pub fn best(&self, values: &Summary) -> f64 {
        match self.about.better {
            Better::More => values.max,
            Better::Less | Better::Same => values.min,
        }
    }

    /// Those that we are compared with, and the ratios to them, for plots.
    pub fn ratios(&self) -> Vec<(&Rival, f64)> {
        let ratio = |r: &Rival| self.about.ratio(self.ours.median, r.values.median);
        let compared = self.rivals.iter().filter(|rival| rival.role != Role::Whole);
        compared.filter_map(|r| Some((r, ratio(r)?))).collect()
    }

    fn of(&self, role: Role) -> impl Iterator<Item = &Rival> {
        self.rivals.iter().filter(move |rival| rival.role == role)
    }

    /// Whether all that we want to reach is; none where there is nothing to compare with.
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

    /// The greatest difference of losses.
    pub fn difference(&self) -> Option<f64> {
        self.rivals.iter().filter_map(|rival| rival.difference).max_by(f64::total_cmp)
    }

    /// The peer with the best median.
    pub fn best_peer(&self) -> Option<&Rival> {
        self.library("")
    }

    /// The best of the peers whose names begin so.
    fn library(&self, name: &str) -> Option<&Rival> {
        let goodness = |rival: &&Rival| match self.about.better {
            Better::Less | Better::Same => -rival.values.median,
            Better::More => rival.values.median,
        };
        let peers = self.of(Role::Peer).filter(|r| r.values.median.is_finite() && r.name.starts_with(name));
        peers.max_by(|a, b| goodness(a).total_cmp(&goodness(b)))
    }

    /// What is to be reached and whether it is; of a part, which it is of the whole.
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
