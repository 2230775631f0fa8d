//! Formats of a figure: a row of a table, a line of text, or a line of JSON.

use super::figure::{Better, Role};
use super::numbers::number;
use super::output::coloured;
use super::report::{Report, Rival};
use serde_json::{Value, json};

/// The output format of results.
#[derive(Clone, Copy, PartialEq)]
pub enum Form {
    /// Text for a terminal or a log.
    Text,
    /// One JSON object per line.
    Json,
    /// A Markdown table.
    Markdown,
}

impl Report {
    /// Returns the headings for [`Report::row`].
    pub fn heads() -> String {
        let ours = "ours";
        format!(
            "{:<24} {ours:>9} {:>7} {:<9} {:>6}  {:<44} {:>7} {:>6}  to reach",
            "figure", "spread", "unit", "ratio", "best peer", "", "spread"
        )
    }

    /// Formats a row for a terminal.
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
            self.verdicts(),
        )
        .trim_end()
        .to_string()
    }

    /// Formats the measurements as one line of a log.
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
        if !self.verdicts().is_empty() {
            text += &format!("; to reach {}", self.verdicts());
        }
        text
    }

    /// The headings of the table whose rows [`Report::markdown`] formats.
    pub const MARKDOWN: &str =
        "| figure | ours (spread) | the best peer | ratio | goal |\n|---|---|---|---|---|";

    /// Formats a row for docs/reference/performance.md.
    pub fn markdown(&self) -> String {
        let peer = self.best_peer().map(|peer| format!("{}: {}", peer.label(), number(peer.values.median)));
        format!(
            "| `{}` | {} {} ({}) | {} | {} | {} |",
            self.about.name,
            number(self.ours.median),
            self.about.unit,
            number(self.ours.spread),
            peer.unwrap_or_default(),
            times(self.ratio()),
            self.verdicts().replace(": no", ": **no**"),
        )
    }

    /// Formats a JSON object for a program.
    pub fn json(&self) -> Value {
        let (about, peer) = (&self.about, self.best_peer());
        let source = |r: &Rival| r.recorded.clone().map_or("this run".into(), |m| format!("recorded: {m}"));
        let rival = |r: &Rival| {
            json!({
                "peer": r.name, "version": r.version, "value": r.values.median, "spread": r.values.spread,
                "min": r.values.min, "max": r.values.max, "source": source(r), "bound": r.role == Role::Bound, "whole": r.role == Role::Whole,
                "ratio": about.ratio(self.ours.median, r.values.median), "difference": r.difference, "sent": r.sent,
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
            "sent": self.sent,
            "peer": peer.map(|p| &p.name),
            "peer_value": peer.map(|p| p.values.median),
            "peer_spread": peer.map(|p| p.values.spread),
            "peer_version": peer.map(|p| &p.version),
            "peer_source": peer.map(source),
            "ratio": self.ratio(),
            "best_ratio": self.best_ratio(),
            "difference": self.difference(),
            "target": Some(self.verdicts()).filter(|verdicts| !verdicts.is_empty()),
            "reached": self.reached(),
            "peers": self.rivals.iter().map(rival).collect::<Vec<Value>>(),
        })
    }
}

impl Rival {
    /// Returns the name with the version.
    pub fn label(&self) -> String {
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

#[cfg(test)]
mod tests {
    use crate::report::tests::report;

    #[test]
    fn json_has_the_fields_that_programs_read() {
        let value = report().json();
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
}
