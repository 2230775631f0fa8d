//! The history of a job: samples of a training run of any length, in bounded memory. All functions are pure; the caller
//! passes the time.

use crate::{Report, Sample};
use std::collections::VecDeque;

/// The maximum number of samples.
const MAX_SAMPLES: usize = 480;

/// The duration in seconds over which a rate is measured.
const WINDOW: f64 = 3.;

/// The samples of a job. When there would be too many, every other one is removed, and fewer are kept from then on.
#[derive(Debug)]
pub(crate) struct History {
    samples: Vec<Sample>,
    /// The number of reports per sample that is kept.
    stride: u64,
    seen: u64,
    /// The samples of the last few seconds, from which rates are computed.
    recent: VecDeque<Sample>,
    /// The times of recent reports, each with the number of rows that had been read from and pushed to each server.
    rows: VecDeque<(f64, Vec<u64>)>,
}

impl History {
    pub(crate) fn new() -> Self {
        Self {
            samples: Vec::with_capacity(MAX_SAMPLES),
            stride: 1,
            seen: 0,
            recent: VecDeque::new(),
            rows: VecDeque::new(),
        }
    }

    /// Sets the rows per second of each server in `report`, by comparison with a report some seconds ago. The first
    /// report is left unchanged.
    fn rate_servers(&mut self, report: &mut Report) {
        let counts: Vec<u64> =
            report.servers.iter().map(|it| it.rows_read.unwrap_or(0) + it.rows_pushed.unwrap_or(0)).collect();
        let now = report.seconds;
        if let Some((then, before)) = self.rows.front() {
            for (server, (count, before)) in report.servers.iter_mut().zip(counts.iter().zip(before)) {
                // A restarted server counts from 0.
                let more = count.saturating_sub(*before) as f64;
                server.rows_per_second = if now > *then { more / (now - then) } else { 0. };
            }
        }
        self.rows.push_back((now, counts));
        while self.rows.get(1).is_some_and(|(second, _)| now - second >= WINDOW) {
            self.rows.pop_front();
        }
    }

    /// Adds a sample of a report to the history, and sets the rates and the history in the report.
    pub(crate) fn add(&mut self, report: &mut Report) {
        let (progress, ended) = (&report.progress, report.coordinator.as_ref().map_or(0, |it| it.ended));
        let mut now = Sample {
            seconds: report.seconds,
            steps: progress.steps,
            examples: progress.examples,
            loss: progress.loss,
            rate: 0.,
            ended,
        };
        let then = self.recent.front().copied().unwrap_or(now);
        let seconds = now.seconds - then.seconds;
        let rate = |more: f64| if seconds > 0. && more > 0. { more / seconds } else { 0. };
        let steps = now.steps.saturating_sub(then.steps) as f64;
        let (examples, closures) =
            (rate(now.examples - then.examples), rate(ended.saturating_sub(then.ended) as f64));
        now.rate = if now.examples == 0. && report.coordinator.is_some() { closures } else { examples };
        let progress = &mut report.progress;
        (progress.steps_per_second, progress.examples_per_second) = (rate(steps), examples);
        progress.seconds_per_step = (steps > 0. && seconds > 0.).then(|| seconds / steps);
        if let Some(coordinator) = &mut report.coordinator {
            coordinator.ended_per_second = closures;
        }
        self.rate_servers(report);
        self.recent.push_back(now);
        while self.recent.get(1).is_some_and(|second| now.seconds - second.seconds >= WINDOW) {
            self.recent.pop_front();
        }
        if self.seen.is_multiple_of(self.stride) {
            if self.samples.len() >= MAX_SAMPLES {
                // Every other sample is dropped, so the others have the distance that the next ones will have.
                let mut place = 0u64;
                self.samples.retain(|_| {
                    place += 1;
                    place % 2 == 1
                });
                self.stride = self.stride.saturating_mul(2);
            }
            self.samples.push(now);
        }
        self.seen += 1;
        report.history = self.samples.clone();
        if self.samples.last() != Some(&now) {
            report.history.push(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Coordinator, ParameterServer, Progress};

    fn report(seconds: f64, steps: u64) -> Report {
        let progress =
            Progress { steps, examples: 10. * steps as f64, loss: Some(1.), ..Progress::default() };
        Report { seconds, progress, ..Report::default() }
    }

    #[test]
    fn memory_is_bounded_and_samples_are_evenly_far_from_each_other() {
        let mut history = History::new();
        for second in 0..100_000u64 {
            let mut report = report(second as f64, second);
            history.add(&mut report);
            let all = &report.history;
            assert!(
                all.len() <= MAX_SAMPLES + 1 && all.len() as u64 >= (second + 1).min(MAX_SAMPLES as u64 / 2)
            );
            assert_eq!((all[0].seconds, all.last().unwrap().seconds), (0., second as f64));
            let gaps: Vec<_> = all.windows(2).map(|two| two[1].seconds - two[0].seconds).collect();
            assert!(gaps.iter().rev().skip(1).all(|gap| *gap == gaps[0]), "{second}: {gaps:?}");
        }
        assert!(history.recent.len() <= 5);
    }

    #[test]
    fn rows_in_a_second_are_of_each_server_and_none_where_it_began_anew() {
        let mut history = History::new();
        let mut rates = Vec::new();
        for (second, read) in [(0., 0), (1., 30), (2., 60), (6., 660), (7., 10)] {
            let server = ParameterServer {
                rows_read: Some(read),
                rows_pushed: Some(read / 2),
                ..ParameterServer::default()
            };
            let mut report = Report { servers: vec![server], ..report(second, 0) };
            history.add(&mut report);
            rates.push(report.servers[0].rows_per_second);
        }
        assert_eq!(rates, [0., 45., 45., 165., 0.]);
    }

    #[test]
    fn rates_are_those_of_the_last_seconds() {
        let mut history = History::new();
        let mut last = Report::default();
        for (second, steps) in [(0., 0), (1., 100), (2., 200), (3., 210), (4., 220), (5., 230), (6., 240)] {
            last = report(second, steps);
            history.add(&mut last);
        }
        assert_eq!(last.progress.steps_per_second, 10.);
        assert_eq!(last.progress.examples_per_second, 100.);
        assert_eq!(last.progress.seconds_per_step, Some(0.1));
        assert_eq!(last.history.last().unwrap().rate, 100.);
        for second in 7..12 {
            last = report(f64::from(second), 240);
            history.add(&mut last);
        }
        assert_eq!((last.progress.steps_per_second, last.progress.seconds_per_step), (0., None));
        // A restart from a checkpoint reduces the number of steps.
        last = report(12., 5);
        history.add(&mut last);
        assert_eq!(last.progress.steps_per_second, 0.);
    }

    #[test]
    fn of_a_coordinator_closures_are_counted() {
        let mut history = History::new();
        let mut last = Report::default();
        for second in 0..5u64 {
            let coordinator = Some(Coordinator { ended: 7 * second, ..Coordinator::default() });
            last = Report { seconds: second as f64, coordinator, ..Report::default() };
            history.add(&mut last);
        }
        assert_eq!(last.coordinator.unwrap().ended_per_second, 7.);
        assert_eq!(last.history.last().unwrap().rate, 7.);
    }
}
