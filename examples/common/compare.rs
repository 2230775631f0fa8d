//! Trains with the strategy that was asked for and again with one replica, and shows both side by side.

use super::Options;
use super::progress::{Pace, thousands};
use distribute::prelude::*;
use serde_json::{Value, json};

/// What a training gives.
pub struct Trained {
    pub pace: Pace,
    /// The share of the held-out examples that the model gets right.
    pub accuracy: f64,
    pub variables: Variables,
}

/// With another number of replicas the same gradients are added in another order, so their last bits differ. Mostly the
/// weights then differ by 1e-6; but where a unit's input is 0 but for such a bit, it is on in one training and off in the
/// other, and Adam, which divides gradients by their size, moves its weights by up to the learning rate in each step.
const TOLERANCE: f64 = 1e-2;

/// Trains, trains again with one replica where there were more, and prints a table of both.
pub fn with_one_replica(
    example: &str,
    options: &Options,
    train: impl Fn(&Strategy) -> distribute::Result<Trained>,
) -> distribute::Result<()> {
    let strategy = options.strategy()?;
    let replicas = strategy.num_replicas_in_sync();
    let trace = options.trace()?;
    let trained = train(&strategy)?;
    drop(trace);
    let sha256 = trained.variables.sha256()?;

    let mut table = format!("\n{:<14}{:>10}{:>10}{:>14}\n", "", "accuracy", "seconds", "examples/s");
    table += &row(&format!("{replicas} replica{}", if replicas == 1 { "" } else { "s" }), &trained);
    let mut figures = figures(&trained);
    figures.splice(0..0, [("example", json!(example)), ("strategy", json!(strategy.extended().kind()))]);
    figures.extend([
        ("replicas", json!(replicas)),
        ("seed", json!(options.seed)),
        ("weights_sha256", json!(sha256)),
    ]);

    if replicas > 1 {
        let one = train(&OneDeviceStrategy::new("cpu:0")?.into())?;
        let difference = largest_difference(&trained.variables, &one.variables)?;
        let speedup = trained.pace.examples_per_s / one.pace.examples_per_s;
        table += &row("1 replica", &one);
        table += &format!("{replicas} replicas are {speedup:.2} times as fast as one");
        let weights = if difference <= TOLERANCE {
            " and train the same weights: they differ"
        } else {
            ". Their weights differ:"
        };
        table += &format!("{weights} by {difference:.0e} at most.\n");
        let one = self::figures(&one).into_iter().map(|(name, value)| (name.to_string(), value));
        figures.extend([
            ("one_replica", Value::Object(one.collect())),
            ("speedup", json!(speedup)),
            ("largest_difference_of_weights", json!(difference)),
        ]);
    }
    table += &format!("weights: {sha256}");
    options.finish(&table, &figures);
    Ok(())
}

fn row(title: &str, trained: &Trained) -> String {
    let Trained { pace, accuracy, .. } = trained;
    let percent = format!("{:.2} %", accuracy * 100.);
    format!("{title:<14}{percent:>10}{:>10.2}{:>14}\n", pace.seconds, thousands(pace.examples_per_s))
}

fn figures(trained: &Trained) -> Vec<(&'static str, Value)> {
    let Trained { pace, accuracy, .. } = trained;
    vec![
        ("accuracy", json!(accuracy)),
        ("seconds", json!(pace.seconds)),
        ("examples_per_s", json!(pace.examples_per_s)),
        ("loss", json!(pace.loss)),
    ]
}

fn largest_difference(a: &Variables, b: &Variables) -> distribute::Result<f64> {
    let mut largest = 0f64;
    for name in a.names() {
        let difference = (a.get(&name)? - b.get(&name)?)?.abs()?.flatten_all()?.max(0)?;
        largest = largest.max(f64::from(difference.to_scalar::<f32>()?));
    }
    Ok(largest)
}
