//! Plots as SVG, with logarithmic axes: bars of ratios, and lines of growth.

use std::fmt::Write;

/// The ratios of one figure to its peers.
pub struct Bars {
    /// The name of the figure.
    pub label: String,
    /// The names of the peers, and the factor by which this library is better.
    pub bars: Vec<(String, f64)>,
}

/// Lines that share one pair of axes.
pub struct Panel {
    /// The title of the panel.
    pub title: String,
    /// The label of the horizontal axis.
    pub x: String,
    /// The label of the vertical axis.
    pub y: String,
    /// The lines in the panel.
    pub series: Vec<Series>,
}

/// One line of a panel.
pub struct Series {
    /// The name of the line.
    pub label: String,
    /// The points of the line. Coordinates must be positive.
    pub points: Vec<(f64, f64)>,
}

const COLOURS: [&str; 6] = ["#1f6f8b", "#e07a1f", "#4c9f50", "#8d5fa8", "#b8433f", "#777777"];
const FONT: &str = "font-family=\"sans-serif\" font-size=\"12\"";

/// A logarithmic scale from values to pixels.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Creates a scale between the powers of ten that enclose the values.
    fn around(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let logs = values.filter(|v| *v > 0. && v.is_finite()).map(f64::log10);
        let low = logs.clone().fold(f64::INFINITY, f64::min).floor();
        let high = logs.fold(f64::NEG_INFINITY, f64::max).ceil();
        if low < high {
            Self { low, high, from, to }
        } else if low.is_finite() {
            Self { low, high: low + 1., from, to }
        } else {
            Self { low: 0., high: 1., from, to }
        }
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (value.log10() - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        (self.low as i32..=self.high as i32).map(|power| 10f64.powi(power))
    }
}

/// Plots horizontal bars, grouped by figure. A line at 1 marks equality.
pub fn bars(groups: &[Bars]) -> String {
    let (left, width, bar, gap) = (190., 860., 14., 14.);
    let lines: usize = groups.iter().map(|group| group.bars.len()).sum();
    let height = 50. + lines as f64 * bar + groups.len() as f64 * gap;
    let all = groups.iter().flat_map(|group| &group.bars).map(|(_, ratio)| *ratio).chain([1.]);
    let scale = Scale::around(all, left, width - 240.);
    let mut body = String::new();
    for tick in scale.ticks() {
        let x = scale.at(tick);
        rule(&mut body, x, 20., x, height - 25., if tick == 1. { "#000" } else { "#ddd" });
        text(&mut body, x, height - 8., "middle", &format!("{tick} x"));
    }
    let mut y = 26.;
    for group in groups {
        text(&mut body, left - 8., y + bar * group.bars.len() as f64 / 2. + 4., "end", &group.label);
        for (index, (label, ratio)) in group.bars.iter().enumerate() {
            let (a, b) = (scale.at(1.).min(scale.at(*ratio)), scale.at(1.).max(scale.at(*ratio)));
            let colour = COLOURS[index % COLOURS.len()];
            let _ = write!(
                body,
                "<rect x=\"{a:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>",
                b - a,
                bar - 2.
            );
            text(&mut body, b + 4., y + 10., "start", &format!("{ratio:.2} x {label}"));
            y += bar;
        }
        y += gap;
    }
    text(&mut body, left, 14., "start", "how many times better ours is (above 1), for times too");
    document(width, height, &body)
}

/// Plots panels, two in each row.
pub fn panels(all: &[Panel]) -> String {
    let (wide, high) = (460., 300.);
    let mut body = String::new();
    for (index, panel) in all.iter().enumerate() {
        let (x, y) = ((index % 2) as f64 * wide, (index / 2) as f64 * high);
        let _ = write!(body, "<g transform=\"translate({x},{y})\">{}</g>", inside(panel, wide, high));
    }
    document(2. * wide, all.len().div_ceil(2) as f64 * high, &body)
}

fn inside(panel: &Panel, wide: f64, high: f64) -> String {
    let points = || panel.series.iter().flat_map(|series| &series.points);
    let (left, bottom) = (70., high - 50.);
    let across = Scale::around(points().map(|p| p.0), left, wide - 20.);
    let up = Scale::around(points().map(|p| p.1), bottom, 40.);
    let mut body = String::new();
    text(&mut body, 10., 18., "start", &panel.title);
    for tick in across.ticks() {
        rule(&mut body, across.at(tick), 40., across.at(tick), bottom, "#eee");
        text(&mut body, across.at(tick), bottom + 16., "middle", &format!("{tick}"));
    }
    for tick in up.ticks() {
        rule(&mut body, left, up.at(tick), wide - 20., up.at(tick), "#eee");
        text(&mut body, left - 6., up.at(tick) + 4., "end", &format!("{tick}"));
    }
    text(&mut body, (left + wide) / 2., bottom + 34., "middle", &format!("{}; {}", panel.x, panel.y));
    for (index, series) in panel.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let path = series.points.iter().map(|(x, y)| format!("{:.1},{:.1}", across.at(*x), up.at(*y)));
        let path = path.collect::<Vec<_>>().join(" ");
        let _ = write!(
            body,
            "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
        let _ = write!(
            body,
            "<text x=\"{}\" y=\"{}\" {FONT} fill=\"{colour}\">{}</text>",
            left + 8.,
            54. + 14. * index as f64,
            escaped(&series.label)
        );
    }
    body
}

// Writing to a String cannot fail.
fn rule(body: &mut String, x1: f64, y1: f64, x2: f64, y2: f64, colour: &str) {
    let _ = write!(
        body,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"
    );
}

fn text(body: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = escaped(words);
    let _ = write!(body, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {FONT}>{words}</text>");
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;")
}

fn document(width: f64, height: f64, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\"><rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>{body}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_goes_by_powers_of_ten() {
        let scale = Scale::around([0.5, 200.].into_iter(), 0., 400.);
        assert_eq!(scale.ticks().collect::<Vec<_>>(), [0.1, 1., 10., 100., 1000.]);
        assert!((scale.at(10.) - 200.).abs() < 1e-9);
    }

    #[test]
    fn a_plot_names_all_it_shows_and_no_number_is_missing() {
        let group = Bars { label: "a & b".into(), bars: vec![("peer".into(), 2.), ("other".into(), 0.5)] };
        let svg = bars(&[group]);
        assert!(svg.contains("a &amp; b") && svg.contains("2.00 x peer") && svg.ends_with("</svg>\n"));
        let series = Series { label: "step".into(), points: vec![(1., 10.), (8., 1000.)] };
        let panel = Panel { title: "t".into(), x: "n".into(), y: "µs".into(), series: vec![series] };
        assert!(panels(&[panel]).contains("polyline"));
        for svg in [svg, panels(&[]), bars(&[])] {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
