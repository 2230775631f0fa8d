//! A report in Prometheus' text format.

use crate::{HotRows, Prefetch, Report, RowCache, StepTimes};
use std::fmt::{self, Write};

/// The content type of the response to a scrape.
#[cfg(unix)]
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the metrics of a job in Prometheus' text format. All names begin with `distribute_`.
///
/// ```
/// use distribute_monitor::{Progress, Report, exposition};
/// let report = Report { progress: Progress { steps: 7, ..Progress::default() }, ..Report::default() };
/// assert!(exposition(&report).contains("# TYPE distribute_steps_total counter\ndistribute_steps_total 7\n"));
/// ```
pub fn exposition(report: &Report) -> String {
    let mut out = Exposition(String::new());
    let Report { progress, world, .. } = report;
    out.one(
        "distribute_watched_seconds",
        "gauge",
        "Seconds for which this process has been watched.",
        report.seconds,
    );
    out.one(
        "distribute_report_age_seconds",
        "gauge",
        "Age of the last report of the job, in seconds.",
        report.age,
    );
    out.one("distribute_steps_total", "counter", "Steps that have begun.", progress.steps as f64);
    out.one("distribute_examples_total", "counter", "Examples that optimizers have seen.", progress.examples);
    let loss = if progress.diverged { Some(f64::NAN) } else { progress.loss };
    out.each("distribute_loss", "gauge", "The loss of the last step.", loss.map(|loss| ([], loss)));
    let step = "Seconds of a step, averaged over the last seconds.";
    out.each("distribute_step_seconds", "gauge", step, progress.seconds_per_step.map(|it| ([], it)));
    let rate = "Examples per second, averaged over the last seconds.";
    out.one("distribute_examples_per_second", "gauge", rate, progress.examples_per_second);
    out.one("distribute_replicas", "gauge", "Number of replicas of all workers.", world.replicas as f64);
    out.one("distribute_workers", "gauge", "Number of workers of the world.", world.workers.len() as f64);
    let lost = world.workers.iter().filter(|worker| worker.away.is_some()).count();
    out.one(
        "distribute_workers_lost",
        "gauge",
        "Workers of the world that are lost to this one.",
        lost as f64,
    );

    let timed = world.workers.iter().filter_map(|worker| Some((&*worker.name, worker.times?)));
    let times = timed.flat_map(|(worker, StepTimes { computing, input, outside, waiting })| {
        let parts = [("computing", computing), ("input", input), ("outside", outside), ("waiting", waiting)];
        parts.map(|(part, seconds)| ([("worker", worker), ("part", part)], seconds))
    });
    let help = "Seconds of a step that a worker spends on its parts, in about the last minute.";
    out.each("distribute_worker_step_seconds", "gauge", help, times);
    let straggler = report.straggler.iter().map(|it| ([("worker", &*it.name), ("why", &*it.why)], it.share));
    let help = "The share of each step in which all wait for a worker, and why.";
    out.each("distribute_straggler_share", "gauge", help, straggler);
    let replaced = report.replacements.as_ref().map_or(0, |replacements| replacements.count);
    let help = "Slow workers whose places spares have taken.";
    out.one("distribute_stragglers_replaced_total", "counter", help, replaced as f64);

    let names: Vec<_> = report.replicas.iter().map(|it| (it.replica.to_string(), it)).collect();
    let spent = names.iter().flat_map(|(name, replica)| {
        replica
            .spent
            .iter()
            .map(move |(what, seconds)| ([("replica", &**name), ("activity", &**what)], *seconds))
    });
    let help = "Seconds of a replica, by activity; waiting is for other replicas, in collective calls.";
    out.each("distribute_replica_seconds_total", "counter", help, spent);
    let waiting = names.iter().map(|(name, replica)| {
        let now = replica.now.as_ref().filter(|now| now.what == "waiting");
        ([("replica", &**name)], now.map_or(0., |now| now.seconds))
    });
    let help = "Seconds for which a replica has now been waiting for others.";
    out.each("distribute_replica_waiting_seconds", "gauge", help, waiting);

    if let Some(coordinator) = &report.coordinator {
        let (queued, ended, away) =
            (coordinator.queued as f64, coordinator.ended as f64, coordinator.away() as f64);
        out.one("distribute_coordinator_queued", "gauge", "Closures that wait for a worker.", queued);
        out.one("distribute_coordinator_ended_total", "counter", "Closures that have ended.", ended);
        out.one("distribute_coordinator_workers_away", "gauge", "Workers that are not connected.", away);
        if let Some(staleness) = coordinator.staleness {
            let help = "Number of other closures that ended while one ran, on average.";
            out.one("distribute_coordinator_staleness", "gauge", help, staleness);
        }
        let closures =
            coordinator.workers.iter().filter_map(|it| Some(([("worker", &*it.name)], it.closures? as f64)));
        out.each("distribute_coordinator_worker_closures", "gauge", "Closures that a worker has.", closures);
        let losses =
            coordinator.workers.iter().filter_map(|it| Some(([("worker", &*it.name)], it.losses? as f64)));
        out.each(
            "distribute_coordinator_worker_losses_total",
            "counter",
            "Number of times that a worker was lost.",
            losses,
        );
    }
    let servers = &report.servers;
    let of = |value: fn(&crate::ParameterServer) -> Option<u64>| {
        servers.iter().filter_map(move |it| Some(([("server", &*it.name)], value(it)? as f64)))
    };
    out.each(
        "distribute_server_tables",
        "gauge",
        "Variables and shards on a server.",
        of(|it| Some(it.tables)),
    );
    out.each(
        "distribute_server_rows",
        "gauge",
        "Rows of all variables and shards on a server.",
        of(|it| Some(it.rows)),
    );
    out.each(
        "distribute_server_bytes",
        "gauge",
        "Bytes of all variables and shards on a server.",
        of(|it| Some(it.bytes)),
    );
    let help = "Copies of a server's tables, if another server follows: 1 while changes wait for it, 0 while a server starts.";
    out.each("distribute_server_copies", "gauge", help, of(|it| it.copies));
    let help = "Rows that were read from a server since it started.";
    out.each("distribute_server_rows_read_total", "counter", help, of(|it| it.rows_read));
    let help = "Rows that had gradients sent to a server since it started.";
    out.each("distribute_server_rows_pushed_total", "counter", help, of(|it| it.rows_pushed));
    let shards = || servers.iter().flat_map(|server| server.shards.iter().map(move |shard| (server, shard)));
    let of = |value: fn(&crate::Shard) -> u64| {
        shards()
            .map(move |(it, shard)| ([("server", &*it.name), ("shard", &*shard.name)], value(shard) as f64))
    };
    let help =
        "Rows that were read from a shard since its server started, for the shards that are read most.";
    out.each("distribute_shard_rows_read_total", "counter", help, of(|it| it.rows_read));
    out.each("distribute_shard_bytes_read_total", "counter", "Bytes of these.", of(|it| it.bytes_read));
    if let Some(RowCache { hits, misses, saved_bytes, max_age, rows }) = report.row_cache {
        let read = [([("from", "cache")], hits as f64), ([("from", "tables")], misses as f64)];
        let help = "Rows that this process has read from its caches of rows, and from the tables.";
        out.each("distribute_row_cache_reads_total", "counter", help, read);
        let help = "Bytes of rows that were not fetched, because they were cached.";
        out.one("distribute_row_cache_saved_bytes_total", "counter", help, saved_bytes as f64);
        let help = "The largest number of steps whose changes a row lacked when it was read.";
        out.one("distribute_row_cache_max_age", "gauge", help, max_age as f64);
        out.one("distribute_row_cache_rows", "gauge", "Rows that are cached now.", rows as f64);
    }
    if let Some(Prefetch { prefetched, late }) = report.prefetch {
        let rows = [([("requested", "early")], prefetched as f64), ([("requested", "late")], late as f64)];
        let help = "Rows that this process has looked up, by whether they were requested before their step.";
        out.each("distribute_prefetch_rows_total", "counter", help, rows);
    }
    if let Some(HotRows { hits, misses, sent_rows, sent_bytes, rows }) = report.hot_rows {
        let read = [([("from", "copies")], hits as f64), ([("from", "tables")], misses as f64)];
        let help =
            "Rows that this process has looked up in tables with hot rows: from its copies, and others.";
        out.each("distribute_hot_row_reads_total", "counter", help, read);
        let help = "Values that this process has sent for the copies of other workers.";
        out.one("distribute_hot_row_sent_rows_total", "counter", help, sent_rows as f64);
        let help = "Bytes that this process has sent about hot rows to other workers.";
        out.one("distribute_hot_row_sent_bytes_total", "counter", help, sent_bytes as f64);
        out.one("distribute_hot_rows", "gauge", "Copies of hot rows that this process has now.", rows as f64);
    }
    out.0
}

struct Exposition(String);

impl Exposition {
    fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.each(name, kind, help, [([], value)]);
    }

    /// Writes a metric with its samples. Writes nothing if there are no samples.
    fn each<'a, const N: usize>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = ([(&'a str, &'a str); N], f64)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        let out = &mut self.0;
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = write!(out, "{name}");
            for (place, (label, value)) in labels.iter().enumerate() {
                let _ = write!(out, "{}{label}=\"{}\"", if place == 0 { '{' } else { ',' }, Escaped(value));
            }
            let _ = writeln!(out, "{} {}", if N > 0 { "}" } else { "" }, Number(value));
        }
    }
}

/// The value of a label, with the three special characters escaped.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => f.write_char(c),
        })
    }
}

struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            value if value.is_nan() => f.write_str("NaN"),
            value if value.is_infinite() => f.write_str(if value > 0. { "+Inf" } else { "-Inf" }),
            value => write!(f, "{value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::busy;
    use crate::{Replacements, Straggler};
    use distribute_testing::child;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn every_metric_has_its_help_its_type_and_escaped_labels() {
        let text = exposition(&busy());
        for line in [
            "# TYPE distribute_steps_total counter",
            "distribute_steps_total 120",
            "distribute_loss 0.5",
            "distribute_replica_seconds_total{replica=\"1\",activity=\"waiting\"} 2.5",
            "distribute_replica_waiting_seconds{replica=\"1\"} 1.5",
            "distribute_replica_waiting_seconds{replica=\"0\"} 0",
            "distribute_coordinator_queued 12",
            "distribute_coordinator_workers_away 1",
            "distribute_coordinator_staleness 0.75",
            "distribute_coordinator_worker_closures{worker=\"worker \\\"<1>\\\"\\n\\\\\"} 3",
            "distribute_server_rows{server=\"ps 0\"} 1000",
            "distribute_server_rows_read_total{server=\"ps 0\"} 77",
            "distribute_row_cache_reads_total{from=\"cache\"} 30",
            "distribute_row_cache_reads_total{from=\"tables\"} 70",
            "distribute_row_cache_saved_bytes_total 960",
            "distribute_row_cache_max_age 4",
            "distribute_row_cache_rows 25",
            "distribute_shard_rows_read_total{server=\"ps 1\",shard=\"words/part_1\"} 70",
            "distribute_shard_bytes_read_total{server=\"ps 0\",shard=\"words/part_0\"} 2240",
            "distribute_prefetch_rows_total{requested=\"early\"} 60",
            "distribute_prefetch_rows_total{requested=\"late\"} 20",
            "distribute_hot_row_reads_total{from=\"copies\"} 45",
            "distribute_hot_row_reads_total{from=\"tables\"} 5",
            "distribute_hot_row_sent_rows_total 6",
            "distribute_hot_row_sent_bytes_total 3145728",
            "distribute_hot_rows 9",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\nis not in\n{text}");
        }
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn a_straggler_and_the_times_of_workers_are_exported() {
        let mut report = busy();
        assert!(!exposition(&report).contains("straggler_share"));
        report.replacements = Some(Replacements { count: 2, last: String::new() });
        report.straggler = Some(Straggler {
            name: "worker 1".into(),
            why: "its link is slow".into(),
            seconds: 0.05,
            share: 0.5,
        });
        report.world.workers[1].times =
            Some(StepTimes { computing: 0.1, input: 0.05, outside: 0., waiting: 0.01 });
        let text = exposition(&report);
        for line in [
            "distribute_stragglers_replaced_total 2",
            "distribute_straggler_share{worker=\"worker 1\",why=\"its link is slow\"} 0.5",
            "distribute_worker_step_seconds{worker=\"worker 1\",part=\"input\"} 0.05",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\nis not in\n{text}");
        }
    }

    #[test]
    fn a_loss_that_is_not_finite_is_exported_and_an_unknown_one_is_not() {
        let mut report = busy();
        (report.progress.loss, report.progress.diverged) = (None, true);
        assert!(exposition(&report).contains("\ndistribute_loss NaN\n"));
        report.progress.diverged = false;
        assert!(!exposition(&report).contains("distribute_loss"));
    }

    /// Checks the metrics with Prometheus' Python library. The test is skipped if the Python in `DISTRIBUTE_PYTHON`, by
    /// default `python3`, does not have this library.
    #[test]
    fn prometheus_own_parser_reads_it() {
        let python = std::env::var("DISTRIBUTE_PYTHON").unwrap_or_else(|_| "python3".into());
        let has_it = Command::new(&python).args(["-c", "import prometheus_client"]).output();
        if !has_it.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: {python} has no prometheus_client");
            return;
        }
        let script = "
import sys
from prometheus_client.parser import text_string_to_metric_families
found = {(s.name, *sorted(s.labels.items())): s.value for m in text_string_to_metric_families(sys.argv[1]) for s in m.samples}
assert found[('distribute_steps_total',)] == 120, found
assert found[('distribute_coordinator_worker_closures', ('worker', 'worker \"<1>\"\\n\\\\'))] == 3, found
assert len(found) > 20
print('read')
";
        let mut read = Command::new(&python);
        read.args(["-c", script, &exposition(&busy())]);
        assert!(child::output(read, Duration::from_secs(60)).0.contains("read"));
    }
}
