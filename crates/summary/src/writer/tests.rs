use super::*;
use crate::event::{VERSION, Value, What};
use distribute_data::{Compression, TfRecordReader};
use distribute_testing::child;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the events of a file, up to its end or to an incomplete record.
fn events(path: &Path) -> Vec<Event> {
    let mut reader = TfRecordReader::open(path, Compression::None).unwrap();
    let mut events = Vec::new();
    while let Ok(records) = reader.read(1) {
        if records.is_empty() {
            break;
        }
        events.extend(records.iter().map(|record| Event::decode(record).unwrap()));
    }
    events
}

/// Returns the tags, steps and values of the scalars in a file.
fn scalars(path: &Path) -> Vec<(String, i64, f32)> {
    let of = |event: Event| match event.what {
        Some(What::Summary(summary)) => match &summary.values[..] {
            [Value { tag, kind: Some(Kind::Scalar(value)) }] => Some((tag.clone(), event.step, *value)),
            _ => None,
        },
        _ => None,
    };
    events(path).into_iter().filter_map(of).collect()
}

#[test]
fn events_round_trip() {
    let folder = tempfile::tempdir().unwrap();
    let before = wall_clock().as_secs_f64();
    let summaries = SummaryWriter::create(folder.path().join("a/run")).unwrap();
    let path = summaries.path().unwrap().to_path_buf();
    assert!(path.file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents."));
    summaries.scalar("loss", 0.25, 1).unwrap();
    summaries.scalar("loss", f64::NAN, 2).unwrap();
    summaries.histogram("weights", [1f32, -1., 1.], 2).unwrap();
    summaries.close().unwrap();
    let events = events(&path);
    assert_eq!(events[0].what, Some(What::FileVersion(VERSION.into())));
    assert!(events.iter().all(|event| (before..before + 3600.).contains(&event.wall_time)));
    let scalars = scalars(&path);
    assert_eq!(scalars[0], ("loss".into(), 1, 0.25));
    assert!(scalars[1].2.is_nan());
    let Some(What::Summary(last)) = &events[3].what else { panic!("{events:?}") };
    let [Value { tag, kind: Some(Kind::Histogram(found)) }] = &last.values[..] else { panic!("{last:?}") };
    assert_eq!(
        (&**tag, found.number, found.counts.first(), found.counts.last()),
        ("weights", 3., Some(&0.), Some(&2.))
    );
}

#[test]
fn events_can_be_read_once_they_are_flushed() {
    let folder = tempfile::tempdir().unwrap();
    let summaries = SummaryWriter::create(folder.path()).unwrap().flush_every(Duration::MAX);
    let path = summaries.path().unwrap().to_path_buf();
    assert_eq!(events(&path).len(), 1, "a reader sees at once that this is an event file");
    summaries.scalar("a", 1., 1).unwrap();
    assert_eq!(scalars(&path), []);
    summaries.flush().unwrap();
    assert_eq!(scalars(&path).len(), 1);
    summaries.scalar("a", 2., 2).unwrap();
    drop(summaries);
    assert_eq!(scalars(&path).len(), 2);
    let summaries = SummaryWriter::create(folder.path()).unwrap().flush_every(Duration::ZERO);
    summaries.scalar("a", 3., 3).unwrap();
    assert_eq!(scalars(summaries.path().unwrap()).len(), 1);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "each writer has a file of its own");
}

#[test]
fn threads_share_a_writer_and_no_event_is_torn() {
    let folder = tempfile::tempdir().unwrap();
    let summaries = SummaryWriter::create(folder.path()).unwrap().flush_every(Duration::ZERO);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let summaries = &summaries;
            scope.spawn(move || {
                (0..200).for_each(|step| summaries.scalar(&format!("t{thread}"), 1., step).unwrap())
            });
        }
    });
    assert_eq!(scalars(summaries.path().unwrap()).len(), 800);
}

#[test]
fn a_writer_writes_where_its_condition_holds_and_one_without_a_file_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    static ON: AtomicBool = AtomicBool::new(false);
    let summaries = SummaryWriter::create(folder.path()).unwrap().record_if(|| ON.load(Ordering::Relaxed));
    summaries.scalar("a", 1., 1).unwrap();
    summaries.histogram("b", [f64::NAN], 1).unwrap();
    ON.store(true, Ordering::Relaxed);
    summaries.scalar("a", 2., 2).unwrap();
    summaries.flush().unwrap();
    assert_eq!(scalars(summaries.path().unwrap()), [("a".into(), 2, 2.)]);
    let noop = SummaryWriter::noop();
    assert!(noop.path().is_none());
    noop.scalar("a", 1., 1).unwrap();
    noop.flush().unwrap();
    noop.close().unwrap();
}

#[test]
fn an_invalid_summary_is_refused_and_leaves_the_file_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let summaries = SummaryWriter::create(folder.path()).unwrap().flush_every(Duration::ZERO);
    let error = summaries.histogram("weights", [1., f64::NEG_INFINITY], 7).unwrap_err();
    assert!(error.to_string().starts_with("histogram: weights at step 7 has -inf"), "{error}");
    for tag in [String::new(), "x".repeat(5000)] {
        assert!(matches!(summaries.scalar(&tag, 1., 1), Err(Error::Tag { operation: "scalar", .. })));
    }
    assert_eq!(events(summaries.path().unwrap()).len(), 1);
    fs::write(folder.path().join("file"), "").unwrap();
    let error = SummaryWriter::create(folder.path().join("file/run")).unwrap_err();
    assert!(matches!(error, Error::Folder { .. }), "{error}");
}

/// Checks a full disk, which is simulated by the system's limit on the size of files.
#[cfg(unix)]
#[test]
fn a_full_disk_is_an_error_each_time_and_flushed_events_remain() {
    if let Some(folder) = child::part() {
        let summaries = SummaryWriter::create(&folder).unwrap().flush_every(Duration::ZERO);
        let failed = (0..).find_map(|step| summaries.scalar("a", 1., step).err()).unwrap();
        assert!(
            matches!(&failed, Error::Write(source) if matches!(**source, distribute_data::Error::Write { .. })),
            "{failed:?}"
        );
        assert!(failed.to_string().contains("Free space"), "{failed}");
        assert!(matches!(summaries.scalar("a", 2., 9), Err(Error::Write(_))));
        let written = scalars(summaries.path().unwrap()).len();
        assert!((50..200).contains(&written), "{written}");
        assert!(matches!(summaries.close(), Err(Error::Write(_))));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let name = "writer::tests::a_full_disk_is_an_error_each_time_and_flushed_events_remain";
    let this = child::command(name, folder.path().to_str().unwrap());
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""])
        .arg(this.get_program())
        .args(this.get_args());
    limited.envs(this.get_envs().filter_map(|(name, value)| Some((name, value?))));
    child::output(limited, PATIENCE);
}

/// Checks the files with TensorBoard's own reader. The test is skipped if the Python in `DISTRIBUTE_PYTHON`, by default
/// `python3`, does not have TensorBoard.
#[test]
fn tensorboard_reads_the_files() {
    let python = std::env::var("DISTRIBUTE_PYTHON").unwrap_or_else(|_| "python3".into());
    let has_it = Command::new(&python)
        .args(["-c", "import tensorboard.backend.event_processing.event_accumulator"])
        .output();
    if !has_it.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: {python} has no tensorboard");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let summaries = SummaryWriter::create(folder.path()).unwrap();
    for step in 0..100 {
        summaries.scalar("loss", 1. / (1. + step as f64), step).unwrap();
        summaries.histogram("weights", (-50..=50).map(|i| f64::from(i) * 0.1), step).unwrap();
    }
    summaries.close().unwrap();
    let script = "
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0, 'histograms': 0}).Reload()
loss = events.Scalars('loss')
assert [it.step for it in loss] == list(range(100)), loss
assert all(abs(it.value - 1 / (1 + it.step)) < 1e-6 for it in loss), loss
weights = events.Histograms('weights')
assert len(weights) == 100
last = weights[-1].histogram_value
assert (last.num, last.min, last.max) == (101, -5, 5) and abs(last.sum) < 1e-9, last
assert sum(last.bucket) == 101 and len(last.bucket) == len(last.bucket_limit), last
between = sum(n for limit, n in zip(last.bucket_limit, last.bucket) if -1 < limit <= 1)
assert 15 <= between <= 21, between
# As the pages show them.
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
shown = EventMultiplexer().AddRun(sys.argv[1], 'run').Reload()
assert len(shown.Tensors('run', 'loss')) and len(shown.Tensors('run', 'weights'))
print('read')
";
    let mut read = Command::new(&python);
    read.args(["-c", script]).arg(folder.path());
    let (out, _) = child::output(read, PATIENCE);
    assert!(out.contains("read"), "{out}");
}
