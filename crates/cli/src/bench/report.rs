//! One figure as a row of a table, a plain line or a line of JSON.

use super::figure::{About, Better, Target};
use super::statistics::Summary;
use crate::output::coloured;
use serde_json::{Value, json};

/// What was measured of one figure.
pub struct Report {
    /// The figure.
    pub about: About,
    /// What the rounds gave.
    pub ours: Summary,
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
    /// Whether it is no library that one could use instead.
    pub bound: bool,
    /// Whether it was measured in this process.
    pub in_process: bool,
    /// By how much its losses differ from ours at most.
    pub difference: Option<f64>,
    /// The machine and day, where it was not measured in this run.
    pub recorded: Option<String>,
}

impl Report {
    /// The heads of [`Report::row`]'s columns.
    pub fn heads() -> String {
        let ours = "ours";
        format!(
            "{:<24} {ours:>9} {:>7} {:<9} {:>6}  {:<44} {:>7} {:>6}  to reach",
            "figure", "spread", "unit", "ratio", "best peer", "", "spread"
        )
    }

    /// For a person at a terminal.
    pub fn row(&self) -> String {
        let about = &self.about;
        // Padded before it is coloured: escapes have no width.
        let ours = format!("{:>9}", number(self.ours.median));
        let ours = match self.reached() {
            None => ours,
            Some(true) => coloured(&ours, 32),
            Some(false) => coloured(&ours, 31),
        };
        let (peer, value, spread) = self
            .best_peer()
            .map_or_else(Default::default, |p| (p.label(), number(p.values.median), number(p.values.spread)));
        format!(
            "{:<24} {ours} {:>7} {:<9} {:>6}  {peer:<44} {value:>7} {spread:>6}  {}",
            about.name,
            number(self.ours.spread),
            about.unit,
            self.ratio().map(|r| format!("{}x", number(r))).unwrap_or_default(),
            self.targets(),
        )
        .trim_end()
        .to_string()
    }

    /// For a log.
    pub fn plain(&self) -> String {
        let (about, ours) = (&self.about, &self.ours);
        let mut text = format!(
            "{}: {} {} (spread {}, {} to {}, {} rounds)",
            about.name,
            number(ours.median),
            about.unit,
            number(ours.spread),
            number(ours.min),
            number(ours.max),
            self.rounds,
        );
        for rival in &self.rivals {
            text += &format!(", {} {}", rival.label(), number(rival.values.median));
            if let Some(ratio) = about.ratio(ours.median, rival.values.median) {
                text += &format!(": {}x", number(ratio));
            }
        }
        if !about.targets.is_empty() {
            text += &format!("; to reach {}", self.targets());
        }
        text
    }

    /// The heads of [`Report::markdown`]'s columns.
    pub const MARKDOWN: &str = "| figure | ours (spread, best) | ratio to the best peer | of bests | to reach | others (spread, best) |\n|---|---|---|---|---|---|";

    /// For docs/performance.md.
    pub fn markdown(&self) -> String {
        let with_spread = |values: &Summary| {
            let best = number(self.best(values));
            format!("{} ({}, best {best})", number(values.median), number(values.spread))
        };
        let others = self.rivals.iter().map(|r| format!("{} {}", r.label(), with_spread(&r.values)));
        format!(
            "| `{}` | {} {} | {} | {} | {} | {} |",
            self.about.name,
            with_spread(&self.ours),
            self.about.unit,
            times(self.ratio()),
            times(self.best_ratio()),
            self.targets().replace(": no", ": **no**"),
            others.collect::<Vec<_>>().join("; "),
        )
    }

    /// For a program.
    pub fn json(&self) -> String {
        let (about, peer) = (&self.about, self.best_peer());
        let source = |r: &Rival| r.recorded.clone().map_or("this run".into(), |m| format!("recorded: {m}"));
        let rival = |r: &Rival| {
            json!({
                "peer": r.name, "version": r.version, "value": r.values.median, "spread": r.values.spread,
                "min": r.values.min, "max": r.values.max, "source": source(r), "bound": r.bound,
                "ratio": about.ratio(self.ours.median, r.values.median), "difference": r.difference,
            })
        };
        json!({
            "figure": about.name,
            "unit": about.unit,
            "better": match about.better { Better::Less => "less", Better::More => "more", Better::Same => "same" },
            "measures": about.measures,
            "ours": self.ours.median,
            "spread": self.ours.spread,
            "min": self.ours.min,
            "max": self.ours.max,
            "rounds": self.rounds,
            "peer": peer.map(|p| &p.name),
            "peer_value": peer.map(|p| p.values.median),
            "peer_spread": peer.map(|p| p.values.spread),
            "peer_version": peer.map(|p| &p.version),
            "peer_source": peer.map(source),
            "ratio": self.ratio(),
            "best_ratio": self.best_ratio(),
            "difference": self.difference(),
            "target": (!about.targets.is_empty()).then(|| self.targets()),
            "reached": self.reached(),
            "peers": self.rivals.iter().map(rival).collect::<Vec<Value>>(),
        })
        .to_string()
    }

    /// Ours over the best peer's, above 1 where ours is better.
    pub fn ratio(&self) -> Option<f64> {
        self.about.ratio(self.ours.median, self.best_peer()?.values.median)
    }

    /// Our best round over the best of any peer: on a busy machine the rounds that nothing disturbed.
    fn best_ratio(&self) -> Option<f64> {
        let peers = self.rivals.iter().filter(|rival| !rival.bound);
        let ratio = |rival: &Rival| self.about.ratio(self.best(&self.ours), self.best(&rival.values));
        peers.filter_map(ratio).min_by(f64::total_cmp)
    }

    fn best(&self, values: &Summary) -> f64 {
        match self.about.better {
            Better::More => values.max,
            Better::Less | Better::Same => values.min,
        }
    }

    /// Peers and their ratios, for plots.
    pub fn ratios(&self) -> Vec<(&Rival, f64)> {
        let ratio = |r: &Rival| self.about.ratio(self.ours.median, r.values.median);
        self.rivals.iter().filter_map(|r| Some((r, ratio(r)?))).collect()
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
            Target::Bound(times) => {
                ratio(self.rivals.iter().find(|rival| rival.bound)?.values.median)? >= times
            }
            Target::Difference(most) => self.difference()? <= most,
        })
    }

    fn difference(&self) -> Option<f64> {
        self.rivals.iter().filter_map(|rival| rival.difference).max_by(f64::total_cmp)
    }

    fn best_peer(&self) -> Option<&Rival> {
        let goodness = |rival: &&Rival| match self.about.better {
            Better::Less | Better::Same => -rival.values.median,
            Better::More => rival.values.median,
        };
        let peers = self.rivals.iter().filter(|rival| !rival.bound && rival.values.median.is_finite());
        peers.max_by(|a, b| goodness(a).total_cmp(&goodness(b)))
    }

    fn targets(&self) -> String {
        let text = |target: &Target| {
            let what = match target {
                Target::Value(value) => format!("{} {}", number(*value), self.about.unit),
                Target::BestPeer(times) => format!("{times} x the best peer"),
                Target::Bound(times) => match self.rivals.iter().find(|rival| rival.bound) {
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
        self.about.targets.iter().map(text).collect::<Vec<_>>().join(", ")
    }
}

impl Rival {
    fn label(&self) -> String {
        match &self.recorded {
            Some(_) => format!("{} ({}, recorded)", self.name, self.version),
            None if self.version.is_empty() => self.name.clone(),
            None => format!("{} ({})", self.name, self.version),
        }
    }
}

fn times(ratio: Option<f64>) -> String {
    ratio.map(|r| format!("{} ×", number(r))).unwrap_or_default()
}

/// Three digits that mean something.
pub fn number(x: f64) -> String {
    match x.abs() {
        a if a >= 100. => format!("{x:.0}"),
        a if a >= 10. => format!("{x:.1}"),
        a if a >= 1. => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rival(name: &str, value: f64, bound: bool) -> Rival {
        Rival {
            name: name.into(),
            version: "1".into(),
            values: Summary::of(&[value]),
            bound,
            in_process: false,
            difference: None,
            recorded: None,
        }
    }

    fn report() -> Report {
        let about = About {
            name: "empty_step".into(),
            unit: "µs",
            better: Better::Less,
            measures: "an empty step".into(),
            targets: vec![Target::Value(5.), Target::BestPeer(2.)],
        };
        let rivals = vec![rival("slow", 300., false), rival("fast", 160., false), rival("bound", 3., true)];
        Report { about, ours: Summary::of(&[2., 4., 6.]), rounds: 3, rivals }
    }

    #[test]
    fn json_has_the_fields_that_programs_read() {
        let value: Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(value["figure"], "empty_step");
        assert_eq!(value["ours"], 4.0);
        assert_eq!(value["spread"], 2.0);
        assert_eq!(value["peer"], "fast");
        assert_eq!(value["peer_value"], 160.0);
        assert_eq!(value["ratio"], 40.0);
        assert_eq!(value["best_ratio"], 80.0);
        assert_eq!(value["reached"], true);
        assert_eq!(value["peers"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn a_plain_line_says_all_of_it() {
        assert_eq!(
            report().plain(),
            "empty_step: 4.00 µs (spread 2.00, 2.00 to 6.00, 3 rounds), slow (1) 300: 75.0x, fast (1) 160: 40.0x, \
             bound (1) 3.00: 0.750x; to reach 5.00 µs: yes, 2 x the best peer: yes"
        );
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
}
