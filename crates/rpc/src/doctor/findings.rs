//! The detection of problems in measured links, as pure functions.

use super::link::{Link, State};
use serde::Serialize;
use std::fmt;

/// The factor by which a figure of a link must be worse than the median of the better half of all links, so that the
/// link counts as slow.
const TIMES: f64 = 3.;

/// The round-trip time in seconds up to which a link never counts as slow because of its round trips.
const QUICK: f64 = 200e-6;

/// A problem of a link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The tasks of the link, such as `ps 0 → worker 1`.
    pub link: String,
    /// The kind of problem in one word: `closed`, `refused`, `broken` or `slow`.
    pub is: &'static str,
    /// The cause and a remedy.
    pub why: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}: {}", self.link, self.is, self.why)
    }
}

/// Returns all problems of the given links.
pub fn findings(links: &[Link]) -> Vec<Finding> {
    let open = || {
        links.iter().filter_map(|link| match link.state {
            State::Open { round_trip, bandwidth } => Some((round_trip, bandwidth)),
            _ => None,
        })
    };
    let usual_trip = median_of_best_half(open().map(|(trip, _)| trip).collect(), f64::total_cmp);
    let usual_band = median_of_best_half(open().map(|(_, band)| band).collect(), |a, b| b.total_cmp(a));
    let mut all = Vec::new();
    for link in links {
        let mut found = |is, why| {
            all.push(Finding { link: format!("{} → {}", link.from, link.to), is, why });
        };
        match &link.state {
            State::Training => {}
            State::Closed { why } => found(
                "closed",
                format!(
                    "no process answers at {} ({why}); check that the task runs, that this is its address, \
                     and that no firewall blocks the connection",
                    link.address
                ),
            ),
            State::Refused { why, .. } => found("refused", why.clone()),
            State::Broken { why } => found("broken", why.clone()),
            State::Open { round_trip, bandwidth } => {
                if *round_trip > QUICK.max(TIMES * usual_trip) {
                    let (trip, usual) = (micros(*round_trip), micros(usual_trip));
                    let why =
                        format!("a round trip takes {trip}, where the best half of the links takes {usual}");
                    found("slow", why);
                }
                if bandwidth * TIMES < usual_band {
                    let (band, usual) = (rate(*bandwidth), rate(usual_band));
                    found(
                        "slow",
                        format!("it carries {band}, where the best half of the links carries {usual}"),
                    );
                }
            }
        }
    }
    all
}

/// Returns the median of the better half of some figures; 0 if there are none. `order` sorts the better of two figures
/// first.
fn median_of_best_half(mut figures: Vec<f64>, order: impl Fn(&f64, &f64) -> std::cmp::Ordering) -> f64 {
    figures.sort_by(order);
    let half = figures.len().div_ceil(2);
    figures.get(half.saturating_sub(1) / 2).copied().unwrap_or_default()
}

/// Formats seconds: `85 µs`, `1.2 ms`.
pub(super) fn micros(seconds: f64) -> String {
    match seconds * 1e6 {
        micros if micros < 1000. => format!("{micros:.0} µs"),
        micros => format!("{:.1} ms", micros / 1000.),
    }
}

/// Formats bytes per second: `940 MB/s`, `2.1 GB/s`.
pub(super) fn rate(bytes: f64) -> String {
    match bytes / 1e6 {
        mega if mega < 10. => format!("{mega:.1} MB/s"),
        mega if mega < 1000. => format!("{mega:.0} MB/s"),
        mega => format!("{:.1} GB/s", mega / 1000.),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_cluster::{Job, Task};

    fn link(to: usize, state: State) -> Link {
        Link {
            from: Task::new("doctor", 0),
            to: Job::Worker.task(to),
            address: format!("10.0.0.{to}:2222"),
            state,
        }
    }

    fn open(to: usize, round_trip: f64, bandwidth: f64) -> Link {
        link(to, State::Open { round_trip, bandwidth })
    }

    fn texts(links: &[Link]) -> Vec<String> {
        findings(links).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn links_that_are_alike_are_well() {
        let alike: Vec<_> = (0..6).map(|to| open(to, 100e-6 + 1e-5 * to as f64, 1e9)).collect();
        assert_eq!(texts(&alike), Vec::<String>::new());
        assert_eq!(texts(&[]), Vec::<String>::new());
        // A factor of 3 is not significant within one machine.
        assert_eq!(texts(&[open(0, 10e-6, 4e9), open(1, 150e-6, 3e9)]), Vec::<String>::new());
        assert_eq!(texts(&[link(1, State::Training)]), Vec::<String>::new());
    }

    #[test]
    fn slow_links_are_found_by_the_best_half_even_if_most_are_slow() {
        let links = [open(0, 100e-6, 1e9), open(1, 110e-6, 9e8), open(2, 5e-3, 1e8), open(3, 6e-3, 1e8)];
        assert_eq!(
            texts(&links),
            [
                "doctor 0 → worker 2 is slow: a round trip takes 5.0 ms, where the best half of the links takes 100 µs",
                "doctor 0 → worker 2 is slow: it carries 100 MB/s, where the best half of the links carries 1.0 GB/s",
                "doctor 0 → worker 3 is slow: a round trip takes 6.0 ms, where the best half of the links takes 100 µs",
                "doctor 0 → worker 3 is slow: it carries 100 MB/s, where the best half of the links carries 1.0 GB/s",
            ]
        );
    }

    #[test]
    fn a_failed_link_gets_a_reason() {
        let refused = State::Refused { what: "secret".into(), why: "the secrets differ".into() };
        let links = [
            link(0, State::Closed { why: "connection refused".into() }),
            link(1, refused),
            link(2, State::Broken { why: "it has ended".into() }),
        ];
        let texts = texts(&links);
        assert!(texts[0].starts_with(
            "doctor 0 → worker 0 is closed: no process answers at 10.0.0.0:2222 (connection refused)"
        ));
        assert_eq!(texts[1], "doctor 0 → worker 1 is refused: the secrets differ");
        assert_eq!(texts[2], "doctor 0 → worker 2 is broken: it has ended");
    }
}
