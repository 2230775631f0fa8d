//! Figures that peers reached when they were last measured, for machines without them.

use super::report::Rival;
use super::statistics::Summary;
use serde_json::Value;

/// Lines as the peers' scripts print them, with the machine.
const LINES: &str = include_str!("recorded.jsonl");

/// The peers of a figure. The ratio to them compares two machines.
pub fn of(figure: &str) -> Vec<Rival> {
    let lines = LINES.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["figure"] == figure).filter_map(|line| rival(&line)).collect()
}

fn rival(line: &Value) -> Option<Rival> {
    Some(Rival {
        name: line["peer"].as_str()?.into(),
        version: line["version"].as_str()?.into(),
        values: Summary::of(&[line["value"].as_f64()?]),
        bound: false,
        in_process: false,
        difference: None,
        recorded: Some(line["machine"].as_str()?.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_can_be_read_and_names_a_figure() {
        let names: Vec<_> = super::super::figures().iter().map(|f| f.about().name).collect();
        for line in LINES.lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            assert!(rival(&value).is_some(), "{line}");
            assert!(names.iter().any(|name| value["figure"] == **name), "{line}");
        }
    }
}
