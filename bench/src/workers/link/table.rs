//! The results of training over a link: steps per second, bytes sent, and the time of a step compared with its parts.

use super::training::{COMPUTING, SENDING};
use crate::figure::Role;
use crate::form::Form;
use crate::numbers::number;
use crate::report::Report;
use crate::statistics::Summary;
use serde_json::Value;

/// The table headings for docs/reference/performance.md.
pub const MARKDOWN: &str =
    "| figure | who | steps/s (spread, best) | ms a step | kB sent a step |\n|---|---|---|---|---|";

/// The time of a step and of its parts, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Parts {
    step: f64,
    computing: f64,
    sending: f64,
}

impl Parts {
    /// Creates the parts from medians. Returns `None` if a part was not measured.
    fn of(report: &Report) -> Option<Self> {
        let part = |name: &str| {
            let bound = report.rivals.iter().find(|rival| rival.role == Role::Bound && rival.name == name);
            bound.map(|bound| millis(bound.values.median)).filter(|millis| millis.is_finite())
        };
        let step = millis(report.ours.median);
        Some(Self { step, computing: part(COMPUTING)?, sending: part(SENDING)? })
    }

    /// Returns the ratio of a step to its longer part. It is 1 if sending and computing overlap completely.
    fn of_longer(self) -> f64 {
        self.step / self.computing.max(self.sending)
    }

    /// Returns the ratio of a step to the sum of both parts. It is 1 if they do not overlap.
    fn of_sum(self) -> f64 {
        self.step / (self.computing + self.sending)
    }
}

/// Returns a line for each measured library.
pub fn rows(report: &Report, form: Form) -> Vec<String> {
    let ours = ("ours".to_string(), &report.ours, report.sent);
    let rivals = report.rivals.iter().map(|rival| (rival.label(), &rival.values, rival.sent));
    let name = &report.about.name;
    let all = std::iter::once(ours).chain(rivals);
    all.map(|(who, values, sent)| row(name, form, &who, values, sent)).collect()
}

fn row(name: &str, form: Form, who: &str, values: &Summary, sent: Option<f64>) -> String {
    let Summary { median, spread, max, .. } = *values;
    let (step, sent) = (number(millis(median)), sent.map(|bytes| number(bytes / 1e3)));
    let (median, spread, best) = (number(median), number(spread), number(max));
    if form == Form::Markdown {
        let sent = sent.unwrap_or_default();
        return format!("| `{name}` | {who} | {median} ({spread}, best {best}) | {step} | {sent} |");
    }
    let sent = sent.map(|kilobytes| format!(", {kilobytes} kB sent a step")).unwrap_or_default();
    format!("{name}: {who} {median} steps/s (spread {spread}, best {best}), {step} ms a step{sent}")
}

/// Describes the ratios of this library's step to its parts, and to the best peer's step. Returns `None` if neither is
/// known.
pub fn summary(report: &Report) -> Option<String> {
    let parts = Parts::of(report).map(|parts| {
        format!(
            "a step takes {} ms, computing alone {}, sending alone {}: {} x the longer of both, {} x their sum",
            number(parts.step),
            number(parts.computing),
            number(parts.sending),
            number(parts.of_longer()),
            number(parts.of_sum()),
        )
    });
    let peer = report.ratio().zip(report.best_peer());
    let peer = peer.map(|(ratio, peer)| format!("{} x the steps of {}", number(ratio), peer.name));
    let both: Vec<_> = parts.into_iter().chain(peer).collect();
    (!both.is_empty()).then(|| format!("{}: {}", report.about.name, both.join("; ")))
}

/// Returns a figure and its parts as JSON.
pub fn json(report: &Report) -> Value {
    let mut line = report.json();
    if let Some(parts) = Parts::of(report) {
        line["step_ms"] = parts.step.into();
        line["computing_ms"] = parts.computing.into();
        line["sending_ms"] = parts.sending.into();
        line["of_longer"] = parts.of_longer().into();
        line["of_sum"] = parts.of_sum().into();
    }
    line
}

/// Converts steps per second to milliseconds per step.
fn millis(steps: f64) -> f64 {
    1e3 / steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{About, Better};
    use crate::report::Rival;

    fn report() -> Report {
        let about = About {
            name: "mlp_2p_1gbit".into(),
            unit: "steps/s",
            better: Better::More,
            measures: String::new(),
            targets: Vec::new(),
        };
        let rival = |name: &str, steps, role, sent| Rival {
            name: name.into(),
            version: String::new(),
            values: Summary::of(&[steps]),
            sent,
            role,
            in_process: role == Role::Bound,
            difference: None,
            recorded: None,
        };
        let rivals = vec![
            rival(COMPUTING, 200., Role::Bound, None),
            rival(SENDING, 50., Role::Bound, None),
            rival("them", 20., Role::Peer, Some(3e6)),
        ];
        Report { about, ours: Summary::of(&[40.]), sent: Some(2.5e6), rounds: 1, rivals }
    }

    #[test]
    fn everybody_has_a_row_with_what_is_sent_where_something_is() {
        let text = rows(&report(), Form::Text);
        assert_eq!(
            text[0],
            "mlp_2p_1gbit: ours 40.0 steps/s (spread 0.000, best 40.0), 25.0 ms a step, 2500 kB sent a step"
        );
        assert!(text[1].ends_with("5.00 ms a step") && text[3].contains("3000 kB"), "{text:?}");
        let columns = |line: &str| line.matches('|').count();
        let table = rows(&report(), Form::Markdown);
        assert!(
            table.iter().all(|row| columns(row) == columns(MARKDOWN.lines().next().unwrap())),
            "{table:?}"
        );
    }

    #[test]
    fn a_step_is_shown_with_the_longer_of_its_parts_and_their_sum() {
        assert_eq!(
            summary(&report()).unwrap(),
            "mlp_2p_1gbit: a step takes 25.0 ms, computing alone 5.00, sending alone 20.0: 1.25 x the longer of both, 1.00 x \
             their sum; 2.00 x the steps of them"
        );
        let line = json(&report());
        assert_eq!(
            (&line["of_longer"], &line["of_sum"], &line["sent"]),
            (&1.25.into(), &1.0.into(), &2.5e6.into())
        );
        assert_eq!(line["peers"][2]["sent"], 3e6);
    }

    #[test]
    fn figures_that_were_not_measured_are_not_shown() {
        let mut report = report();
        report.rivals.remove(1);
        assert_eq!(summary(&report).unwrap(), "mlp_2p_1gbit: 2.00 x the steps of them");
        report.rivals.clear();
        assert_eq!(summary(&report), None);
        assert!(json(&report)["of_sum"].is_null());
    }
}
