//! One figure as a row of a table, a plain line or a line of JSON.

use super::figure::About;
use super::statistics::Summary;
use crate::output::coloured;

/// What was measured of one figure.
pub struct Report {
    /// The figure.
    pub about: About,
    /// What the rounds gave.
    pub ours: Summary,
    /// How many rounds there were.
    pub rounds: usize,
}

impl Report {
    /// The heads of [`Report::row`]'s columns.
    pub fn heads() -> String {
        let ours = "ours";
        format!(
            "{:<26} {ours:>11} {:>8} {:>9} {:<9} {:>9}  {:<34} {:>7}",
            "figure", "spread", "best", "unit", "reach", "peer (recorded)", "ratio"
        )
    }

    /// For a person at a terminal.
    pub fn row(&self) -> String {
        let about = &self.about;
        let best = if about.lower_is_better { self.ours.min } else { self.ours.max };
        let peer = about.best_peer().map(|p| format!("{} {}", p.name, number(p.value))).unwrap_or_default();
        let ratio = self.ratio().map(|r| format!("{}x", number(r))).unwrap_or_default();
        // Padded before it is coloured: escapes have no width.
        let ours = format!("{:>11}", number(self.ours.median));
        let ours = match self.reached() {
            None => ours,
            Some(true) => coloured(&ours, 32),
            Some(false) => coloured(&ours, 31),
        };
        format!(
            "{:<26} {ours} {:>8} {:>9} {:<9} {:>9}  {peer:<34} {ratio:>7}",
            about.name,
            number(self.ours.spread),
            number(best),
            about.unit,
            about.reach.map(number).unwrap_or_default(),
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
        if let (Some(reach), Some(reached)) = (about.reach, self.reached()) {
            text += &format!(", to reach {}: {}", number(reach), if reached { "yes" } else { "no" });
        }
        if let (Some(peer), Some(ratio)) = (about.best_peer(), self.ratio()) {
            text += &format!(", {} {} (recorded): {}x", peer.name, number(peer.value), number(ratio));
        }
        text
    }

    /// For a program.
    pub fn json(&self) -> String {
        let (about, peer) = (&self.about, self.about.best_peer());
        serde_json::json!({
            "figure": about.name,
            "unit": about.unit,
            "lower_is_better": about.lower_is_better,
            "measures": about.measures,
            "ours": self.ours.median,
            "spread": self.ours.spread,
            "min": self.ours.min,
            "max": self.ours.max,
            "rounds": self.rounds,
            "peer": peer.map(|p| p.name),
            "peer_value": peer.map(|p| p.value),
            "peer_source": peer.map(|p| p.source),
            "ratio": self.ratio(),
            "reach": about.reach,
            "reached": self.reached(),
        })
        .to_string()
    }

    fn ratio(&self) -> Option<f64> {
        self.about.best_peer().map(|peer| self.about.ratio(self.ours.median, peer.value))
    }

    fn reached(&self) -> Option<bool> {
        self.about.reach.map(|reach| self.about.ratio(self.ours.median, reach) >= 1.)
    }
}

/// Three digits that mean something.
fn number(x: f64) -> String {
    match x.abs() {
        a if a >= 100. => format!("{x:.0}"),
        a if a >= 10. => format!("{x:.1}"),
        a if a >= 1. => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::figure::Peer;
    use super::*;

    fn report() -> Report {
        const PEERS: &[Peer] = &[Peer { name: "TensorFlow", value: 160., source: "a machine" }];
        let about = About {
            name: "empty_step".into(),
            unit: "µs",
            lower_is_better: true,
            measures: "an empty step".into(),
            peers: PEERS,
            reach: Some(5.),
        };
        Report { about, ours: Summary::of(&[2., 4., 6.]), rounds: 3 }
    }

    #[test]
    fn json_has_the_fields_that_programs_read() {
        let value: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(value["figure"], "empty_step");
        assert_eq!(value["ours"], 4.0);
        assert_eq!(value["spread"], 2.0);
        assert_eq!(value["peer_value"], 160.0);
        assert_eq!(value["ratio"], 40.0);
        assert_eq!(value["reached"], true);
    }

    #[test]
    fn a_plain_line_says_all_of_it() {
        assert_eq!(
            report().plain(),
            "empty_step: 4.00 µs (spread 2.00, 2.00 to 6.00, 3 rounds), to reach 5.00: yes, \
             TensorFlow 160 (recorded): 40.0x"
        );
    }
}
