//! `distribute-bench --worlds`: all-reduces between 2 to 16 processes of this machine, and predictions for 1,000
//! machines.

use super::model::{Algorithm, Link, Network, Point};
use super::place::{Links, Work};
use super::start::measured;
use super::sum::algorithm;
use crate::error::invalid;
use crate::form::Form;
use crate::numbers::{number, size};
use crate::plot::{Panel, Series, panels};
use crate::statistics::Summary;
use crate::{files, output};
use distribute::Result;
use serde_json::json;
use std::path::Path;

const WORLDS: [usize; 5] = [2, 3, 4, 8, 16];
const SIZES: [usize; 5] = [64, 4 << 10, 64 << 10, 1 << 20, 16 << 20];

/// The number of workers in the predictions.
const MANY: usize = 1000;
/// The network in the predictions: 25 Gbit/s in each direction, and the typical latency of a switched network on one
/// site.
const NETWORK: Network = Network { latency: 20e-6, bandwidth: 25e9 / 8. };

/// The table headings for docs/reference/performance.md.
const MARKDOWN: &str = "| links | processes | bytes | µs (spread) | best | algorithm | model, µs |\n|---|---|---|---|---|---|---|";

/// The measurement of one world at one size.
struct Measured {
    links: Links,
    point: Point,
    micros: Summary,
}

/// Measures the worlds over both kinds of links, or over those whose names contain `filter`. Prints the measurements
/// and the model, and plots both.
pub fn run(filter: &str, rounds: usize, seconds: f64, form: Form, plot: Option<&Path>) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut drawn = Vec::new();
    for links in Links::ALL.into_iter().filter(|links| links.name().contains(filter)) {
        let all = measure(links, rounds, seconds)?;
        let points: Vec<_> = all.iter().map(|measured| measured.point).collect();
        let Some(link) = Link::fitted(&points, cores) else { continue };
        if form == Form::Markdown {
            output::line(MARKDOWN)?;
        }
        for measured in &all {
            output::line(measured.said(form, measured.model(&link, cores)))?;
        }
        output::line(fit(form, links, &link, &points, cores))?;
        drawn.push(panel(links, &all));
        // Machines do not share memory.
        if links == Links::Tcp {
            for bytes in SIZES {
                output::line(predicted(form, &link, bytes))?;
            }
            drawn.push(prediction(&link));
        }
    }
    if drawn.is_empty() {
        let names = Links::ALL.map(Links::name).join(", ");
        return Err(invalid(format!("no links of --worlds contain {filter:?}; there are {names}")));
    }
    if form != Form::Json {
        output::line(assumptions(cores))?;
    }
    plot.map_or(Ok(()), |path| files::write(path, &panels(&drawn)))
}

fn measure(links: Links, rounds: usize, seconds: f64) -> Result<Vec<Measured>> {
    let mut all = Vec::new();
    for workers in WORLDS {
        for bytes in SIZES {
            let work = Work::Sum { links, bytes, seconds };
            let micros = (0..rounds).map(|_| measured(workers, &work).map(|sample| sample.value));
            let micros = micros.collect::<Result<Vec<_>>>()?;
            let (micros, algorithm) = (Summary::of(&micros), algorithm(workers, bytes));
            let point = Point { algorithm, workers, bytes, seconds: micros.median / 1e6 };
            all.push(Measured { links, point, micros });
        }
    }
    Ok(all)
}

impl Measured {
    /// Returns the time of this all-reduce that the model predicts, in microseconds.
    fn model(&self, link: &Link, cores: usize) -> f64 {
        let Point { algorithm, workers, bytes, .. } = self.point;
        link.on_one_machine(algorithm, workers, bytes, cores) * 1e6
    }

    fn said(&self, form: Form, model: f64) -> String {
        let (Self { links, point, micros }, links_name) = (self, self.links.name());
        let Point { algorithm, workers, bytes, .. } = *point;
        let (median, spread, best) = (number(micros.median), number(micros.spread), number(micros.min));
        let (size, algorithm) = (size(bytes), algorithm.name());
        match form {
            Form::Markdown => format!(
                "| {links_name} | {workers} | {size} | {median} ({spread}) | {best} | {algorithm} | {} |",
                number(model)
            ),
            Form::Text => format!(
                "{links_name}, {workers} processes, {size}: {median} µs (spread {spread}, best {best}), {algorithm}; model {} µs",
                number(model)
            ),
            Form::Json => json!({
                "figure": format!("worlds_{workers}_{}_{size}", links.name()), "unit": "µs", "workers": workers, "bytes": bytes,
                "links": links.name(), "algorithm": algorithm, "ours": micros.median, "spread": micros.spread,
                "min": micros.min, "max": micros.max, "model": model,
            })
            .to_string(),
        }
    }
}

/// Formats the fitted costs of a link, and the model's errors at the points.
fn fit(form: Form, links: Links, link: &Link, points: &[Point], cores: usize) -> String {
    let errors = Summary::of(&link.errors(points, cores));
    let (alpha, rate) = (link.alpha * 1e6, 1e-9 / link.beta);
    match form {
        Form::Json => json!({
            "figure": format!("worlds_model_{}", links.name()), "alpha_us": alpha, "beta_ns": link.beta * 1e9,
            "median_error": errors.median, "worst_error": errors.max, "cores": cores,
        })
        .to_string(),
        _ => format!(
            "\n{}: a message takes {} µs, a byte {} ns ({} GB/s); the model is off by {} % in the median, {} % at most\n",
            links.name(),
            number(alpha),
            number(link.beta * 1e9),
            number(rate),
            number(100. * errors.median),
            number(100. * errors.max),
        ),
    }
}

fn of_many(link: &Link, algorithm: Algorithm, bytes: usize) -> f64 {
    link.over(NETWORK, algorithm, MANY, bytes) * 1e6
}

/// Formats the model's predictions for many machines, for each algorithm.
fn predicted(form: Form, link: &Link, bytes: usize) -> String {
    let all = Algorithm::ALL.map(|algorithm| (algorithm.name(), of_many(link, algorithm, bytes)));
    match form {
        Form::Json => json!({
            "figure": format!("worlds_{MANY}_predicted_{}", size(bytes)), "unit": "µs", "workers": MANY, "bytes": bytes,
            "predicted": all.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        })
        .to_string(),
        _ => {
            let all = all.map(|(name, micros)| format!("{name} {}", number(micros / 1e3)));
            format!("- {MANY} machines, {}, predicted, ms: {}", size(bytes), all.join(", "))
        }
    }
}

fn assumptions(cores: usize) -> String {
    format!(
        "\nThe model: an all-reduce takes a worker as long as the messages and bytes that it sends, at one cost each (α, β), which \
         are fitted to the medians above by least squares of relative errors. Assumed: all processes are as fast; more than \
         {cores} processes take turns on the {cores} cores of this machine at no cost; sending, receiving and adding don't \
         overlap; each call begins with a message of every worker to every other one. Of {MANY} workers it is assumed that \
         each has a separate machine and core, that messages cost its processor what they cost here, that a round waits {} µs \
         for the network, that {} Gbit/s go each way at the same time for any number of senders, and that no worker is slower \
         than the others. What was not measured: any world of more than one machine, and any algorithm but those named \
         in the rows.",
        number(NETWORK.latency * 1e6),
        number(NETWORK.bandwidth * 8e-9),
    )
}

fn panel(links: Links, all: &[Measured]) -> Panel {
    let of = |bytes: usize| {
        let points = all.iter().filter(move |measured| measured.point.bytes == bytes);
        points.map(|measured| (measured.point.workers as f64, measured.micros.median)).collect()
    };
    Panel {
        title: format!("all-reduce of processes of one machine, {}", links.name()),
        x: "processes".into(),
        y: "µs".into(),
        series: SIZES.map(|bytes| Series { label: size(bytes), points: of(bytes) }).into(),
    }
}

fn prediction(link: &Link) -> Panel {
    let line = |algorithm: Algorithm| Series {
        label: algorithm.name().into(),
        points: SIZES.map(|bytes| (bytes as f64, of_many(link, algorithm, bytes))).into(),
    };
    Panel {
        title: format!("predicted for {MANY} machines"),
        x: "bytes".into(),
        y: "µs".into(),
        series: Algorithm::ALL.map(line).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { alpha: 2e-6, beta: 3e-10 };

    fn point() -> Measured {
        let point = Point { algorithm: Algorithm::Owners, workers: 4, bytes: 1 << 20, seconds: 1e-3 };
        Measured { links: Links::Tcp, point, micros: Summary::of(&[900., 1000., 1200.]) }
    }

    #[test]
    fn every_form_has_what_was_measured_and_what_the_model_says() {
        let measured = point();
        let model = measured.model(&LINK, 2);
        let json: serde_json::Value = serde_json::from_str(&measured.said(Form::Json, model)).unwrap();
        assert_eq!((json["ours"].as_f64(), json["workers"].as_u64()), (Some(1000.), Some(4)));
        assert_eq!(json["model"].as_f64(), Some(model));
        for form in [Form::Text, Form::Markdown] {
            let text = measured.said(form, model);
            assert!(text.contains("1000") && text.contains(&number(model)), "{text}");
        }
        assert_eq!(
            MARKDOWN.lines().next().unwrap().matches('|').count(),
            measured.said(Form::Markdown, 1.).matches('|').count()
        );
    }

    #[test]
    fn predictions_name_every_algorithm_and_assumptions_their_numbers() {
        let json: serde_json::Value = serde_json::from_str(&predicted(Form::Json, &LINK, 64)).unwrap();
        assert_eq!(json["predicted"].as_object().unwrap().len(), Algorithm::ALL.len());
        assert!(predicted(Form::Text, &LINK, 64).contains("halving-doubling"));
        let said = assumptions(2);
        assert!(
            said.contains("20.0 µs") && said.contains("25.0 Gbit/s") && said.contains("2 cores"),
            "{said}"
        );
        let fit = fit(Form::Json, Links::Tcp, &LINK, &[point().point], 2);
        assert!(serde_json::from_str::<serde_json::Value>(&fit).unwrap()["alpha_us"].is_number());
        assert_eq!(prediction(&LINK).series.len(), Algorithm::ALL.len());
        assert_eq!(panel(Links::Tcp, &[point()]).series.iter().map(|s| s.points.len()).sum::<usize>(), 1);
    }
}
