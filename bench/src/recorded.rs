//! Recorded values of peers, for machines without them.

use super::figure::{About, Better, Role};
use super::report::{Report, Rival};
use super::statistics::Summary;
use serde_json::{Value, json};

/// Lines as printed by the peers' scripts, with a description of the machine.
const LINES: &str = include_str!("recorded.jsonl");

/// Returns the recorded peers of a figure. A ratio to them compares different machines.
pub fn of(figure: &str) -> Vec<Rival> {
    let lines = LINES.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["figure"] == figure).filter_map(|line| rival(&line)).collect()
}

/// Returns the lines to record for a figure, which contain its peers' values in this run. There are none if the figure
/// compares losses. `machine` describes the machine and the day.
pub fn lines(report: &Report, machine: &str) -> String {
    let measured =
        report.rivals.iter().filter(|r| r.role == Role::Peer && !r.in_process && r.recorded.is_none());
    // Losses are compared step by step, and a line does not contain them.
    let measured = measured.filter(|_| report.about.better != Better::Same);
    measured.map(|rival| format!("{}\n", line(&report.about, rival, machine))).collect()
}

fn line(about: &About, rival: &Rival, machine: &str) -> Value {
    json!({
        "figure": about.name, "unit": about.unit, "value": rival.values.median, "peer": rival.name,
        "version": rival.version, "machine": machine,
    })
}

fn rival(line: &Value) -> Option<Rival> {
    Some(Rival {
        name: line["peer"].as_str()?.into(),
        version: line["version"].as_str()?.into(),
        values: Summary::of(&[line["value"].as_f64()?]),
        sent: None,
        role: Role::Peer,
        in_process: false,
        difference: None,
        recorded: Some(line["machine"].as_str()?.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_run_is_what_its_peers_reached() {
        let about = crate::figures::figures()[0].about();
        let rival = |name: &str, role, in_process| Rival {
            name: name.into(),
            version: "1".into(),
            values: Summary::of(&[2., 4.]),
            sent: None,
            role,
            in_process,
            difference: None,
            recorded: None,
        };
        let rivals =
            vec![rival("a", Role::Peer, false), rival("b", Role::Bound, true), rival("c", Role::Peer, true)];
        let report = Report { about, ours: Summary::of(&[1.]), sent: None, rounds: 2, rivals };
        let kept = lines(&report, "here, today");
        let back = super::rival(&serde_json::from_str(&kept).unwrap()).unwrap();
        assert_eq!((back.name.as_str(), back.values.median), ("a", 3.));
        assert_eq!(back.recorded.unwrap(), "here, today");
    }

    #[test]
    fn every_line_can_be_read_and_names_a_figure() {
        let names: Vec<_> = crate::figures::figures().iter().map(|f| f.about().name).collect();
        for line in LINES.lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            assert!(rival(&value).is_some(), "{line}");
            assert!(names.iter().any(|name| value["figure"] == **name), "{line}");
        }
    }
}
