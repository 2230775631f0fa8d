//! `distribute-bench --growth`: how a step's time and memory grow, compared to the bound given by the bytes that the
//! step moves.
//!
//! Each point is measured in a separate process, so that its peak memory is measured separately.

use super::error::invalid;
use super::form::Form;
use super::memory;
use super::numbers::number;
use super::plot::{Panel, Series, panels};
use super::program::PATIENCE;
use super::spawned::{peak_mib, spawned};
use super::statistics::Summary;
use super::work::{Mlp, Recommender, Training};
use crate::{files, output};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Module, VarBuilder};
use distribute::cluster::Stopwatch;
use distribute::nn::linear;
use distribute::{MirroredStrategy, PerReplica, Result, Sgd};
use serde_json::{Value, json};
use std::time::Duration;

/// A quantity that is increased from point to point.
struct Axis {
    name: &'static str,
    measures: &'static str,
    points: &'static [usize],
}

const AXES: [Axis; 4] = [
    Axis { name: "replicas", measures: "MLP step, global batch 128, by replicas", points: &[1, 2, 4, 8] },
    Axis {
        name: "parameters",
        measures: "one linear layer, square, a row for each of 2 replicas, by parameters",
        points: &[10_000, 100_000, 1_000_000, 10_000_000, 100_000_000],
    },
    Axis {
        name: "table_rows",
        measures: "recommender step, batch 1024 x 8 ids, 2 replicas, by rows of the table",
        points: &[10_000, 100_000, 1_000_000, 10_000_000],
    },
    Axis { name: "batch", measures: "MLP step, 2 replicas, by global batch", points: &[32, 128, 512, 2048] },
];

/// The measurement at one point.
struct Point {
    axis: &'static Axis,
    at: usize,
    micros: Summary,
    /// The minimum number of bytes that a step reads and writes.
    bytes: f64,
    /// The time to read and write these bytes without a cache, in microseconds.
    bound_micros: f64,
    peak_mib: f64,
    parameters: f64,
    replicas: f64,
}

/// The table headings for docs/reference/performance.md.
const MARKDOWN: &str = "| what grows | at | µs a step (spread) | best | bytes of a step | their traffic alone, µs | peak, MiB | a replica | bytes a parameter |\n|---|---|---|---|---|---|---|---|---|";

/// Measures all points on axes whose names contain `filter`, prints them, and plots them.
pub fn run(
    filter: &str,
    rounds: usize,
    seconds: f64,
    form: Form,
    plot: Option<&std::path::Path>,
) -> Result<()> {
    // A copy reads and writes each byte.
    let bandwidth = 2. * memory::bandwidth(2)?;
    let axes: Vec<_> = AXES.iter().filter(|axis| axis.name.contains(filter)).collect();
    if axes.is_empty() {
        let names = AXES.map(|axis| axis.name).join(", ");
        return Err(invalid(format!("nothing of --growth contains {filter:?}; there are {names}")));
    }
    if form == Form::Markdown {
        output::line(MARKDOWN)?;
    }
    let mut drawn = Vec::new();
    for axis in axes {
        let mut points = Vec::new();
        for at in axis.points {
            let point = point(axis, *at, rounds, seconds, bandwidth)?;
            output::line(match form {
                Form::Json => point.json(),
                Form::Markdown => point.markdown(),
                Form::Text => point.plain(),
            })?;
            points.push(point);
        }
        let series = |label: &str, of: fn(&Point) -> f64| Series {
            label: label.into(),
            points: points.iter().map(|p| (p.at as f64, of(p))).collect(),
        };
        drawn.push(Panel {
            title: axis.measures.into(),
            x: axis.name.replace('_', " "),
            y: "µs a step".into(),
            series: vec![
                series("step", |p| p.micros.median),
                series("what its bytes take", |p| p.bound_micros),
            ],
        });
    }
    plot.map_or(Ok(()), |path| files::write(path, &panels(&drawn)))
}

fn point(axis: &'static Axis, at: usize, rounds: usize, seconds: f64, bandwidth: f64) -> Result<Point> {
    // A multiple of the planned time of the rounds, because the machine may be busy.
    let rounds_take = Duration::try_from_secs_f64(4. * seconds * rounds as f64).unwrap_or(Duration::MAX);
    let patience = PATIENCE.saturating_add(rounds_take);
    let (line, _) = spawned(&format!("growth/{}/{at}/{rounds}/{seconds}", axis.name), patience)?;
    let value: Value =
        serde_json::from_str(&line).map_err(|error| invalid(format!("{error} in {line:?}")))?;
    let field = |name: &str| value[name].as_f64().unwrap_or(f64::NAN);
    let rounds: Vec<_> = value["rounds"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    let bytes = field("bytes");
    Ok(Point {
        axis,
        at,
        micros: Summary::of(&rounds),
        bytes,
        bound_micros: bytes / bandwidth / 1e3,
        peak_mib: field("peak_mib"),
        parameters: field("parameters"),
        replicas: field("replicas"),
    })
}

impl Point {
    fn per_parameter(&self) -> f64 {
        self.peak_mib * f64::from(1 << 20) / self.parameters
    }

    fn plain(&self) -> String {
        format!(
            "{} {}: {} µs (spread {}), its {} MB take {} µs of memory traffic: {}x, peak {} MiB: {} a replica, {} bytes a \
             parameter",
            self.axis.name,
            self.at,
            number(self.micros.median),
            number(self.micros.spread),
            number(self.bytes / 1e6),
            number(self.bound_micros),
            number(self.micros.median / self.bound_micros),
            number(self.peak_mib),
            number(self.peak_mib / self.replicas),
            number(self.per_parameter()),
        )
    }

    fn markdown(&self) -> String {
        format!(
            "| {} | {} | {} ({}) | {} | {} M | {} | {} | {} | {} |",
            self.axis.name.replace('_', " "),
            self.at,
            number(self.micros.median),
            number(self.micros.spread),
            number(self.micros.min),
            number(self.bytes / 1e6),
            number(self.bound_micros),
            number(self.peak_mib),
            number(self.peak_mib / self.replicas),
            number(self.per_parameter()),
        )
    }

    fn json(&self) -> String {
        json!({
            "figure": format!("growth_{}_{}", self.axis.name, self.at),
            "measures": self.axis.measures,
            "axis": self.axis.name,
            "at": self.at,
            "unit": "µs",
            "ours": self.micros.median,
            "spread": self.micros.spread,
            "min": self.micros.min,
            "max": self.micros.max,
            "bytes": self.bytes,
            "bound": self.bound_micros,
            "ratio": self.bound_micros / self.micros.median,
            "peak_mib": self.peak_mib,
            "peak_mib_per_replica": self.peak_mib / self.replicas,
            "peak_bytes_per_parameter": self.per_parameter(),
            "parameters": self.parameters,
        })
        .to_string()
    }
}

/// Measures the point `growth/AXIS/AT/ROUNDS/SECONDS` in the child process, and prints the measurement as a line of
/// JSON.
pub fn child(name: &str) -> Result<()> {
    let refused = || invalid(format!("--child knows no {name:?}"));
    let parts: Vec<_> = name.split('/').collect();
    let ["growth", axis, at, rounds, seconds] = parts[..] else { return Err(refused()) };
    let at: usize = at.parse().map_err(|_| refused())?;
    let rounds: usize = rounds.parse().map_err(|_| refused())?;
    let seconds: f64 = seconds.parse().map_err(|_| refused())?;
    let mut work = work(axis, at).ok_or_else(refused)??;
    let step = &mut work.step;
    let watch = Stopwatch::start();
    step()?;
    step()?;
    let calls = ((seconds / (watch.seconds() / 2.)) as usize).clamp(1, 100_000);
    let mut micros = Vec::new();
    for _ in 0..rounds {
        let watch = Stopwatch::start();
        for _ in 0..calls {
            step()?;
        }
        micros.push(watch.seconds() * 1e6 / calls as f64);
    }
    let Work { replicas, parameters, bytes, .. } = work;
    let peak_mib = peak_mib()?;
    let line = json!({"rounds": micros, "peak_mib": peak_mib, "replicas": replicas, "parameters": parameters, "bytes": bytes});
    output::line(line.to_string())
}

/// A step that is measured, and its properties.
struct Work {
    step: Box<dyn FnMut() -> Result<()>>,
    replicas: usize,
    parameters: usize,
    bytes: f64,
}

const FLOAT: f64 = 4.;
const MLP_PARAMETERS: usize = 784 * 512 + 512 + 512 * 256 + 256 + 256 * 10 + 10;

/// Returns the number of bytes that a step moves for dense parameters. Each replica reads the weights and writes
/// gradients. The update reads all gradients, and reads and writes the weights. The backward pass reads weights a
/// second time, for the gradients of inputs; these reads are assumed to hit the caches.
fn dense_bytes(parameters: usize, replicas: usize) -> f64 {
    parameters as f64 * FLOAT * (3. * replicas as f64 + 2.)
}

/// Returns the number of bytes that a step of the MLP moves: those of its parameters ([`dense_bytes`]), and those of
/// its activations and their gradients, each of which is written once and read once.
fn mlp_bytes(batch: usize, replicas: usize) -> f64 {
    let activations = batch * (784 + 2 * (512 + 256 + 10));
    dense_bytes(MLP_PARAMETERS, replicas) + 2. * FLOAT * activations as f64
}

fn work(axis: &str, at: usize) -> Option<Result<Work>> {
    Some(match axis {
        "replicas" => mlp(at, 128),
        "batch" => mlp(2, at),
        "parameters" => square(at),
        "table_rows" => table(at),
        _ => return None,
    })
}

fn mlp(replicas: usize, batch: usize) -> Result<Work> {
    let mut training = Training::<Mlp>::with(replicas, super::work::RATE, batch)?;
    Ok(Work {
        step: Box::new(move || training.step().map(drop)),
        replicas,
        parameters: MLP_PARAMETERS,
        bytes: mlp_bytes(batch, replicas),
    })
}

fn square(parameters: usize) -> Result<Work> {
    let side = (parameters as f64).sqrt() as usize;
    let strategy = MirroredStrategy::cpus(2)?;
    let model = strategy.replicate(move |vb: VarBuilder<'_>| linear(side, side, vb))?;
    let optimizer = Sgd::new(&model.variables, 0.01)?;
    let x = Tensor::ones((1, side), DType::F32, &Device::Cpu)?;
    let step = move || {
        strategy
            .run(&model, |ctx, model| optimizer.minimize(ctx, model.forward(&x)?.mean_all()?, 1))
            .map(drop)
    };
    let parameters = side * side + side;
    Ok(Work { step: Box::new(step), replicas: 2, parameters, bytes: dense_bytes(parameters, 2) })
}

fn table(rows: usize) -> Result<Work> {
    const BATCH: usize = 1024;
    let strategy = MirroredStrategy::cpus(2)?;
    let model = strategy.replicate(move |vb: VarBuilder<'_>| Recommender::with_rows(rows, vb))?;
    let optimizer = Sgd::new(&model.variables, 0.01)?;
    let piece = |number, replica| Recommender::batch_of(rows, number, replica * BATCH / 2, BATCH / 2);
    let batches = (0..super::work::BATCHES)
        .map(|number| Ok(PerReplica::from_values(vec![piece(number, 0)?, piece(number, 1)?])))
        .collect::<Result<Vec<PerReplica<_>>>>()?;
    let mut done = 0;
    let step = move || {
        done += 1;
        let batch = &batches[done % batches.len()];
        let step = strategy.run((&model, batch), |ctx, (model, (ids, targets))| {
            use super::work::Model as _;
            optimizer.minimize(ctx, model.loss(ids, targets)?, targets.dim(0)?)
        });
        step.map(drop)
    };
    let (touched, top) = (BATCH * 8 * 32, 256 * 128 + 128 + 128 + 1);
    // The rows are looked up, written and read as a gradient, and read and written in the table.
    let bytes = touched as f64 * FLOAT * 6. + dense_bytes(top, 2);
    Ok(Work { step: Box::new(step), replicas: 2, parameters: rows * 32 + top, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_axis_has_work_and_other_names_are_refused() {
        for axis in &AXES {
            let mut work = work(axis.name, axis.points[0]).unwrap().unwrap();
            (work.step)().unwrap();
            assert!(work.bytes > 0. && work.parameters > 0);
        }
        assert!(child("growth/moon/1/1/1").unwrap_err().to_string().contains("moon"));
        assert!(child("x").is_err());
    }
}
