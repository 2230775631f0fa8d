//! Trains with the requested strategy, and again with one replica, in one process or without servers, and
//! compares both.

use super::Options;
use super::progress::{Pace, thousands};
use distribute::params::Usage;
use distribute::prelude::*;
use serde_json::{Value, json};

/// The result of a training.
pub struct Trained {
    pub pace: Pace,
    /// The accuracy on the held-out examples.
    pub accuracy: f64,
    pub variables: Variables,
}

/// The maximum difference of weights. With another number of replicas the same gradients are added in another
/// order, so their last bits differ. Weights then mostly differ by 1e-6. But if the input of a unit is zero
/// except for such a bit, the unit is on in one training and off in the other. Adam divides gradients by
/// their size, so it then moves the unit's weights by up to the learning rate in each step.
const TOLERANCE: f64 = 1e-2;

/// Trains, then trains again with one replica if there were more, or in one process if there were several
/// workers, and prints a table of both. If workers are processes, the chief does this.
pub fn compared(
    example: &str,
    options: &Options,
    train: impl Fn(&Strategy) -> distribute::Result<Trained> + Sync,
) -> distribute::Result<()> {
    match options.workers()? {
        Some((workers, replicas)) => {
            let trace = options.trace()?;
            let all = MultiWorkerMirroredStrategy::on_threads(workers, replicas, |strategy| {
                with_sha256(train(strategy)?)
            })?;
            drop(trace);
            with_one_process(example, options, (workers, replicas), &all, train)
        }
        None => {
            let strategy = options.strategy()?;
            let trace = options.trace()?;
            let (trained, sha256) = with_sha256(train(&strategy)?)?;
            drop(trace);
            let world = strategy.world();
            match world.workers() {
                1 => with_one_replica(example, options, &strategy, trained, sha256, train),
                _ if !strategy.should_save_summary() => Ok(()),
                workers => {
                    let all = [(trained, sha256)];
                    with_one_process(example, options, (workers, world.replicas()), &all, train)
                }
            }
        }
    }
}

fn with_sha256(trained: Trained) -> distribute::Result<(Trained, String)> {
    let sha256 = trained.variables.sha256()?;
    Ok((trained, sha256))
}

fn with_one_replica(
    example: &str,
    options: &Options,
    strategy: &Strategy,
    trained: Trained,
    sha256: String,
    train: impl Fn(&Strategy) -> distribute::Result<Trained>,
) -> distribute::Result<()> {
    let replicas = strategy.num_replicas_in_sync();

    let mut table = header();
    table += &row(&strategy.world().to_string(), &trained);
    let mut figures = figures(&trained);
    figures.splice(0..0, [("example", json!(example)), ("strategy", json!(strategy.extended().kind()))]);
    figures.extend([
        ("replicas", json!(replicas)),
        ("seed", json!(options.seed)),
        ("weights_sha256", json!(sha256)),
    ]);

    if strategy.extended().parameter_servers().is_some() {
        let (one, one_sha256) = with_sha256(train(&OneDeviceStrategy::new("cpu:0")?.into())?)?;
        table += &row("one device", &one);
        let same = sha256 == one_sha256;
        table += if same {
            "Servers and one device train the same weights, to the bit.\n"
        } else {
            "Their weights differ.\n"
        };
        figures.extend([("one_device", nested(self::figures(&one))), ("same_weights", json!(same))]);
    } else if replicas > 1 {
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
        figures.extend([
            ("one_replica", nested(self::figures(&one))),
            ("speedup", json!(speedup)),
            ("largest_difference_of_weights", json!(difference)),
        ]);
    }
    table += &format!("weights: {sha256}");
    options.finish(&table, &figures);
    Ok(())
}

/// Trains in one process with the same number of replicas, and compares with the training by workers. `all`
/// are the results known here. All computed values must be equal.
fn with_one_process(
    example: &str,
    options: &Options,
    (workers, replicas): (usize, usize),
    all: &[(Trained, String)],
    train: impl Fn(&Strategy) -> distribute::Result<Trained>,
) -> distribute::Result<()> {
    let one_process: Strategy = MirroredStrategy::cpus(workers * replicas)?.into();
    let (one, one_sha256) = with_sha256(train(&one_process)?)?;
    let same = all.iter().all(|(_, sha256)| *sha256 == one_sha256);
    let Some((first, sha256)) = all.first() else { return Ok(()) };

    let mut table = header() + &row(&format!("{workers} workers"), first) + &row("one process", &one);
    table += if same { "All train the same weights, to the bit.\n" } else { "Their weights differ.\n" };
    for (worker, (_, sha256)) in all.iter().enumerate() {
        table += &format!("weights of worker {worker}: {sha256}\n");
    }
    table += &format!("of one process:      {one_sha256}");
    let mut figures = figures(first);
    let kind = "MultiWorkerMirroredStrategy";
    figures.splice(0..0, [("example", json!(example)), ("strategy", json!(kind))]);
    let mut beside = self::figures(&one);
    beside.push(("weights_sha256", json!(one_sha256)));
    figures.extend([
        ("workers", json!(workers)),
        ("replicas", json!(workers * replicas)),
        ("seed", json!(options.seed)),
        ("weights_sha256", json!(sha256)),
        ("one_process", nested(beside)),
        ("same_weights", json!(same)),
    ]);
    options.finish(&table, &figures);
    Ok(())
}

/// The result of a training by workers that do not wait for each other.
pub struct Asynchronous {
    /// The kind of the strategy.
    pub strategy: &'static str,
    pub pace: Pace,
    pub accuracy: f64,
    pub workers: usize,
    /// The usage of each parameter server.
    pub usage: Vec<Usage>,
}

/// Compares with a training on one device. Weights differ each time, because the order of updates is not
/// fixed.
pub fn beside_one_device(
    example: &str,
    options: &Options,
    trained: &Asynchronous,
    train: impl Fn(&Strategy) -> distribute::Result<Trained>,
) -> distribute::Result<()> {
    let Asynchronous { strategy, pace, accuracy, workers, usage } = trained;
    let one = train(&OneDeviceStrategy::new("cpu:0")?.into())?;
    let title = format!("{workers} worker{}", if *workers == 1 { "" } else { "s" });
    let mut table = header() + &row_of(&title, pace, *accuracy) + &row("one device", &one);
    for (server, usage) in usage.iter().enumerate() {
        let [rows, read, pushed] =
            [usage.rows, usage.rows_read, usage.rows_pushed].map(|rows| thousands(rows as f64));
        table += &format!("ps {server}: {rows} rows, of which were read {read} and pushed {pushed}\n");
    }
    let difference = 100. * (accuracy - one.accuracy);
    table += &format!("The accuracies differ by {difference:+.2} points.");
    let rows_of = |rows: fn(&Usage) -> u64| json!(usage.iter().map(rows).collect::<Vec<_>>());
    let mut figures = figures_of(pace, *accuracy);
    figures.splice(0..0, [("example", json!(example)), ("strategy", json!(strategy))]);
    figures.extend([
        ("workers", json!(workers)),
        ("servers", json!(usage.len())),
        ("seed", json!(options.seed)),
        ("rows_read", rows_of(|usage| usage.rows_read)),
        ("rows_pushed", rows_of(|usage| usage.rows_pushed)),
        ("one_device", nested(self::figures(&one))),
    ]);
    options.finish(&table, &figures);
    Ok(())
}

fn header() -> String {
    format!("\n{:<14}{:>10}{:>10}{:>14}\n", "", "accuracy", "seconds", "examples/s")
}

fn row(title: &str, trained: &Trained) -> String {
    row_of(title, &trained.pace, trained.accuracy)
}

fn row_of(title: &str, pace: &Pace, accuracy: f64) -> String {
    let percent = format!("{:.2} %", accuracy * 100.);
    format!("{title:<14}{percent:>10}{:>10.2}{:>14}\n", pace.seconds, thousands(pace.examples_per_s))
}

fn figures(trained: &Trained) -> Vec<(&'static str, Value)> {
    figures_of(&trained.pace, trained.accuracy)
}

fn figures_of(pace: &Pace, accuracy: f64) -> Vec<(&'static str, Value)> {
    vec![
        ("accuracy", json!(accuracy)),
        ("seconds", json!(pace.seconds)),
        ("examples_per_s", json!(pace.examples_per_s)),
        ("loss", json!(pace.loss)),
    ]
}

fn nested(figures: Vec<(&'static str, Value)>) -> Value {
    Value::Object(figures.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
}

fn largest_difference(a: &Variables, b: &Variables) -> distribute::Result<f64> {
    let mut largest = 0f64;
    for name in a.names() {
        let difference = (a.get(&name)? - b.get(&name)?)?.abs()?.flatten_all()?.max(0)?;
        largest = largest.max(f64::from(difference.to_scalar::<f32>()?));
    }
    Ok(largest)
}
