//! The end of the output: the result of a training, compared with the same training on one device.

use crate::Options;
use distribute::parameter_server::Usage;
use serde_json::{Value, json};

/// The result of a training.
pub struct Trained {
    pub seconds: f64,
    pub examples_per_s: f64,
    /// The mean loss of the last epoch.
    pub loss: f64,
    /// The accuracy on the held-out packages.
    pub accuracy: f64,
}

impl Trained {
    fn row(&self, title: &str) -> String {
        let (percent, speed) = (format!("{:.2} %", self.accuracy * 100.), thousands(self.examples_per_s));
        format!("{title:<14}{percent:>10}{:>10.2}{speed:>14}\n", self.seconds)
    }
}

/// Prints a table and, with `--json`, a line with the figures and `more`.
pub fn report(
    options: &Options,
    (title, trained): (&str, &Trained),
    one: Option<&Trained>,
    end: &str,
    more: &Value,
) {
    if !(options.quiet && options.json) {
        println!("\n{:<14}{:>10}{:>10}{:>14}", "", "accuracy", "seconds", "examples/s");
        print!("{}{}", trained.row(title), one.map(|one| one.row("one device")).unwrap_or_default());
        println!("{end}");
    }
    if options.json {
        let mut figures = json!({
            "example": options.name(),
            "accuracy": trained.accuracy,
            "seconds": trained.seconds,
            "examples_per_s": trained.examples_per_s,
            "loss": trained.loss,
            "seed": options.seed,
        });
        if let Some(one) = one {
            figures["accuracy_of_one_device"] = one.accuracy.into();
            figures["speedup"] = (trained.examples_per_s / one.examples_per_s).into();
        }
        for (name, value) in more.as_object().into_iter().flatten() {
            figures[name] = value.clone();
        }
        println!("{figures}");
    }
}

/// Reports a training by workers that do not wait for each other. Its weights differ each time, because the order of
/// updates is not fixed.
pub fn report_asynchronous(
    options: &Options,
    workers: usize,
    usage: &[Usage],
    trained: &Trained,
    one: &Trained,
) {
    let mut end = String::new();
    for (server, usage) in usage.iter().enumerate() {
        let [rows, read, pushed] =
            [usage.rows, usage.rows_read, usage.rows_pushed].map(|rows| thousands(rows as f64));
        end += &format!("ps {server}: {rows} rows, of which were read {read} and pushed {pushed}\n");
    }
    let difference = 100. * (trained.accuracy - one.accuracy);
    end += &format!("The accuracies differ by {difference:+.2} points.");
    let rows_of = |rows: fn(&Usage) -> u64| usage.iter().map(rows).collect::<Vec<_>>();
    let more = json!({
        "workers": workers,
        "servers": usage.len(),
        "rows_read": rows_of(|usage| usage.rows_read),
        "rows_pushed": rows_of(|usage| usage.rows_pushed),
    });
    let title = format!("{workers} worker{}", if workers == 1 { "" } else { "s" });
    report(options, (&title, trained), Some(one), &end, &more);
}

/// Formats a number for people: 12,345.
pub fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}
