//! A report as lines for a terminal.

use crate::{ParameterServer, Replacements, Report, Shard, StepTimes, Straggler, Worker};
use distribute_log::plain;

/// Formats a report as lines of plain text, without control characters, even if names in the report contain some.
///
/// ```
/// use distribute_monitor::{Report, table};
/// let (program, strategy) = ("digits".into(), "MirroredStrategy".into());
/// let report = Report { program, process: 4711, strategy, ..Report::default() };
/// assert!(table(&report)[0].starts_with("digits (process 4711), MirroredStrategy"));
/// ```
pub fn table(report: &Report) -> Vec<String> {
    let Report { program, process, strategy, world, progress, coordinator, .. } = report;
    let who = match coordinator {
        Some(coordinator) => plural(coordinator.workers.len(), "worker"),
        None => format!("{}, {}", plural(world.workers.len(), "worker"), plural(world.replicas, "replica")),
    };
    let mut lines = vec![format!(
        "{program} (process {process}), {strategy}: {who}, watched for {}",
        time(report.seconds)
    )];
    if report.age > 3. {
        lines.push(format!("its status is {} old", time(report.age)));
    }
    let loss = match (progress.diverged, progress.loss) {
        (true, _) => "not finite".into(),
        (false, Some(loss)) => format!("{loss:.5}"),
        (false, None) => "-".into(),
    };
    let step = progress.seconds_per_step.map_or("-".into(), time);
    lines.push(String::new());
    lines.extend(aligned(&[
        ["steps", "steps/s", "a step", "examples", "examples/s", "loss"].map(String::from).into(),
        vec![
            progress.steps.to_string(),
            format!("{:.1}", progress.steps_per_second),
            step,
            format!("{:.0}", progress.examples),
            format!("{:.0}", progress.examples_per_second),
            loss,
        ],
    ]));
    if !report.waits.is_empty() {
        lines.push(String::new());
        lines.extend(report.waits.iter().map(|wait| {
            format!("{} has waited {} for {}: {}", wait.who, time(wait.seconds), wait.awaits, wait.why)
        }));
    }
    if let Some(Straggler { name, why, seconds, share }) = &report.straggler {
        lines.push(String::new());
        let share = share * 100.;
        lines.push(format!("all wait for {name}, {} and {share:.0} % of each step: {why}", time(*seconds)));
    }
    if let Some(Replacements { count, last }) = &report.replacements {
        lines.push(String::new());
        lines.push(format!("places of slow workers that spares have taken: {count}, last that of {last}"));
    }
    if !report.replicas.is_empty() {
        let mut rows = vec![["replica", "device", "now", "waiting", "elsewhere"].map(String::from).to_vec()];
        rows.extend(report.replicas.iter().map(|replica| {
            let now =
                replica.now.as_ref().map_or("-".into(), |now| format!("{} {}", now.what, time(now.seconds)));
            let all: f64 = replica.spent.values().sum();
            let share =
                |seconds: f64| if all > 0. { format!("{:.0} %", 100. * seconds / all) } else { "-".into() };
            let waiting = replica.spent.get("waiting").copied().unwrap_or(0.);
            let mut others: Vec<_> = replica.spent.iter().filter(|(what, _)| *what != "waiting").collect();
            others.sort_by(|a, b| b.1.total_cmp(a.1));
            let others: Vec<_> =
                others.iter().take(3).map(|(what, it)| format!("{what} {}", share(**it))).collect();
            vec![replica.replica.to_string(), device(&replica.device), now, share(waiting), others.join(", ")]
        }));
        lines.push(String::new());
        lines.extend(aligned(&rows));
    }
    if world.workers.len() > 1 {
        lines.push(String::new());
        lines.extend(aligned(&workers_of(&world.workers)));
    }
    if let Some(coordinator) = coordinator {
        lines.push(String::new());
        lines.push(format!(
            "coordinator: {} queued, {} ended ({:.1}/s), staleness {}, {} of {} away",
            coordinator.queued,
            coordinator.ended,
            coordinator.ended_per_second,
            coordinator.staleness.map_or("-".into(), |staleness| format!("{staleness:.2}")),
            coordinator.away(),
            plural(coordinator.workers.len(), "worker")
        ));
        lines.extend(aligned(&workers_of(&coordinator.workers)));
    }
    if !report.servers.is_empty() {
        let are_followed = report.servers.iter().any(|server| server.copies.is_some());
        let titles = ["server", "tables", "rows", "bytes", "rows read", "rows pushed", "rows/s", "copies"];
        let columns = titles.len() - usize::from(!are_followed);
        let mut rows = vec![titles[..columns].iter().map(|title| (*title).to_owned()).collect::<Vec<_>>()];
        let count = |count: Option<u64>| count.map_or("-".into(), |count| count.to_string());
        rows.extend(report.servers.iter().map(|server| {
            let (tables, rows, bytes) = (Some(server.tables), Some(server.rows), Some(server.bytes));
            let counts = [tables, rows, bytes, server.rows_read, server.rows_pushed].map(count);
            let rate = format!("{:.0}", server.rows_per_second);
            let copies = match server.copies {
                None => "-",
                Some(0) => "0: starting",
                Some(1) => "1: changes wait",
                Some(_) => "2",
            };
            let all = [server.name.clone()].into_iter().chain(counts).chain([rate, copies.to_owned()]);
            all.take(columns).collect()
        }));
        lines.push(String::new());
        lines.extend(aligned(&rows));
    }
    let shards = shards_of(&report.servers);
    if shards.len() > 1 {
        lines.push(String::new());
        lines.extend(aligned(&shards));
    }
    if let Some(cache) = &report.row_cache {
        let (share, mib) = (100. * cache.hit_share(), cache.saved_bytes as f64 / f64::from(1 << 20));
        let ages = plural(cache.max_age as usize, "step");
        lines.push(String::new());
        lines.push(format!(
            "cache of rows: {} cached; {share:.0} % of {} read from it, {mib:.1} MiB not fetched, at most {ages} old",
            plural(cache.rows as usize, "row"),
            plural((cache.hits + cache.misses) as usize, "row"),
        ));
    }
    if let Some(rows) = &report.prefetch {
        let (share, all) = (100. * rows.share(), plural((rows.prefetched + rows.late) as usize, "row"));
        lines.push(String::new());
        lines.push(format!("prefetched rows: {share:.0} % of {all} requested before their step"));
    }
    if let Some(hot) = &report.hot_rows {
        let (share, mib) = (100. * hot.hit_share(), hot.sent_bytes as f64 / f64::from(1 << 20));
        lines.push(String::new());
        lines.push(format!(
            "hot rows: {} copied; {share:.0} % of {} read from copies, {mib:.1} MiB sent for copies of others",
            hot.rows,
            plural((hot.hits + hot.misses) as usize, "row"),
        ));
    }
    lines.into_iter().map(|line| plain(&line).into_owned()).collect()
}

/// Returns the short form of a device name, such as `cpu:0`.
fn device(name: &str) -> String {
    name.rsplit_once("device:").map_or(name, |(_, short)| short).to_lowercase()
}

/// Returns the table of the shards that are read most, with a line of titles.
fn shards_of(servers: &[ParameterServer]) -> Vec<Vec<String>> {
    let all = servers.iter().flat_map(|server| server.shards.iter().map(move |shard| (server, shard)));
    let all: Vec<_> = all.filter(|(_, shard)| shard.rows_read > 0).collect();
    let rows: u64 = all.iter().map(|(_, shard)| shard.rows_read).sum();
    let line = |(server, shard): &(&ParameterServer, &Shard)| {
        let share = 100. * shard.rows_read as f64 / rows.max(1) as f64;
        let counts = [shard.rows_read.to_string(), format!("{share:.0} %"), shard.bytes_read.to_string()];
        [shard.name.clone(), server.name.clone()].into_iter().chain(counts).collect()
    };
    let titles = ["shard", "server", "rows read", "share", "bytes read"].map(String::from).to_vec();
    std::iter::once(titles).chain(all.iter().map(line)).collect()
}

fn workers_of(workers: &[Worker]) -> Vec<Vec<String>> {
    let mut rows = vec![["worker", "address", "state", "closures", "lost"].map(String::from).to_vec()];
    let are_timed = workers.iter().any(|worker| worker.times.is_some());
    if are_timed {
        rows[0].extend(["computing", "input", "outside", "waiting"].map(String::from));
    }
    rows.extend(workers.iter().map(|worker| {
        let does = worker.does.as_deref().unwrap_or("there");
        let state = match (&worker.away, worker.seconds) {
            (Some(why), _) => format!("away: {why}"),
            (None, Some(seconds)) => format!("{does} {}", time(seconds)),
            (None, None) => does.into(),
        };
        let count = |count: Option<u64>| count.map_or("-".into(), |count| count.to_string());
        let address = worker.address.clone().unwrap_or("-".into());
        let mut row = vec![worker.name.clone(), address, state, count(worker.closures), count(worker.losses)];
        if are_timed {
            let parts = worker.times.map(|StepTimes { computing, input, outside, waiting }| {
                [computing, input, outside, waiting].map(time)
            });
            row.extend(parts.unwrap_or_else(|| ["-"; 4].map(String::from)));
        }
        row
    }));
    rows
}

/// Formats rows as lines with aligned columns.
fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect()
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Formats a duration with a suitable unit.
fn time(seconds: f64) -> String {
    match seconds {
        ..0.001 => format!("{:.0} µs", seconds * 1e6),
        0.001..1.0 => format!("{:.1} ms", seconds * 1e3),
        1.0..120.0 => format!("{seconds:.1} s"),
        120.0..7200.0 => format!("{:.0} min", seconds / 60.),
        _ => format!("{:.1} h", seconds / 3600.),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::busy;

    #[test]
    fn a_job_is_shown_in_aligned_columns() {
        let lines = table(&busy());
        let text = lines.join("\n");
        assert_eq!(lines[0], "train (process 7), MultiWorkerMirroredStrategy: 2 workers, watched for 60.0 s");
        let alone = Report { coordinator: None, ..busy() };
        assert!(table(&alone)[0].contains(": 2 workers, 4 replicas, "));
        for part in [
            "120    2.0      500.0 ms  1200      20          0.50000",
            "replica 1 has waited 1.5 s for replica 0: all_reduce (SUM float32[]) at train.rs:19:18",
            "waiting 1.5 s  26 %     forward 74 %",
            "coordinator: 12 queued, 400 ended (8.0/s), staleness 0.75, 1 of 2 workers away",
            "away: the connection was lost",
            "ps 1    2       1000  32000  77         70           14",
            "shard         server  rows read  share  bytes read",
            "words/part_1  ps 1    70         50 %   2240",
            "cache of rows: 25 rows cached; 30 % of 100 rows read from it, 0.0 MiB not fetched, at most 4 steps old",
            "prefetched rows: 75 % of 80 rows requested before their step",
            "hot rows: 9 copied; 90 % of 50 rows read from copies, 3.0 MiB sent for copies of others",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(!text.contains("has not said"));
    }

    #[test]
    fn a_straggler_is_told_beside_the_times_of_all_workers() {
        let mut report = Report { coordinator: None, ..busy() };
        report.straggler = Some(Straggler {
            name: "worker 1".into(),
            why: "its input is slow".into(),
            seconds: 0.05,
            share: 0.312,
        });
        report.world.workers[1].times =
            Some(StepTimes { computing: 0.1, input: 0.05, outside: 0., waiting: 0.01 });
        report.replacements = Some(Replacements { count: 2, last: "worker 2: its link is slow".into() });
        let text = table(&report).join("\n");
        let replaced = "spares have taken: 2, last that of worker 2: its link is slow";
        assert!(text.contains(replaced), "{text}");
        assert!(
            text.contains("all wait for worker 1, 50.0 ms and 31 % of each step: its input is slow"),
            "{text}"
        );
        assert!(text.contains("lost  computing  input    outside  waiting"), "{text}");
        assert!(text.contains("0     100.0 ms   50.0 ms  0 µs     10.0 ms"), "{text}");
        assert!(text.contains("0     -          -        -        -"), "{text}");
    }

    // INV-62
    #[test]
    fn nothing_that_a_job_is_called_moves_the_cursor() {
        let mut report = busy();
        report.program = "a\x1b[2Jb\r".into();
        report.waits[0].why = "c\n\x07".into();
        assert!(table(&report).iter().all(|line| !line.contains(char::is_control)));
    }

    #[test]
    fn an_old_status_is_marked_as_old() {
        let report = Report { age: 42., ..busy() };
        assert!(table(&report)[1].contains("its status is 42.0 s old"));
    }
}
