//! [`Report`]: the results for all links, as a table and as JSON.

use super::findings::{Finding, findings, micros, rate};
use super::link::{Link, State};
use serde::Serialize;

/// The links between the tasks of a cluster, and their problems.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The links, in the order in which they were measured.
    pub links: Vec<Link>,
    /// The problems of the links.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Creates the report on the given links, and finds their problems.
    pub fn new(links: Vec<Link>) -> Self {
        let findings = findings(&links);
        Self { links, findings }
    }

    /// Returns whether no link has a problem.
    pub fn is_healthy(&self) -> bool {
        self.findings.is_empty()
    }

    /// Returns the links as lines of a table. `colour` colors the word for a state. Its second argument is whether the
    /// link is healthy: it works, or the other side is training and need not answer.
    pub fn table(&self, colour: impl Fn(&str, bool) -> String) -> Vec<String> {
        let head = ["from", "to", "address", "state", "round trip", "bandwidth"].map(str::to_owned);
        let rows: Vec<[String; 6]> = std::iter::once(head).chain(self.links.iter().map(row)).collect();
        let widths: [usize; 6] =
            std::array::from_fn(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0));
        let line = |(number, row): (usize, &[String; 6])| {
            let mut line = String::new();
            for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
                let room = width - cell.chars().count();
                let right = at > 3;
                line += &" ".repeat(if right { room } else { 0 });
                // Colours have no width.
                line += &if at == 3 && number > 0 {
                    colour(cell, self.links[number - 1].is_healthy())
                } else {
                    cell.clone()
                };
                line += &" ".repeat(if right { 2 } else { room + 2 });
            }
            line.trim_end().to_owned()
        };
        rows.iter().enumerate().map(line).collect()
    }
}

impl Link {
    /// Returns whether the link works, or the other side is training and need not answer.
    fn is_healthy(&self) -> bool {
        matches!(self.state, State::Open { .. } | State::Training)
    }
}

fn row(link: &Link) -> [String; 6] {
    let (trip, band) = match link.state {
        State::Open { round_trip, bandwidth } => (micros(round_trip), rate(bandwidth)),
        _ => (String::new(), String::new()),
    };
    let state = match &link.state {
        State::Refused { what, .. } => format!("refused ({what})"),
        state => state.word().to_owned(),
    };
    [link.from.to_string(), link.to.to_string(), link.address.clone(), state, trip, band]
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_cluster::{Job, Task};

    #[test]
    fn a_report_is_a_table_and_json() {
        let link = |to, state| Link {
            from: Task::new("doctor", 0),
            to: Job::Ps.task(to),
            address: "10.0.0.7:2222".into(),
            state,
        };
        let report = Report::new(vec![
            link(0, State::Open { round_trip: 85e-6, bandwidth: 1.25e9 }),
            link(10, State::Refused { what: "secret".into(), why: "the secrets differ".into() }),
        ]);
        assert!(!report.is_healthy());
        let plain = report.table(|word, _| word.to_owned());
        assert_eq!(
            plain,
            [
                "from      to     address        state             round trip  bandwidth",
                "doctor 0  ps 0   10.0.0.7:2222  open                   85 µs   1.2 GB/s",
                "doctor 0  ps 10  10.0.0.7:2222  refused (secret)",
            ]
        );
        let coloured = report.table(|word, well| if well { word.to_owned() } else { format!("!{word}!") });
        assert!(coloured[2].contains("!refused (secret)!"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["links"][0]["state"]["is"], "open");
        assert_eq!(json["links"][0]["to"]["type"], "ps");
        assert_eq!(json["links"][1]["state"]["what"], "secret");
        assert_eq!(json["findings"][0]["is"], "refused");
    }
}
