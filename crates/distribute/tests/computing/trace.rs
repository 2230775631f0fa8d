//! The timeline of a training, read back from its file.

use candle_core::{Device, Tensor};
use candle_nn::{Module, VarBuilder, linear};
use distribute::{data::Dataset, nn::loss, prelude::*, trace};
use distribute_testing::child::alone;
use distribute_testing::watched;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A slice of a timeline's track, with times in nanoseconds.
#[derive(Debug)]
struct Slice {
    name: String,
    start: u64,
    end: u64,
    args: Value,
}

/// The slices of each track, in the order of their starts, each outer slice before the inner ones.
type Tracks = BTreeMap<String, Vec<Slice>>;

fn read(path: &Path) -> Tracks {
    parse(&std::fs::read_to_string(path).unwrap())
}

fn parse(text: &str) -> Tracks {
    let events: Vec<Value> = serde_json::from_str(text).expect("the file is JSON");
    // As viewers do: the last name of a track counts.
    let names: BTreeMap<u64, &str> = events
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| (event["tid"].as_u64().unwrap(), event["args"]["name"].as_str().unwrap()))
        .collect();
    let mut tracks = Tracks::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let nanos = |key: &str| (event[key].as_f64().unwrap() * 1e3).round() as u64;
        let slice = Slice {
            name: event["name"].as_str().unwrap().into(),
            start: nanos("ts"),
            end: nanos("ts") + nanos("dur"),
            args: event["args"].clone(),
        };
        tracks.entry(names[&event["tid"].as_u64().unwrap()].into()).or_default().push(slice);
    }
    for slices in tracks.values_mut() {
        slices.sort_by_key(|slice| (slice.start, std::cmp::Reverse(slice.end)));
    }
    tracks
}

/// Checks that slices follow or contain each other, and that inner slices together are not longer than the outer one.
fn assert_nested(track: &str, slices: &[Slice]) {
    let mut around: Vec<(&Slice, u64)> = Vec::new();
    for slice in slices {
        while let Some((outer, inside)) = around.pop_if(|(outer, _)| outer.end <= slice.start) {
            assert!(inside <= outer.end - outer.start, "{track}: {outer:?} holds {inside} ns");
        }
        if let Some((outer, inside)) = around.last_mut() {
            assert!(slice.end <= outer.end, "{track}: {slice:?} crosses {outer:?}");
            assert_eq!(outer.name, "step", "{track}: {slice:?} lies in {outer:?}");
            *inside += slice.end - slice.start;
        }
        around.push((slice, 0));
    }
}

fn names(slices: &[Slice]) -> BTreeSet<&str> {
    slices.iter().map(|slice| slice.name.as_str()).collect()
}

fn temporary() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    (folder, path)
}

#[test]
fn a_training_of_two_replicas_is_traced_completely() {
    alone("trace::a_training_of_two_replicas_is_traced_completely", || {
        let (_folder, path) = temporary();
        let file = path.clone();
        watched(move || {
            let trace = trace::to_file(file).unwrap();
            let strategy = MirroredStrategy::cpus(2).unwrap();
            let model = strategy.replicate(|vb: VarBuilder| linear(64, 300, vb)).unwrap();
            let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
            let x = Tensor::arange(0f32, 64. * 100., &Device::Cpu).unwrap().sin().unwrap();
            let x = x.reshape((100, 64)).unwrap();
            let labels = Tensor::from_iter((0..100u32).map(|i| i % 10), &Device::Cpu).unwrap();
            let batches = Dataset::from_slices((x, labels)).unwrap().batch(10).prefetch(2);
            for batch in &strategy.distribute_dataset(batches).unwrap() {
                let step = strategy.run((&model, batch.unwrap()), |ctx, (model, (x, labels))| {
                    let loss = loss::cross_entropy(&model.forward(&x)?, &labels)?;
                    let mean = optimizer.minimize(ctx, loss, labels.dim(0)?)?;
                    // Of more than 64 KiB: the replicas share the sum.
                    ctx.all_reduce(ReduceOp::Sum, Tensor::zeros(40_000, mean.dtype(), &Device::Cpu)?)
                });
                step.unwrap();
            }
            trace.finish().unwrap();
        });

        let tracks = read(&path);
        tracks.iter().for_each(|(track, slices)| assert_nested(track, slices));
        assert_eq!(tracks.keys().collect::<Vec<_>>(), ["data-prefetch", "replica 0", "replica 1"]);
        assert!(names(&tracks["data-prefetch"]).contains("input"));
        for replica in ["replica 0", "replica 1"] {
            let found = names(&tracks[replica]);
            for name in ["forward", "backward", "waiting", "update", "reduce"] {
                assert!(found.contains(name), "{replica} has no {name}, but {found:?}");
            }
        }
        let caller = &tracks["replica 0"];
        let steps: Vec<_> = caller.iter().filter(|slice| slice.name == "step").collect();
        assert_eq!(
            steps.iter().map(|step| step.args["step"].as_u64().unwrap()).collect::<Vec<_>>(),
            Vec::from_iter(1..=10)
        );
        // The eleventh finds the end.
        assert_eq!(caller.iter().filter(|slice| slice.name == "input").count(), 11);
        for step in steps {
            for (replica, slices) in tracks.iter().filter(|(track, _)| track.starts_with("replica")) {
                let inside = slices
                    .iter()
                    .filter(|s| s.name == "backward" && step.start <= s.start && s.end <= step.end);
                assert_eq!(inside.count(), 1, "backward of {replica} in {step:?}");
            }
        }
        assert!(caller.iter().any(|s| s.args["call"].as_str().is_some_and(|call| call.contains("trace.rs"))));
    });
}

#[test]
fn a_replica_is_seen_to_wait_until_the_other_has_worked() {
    alone("trace::a_replica_is_seen_to_wait_until_the_other_has_worked", || {
        let (_folder, path) = temporary();
        let file = path.clone();
        watched(move || {
            let _trace = trace::to_file(file).unwrap();
            let strategy = MirroredStrategy::cpus(2).unwrap();
            let step = strategy.run((), |ctx, ()| {
                let mut x = Tensor::zeros(1000, candle_core::DType::F32, &Device::Cpu)?;
                for _ in 0..2000 * ctx.replica_id_in_sync_group() {
                    x = x.sin()?;
                }
                ctx.all_reduce(ReduceOp::Sum, 1f32)
            });
            step.unwrap();
        });
        let tracks = read(&path);
        // Durations depend on the load of the machine, but the order of events does not.
        let ends = |track: &str, name: &str| {
            tracks[track].iter().filter(|s| s.name == name).map(|s| s.end).collect()
        };
        let (worked, waited): (Vec<_>, Vec<_>) = (ends("replica 1", "forward"), ends("replica 0", "waiting"));
        assert!(worked[0] <= waited[0], "{tracks:#?}");
        let call = |s: &Slice| {
            s.name == "waiting" && s.args["call"].as_str().is_some_and(|c| c.starts_with("all_reduce"))
        };
        assert!(tracks["replica 0"].iter().any(call) && tracks["replica 1"].iter().any(call), "{tracks:#?}");
        let back = tracks["replica 0"].iter().filter(|s| s.name == "forward").nth(1).map(|s| s.start);
        assert!(back.is_some_and(|back| worked[0] <= back), "{tracks:#?}");
    });
}

#[test]
fn nested_runs_and_merge_calls_nest() {
    alone("trace::nested_runs_and_merge_calls_nest", || {
        let (_folder, path) = temporary();
        let file = path.clone();
        watched(move || {
            let _trace = trace::to_file(file).unwrap();
            let strategy = MirroredStrategy::cpus(2).unwrap();
            let step = strategy.run((), |ctx, ()| {
                let nested = |strategy: &Strategy, _: PerReplica<()>| strategy.run((), |_, ()| Ok(1f32));
                ctx.merge_call((), nested)
            });
            step.unwrap();
        });
        let tracks = read(&path);
        let caller = &tracks["replica 0"];
        let [outer, inner]: [&Slice; 2] =
            caller.iter().filter(|s| s.name == "step").collect::<Vec<_>>().try_into().unwrap();
        assert!(outer.start < inner.start && inner.end <= outer.end);
        let merge = caller.iter().find(|s| s.name == "merge").unwrap();
        assert!(merge.start <= inner.start && inner.end <= merge.end);
    });
}

#[test]
fn after_an_error_or_a_panic_the_file_can_be_read() {
    alone("trace::after_an_error_or_a_panic_the_file_can_be_read", || {
        let (_folder, path) = temporary();
        for fault in ["an error", "a panic"] {
            let file = path.clone();
            watched(move || {
                let run = || -> distribute::Result<()> {
                    let _trace = trace::to_file(file)?;
                    let strategy = MirroredStrategy::cpus(2)?;
                    strategy.run((), |ctx, ()| match (ctx.replica_id_in_sync_group(), fault) {
                        (0, _) => ctx.all_reduce(ReduceOp::Sum, 1f32),
                        (_, "a panic") => panic!("as planned"),
                        _ => Err(distribute::Error::other("as planned")),
                    })?;
                    Ok(())
                };
                assert!(run().unwrap_err().to_string().contains("as planned"));
            });
            let tracks = read(&path);
            assert!(
                names(&tracks["replica 0"]).is_superset(&["step", "forward", "waiting"].into()),
                "{fault}"
            );
            assert!(names(&tracks["replica 1"]).contains("forward"), "{fault}");
        }
    });
}

#[test]
fn files_on_the_disk_can_be_read_at_any_time() {
    alone("trace::files_on_the_disk_can_be_read_at_any_time", || {
        let (_folder, path) = temporary();
        let file = path.clone();
        let (while_open, whole) = watched(move || {
            let trace = trace::to_file(&file).unwrap();
            let strategy = MirroredStrategy::cpus(2).unwrap();
            for _ in 0..500 {
                strategy.run((), |_, ()| Ok(())).unwrap();
            }
            let while_open = std::fs::read_to_string(&file).unwrap();
            trace.finish().unwrap();
            (while_open, std::fs::read_to_string(&file).unwrap())
        });
        // As after kill -9: whole lines, without the closing bracket.
        assert!(while_open.len() > 60 << 10 && while_open.len() < whole.len(), "{}", while_open.len());
        assert!(!parse(&format!("{while_open}]"))["replica 0"].is_empty());
        assert_eq!(parse(&whole)["replica 0"].iter().filter(|slice| slice.name == "step").count(), 500);
    });
}

#[test]
fn values_that_cannot_be_written_are_typed_errors() {
    alone("trace::values_that_cannot_be_written_are_typed_errors", || {
        let missing = Path::new("/nowhere/trace.json");
        let error = trace::to_file(missing).unwrap_err();
        assert!(
            matches!(error, distribute::Error::Io { .. })
                && error.to_string().contains("/nowhere/trace.json"),
            "{error}"
        );

        let (_folder, path) = temporary();
        let first = trace::to_file(&path).unwrap();
        let error = trace::to_file(&path).unwrap_err().to_string();
        assert!(error.contains("another trace is being written"), "{error}");
        first.finish().unwrap();
        // After both have finished, another trace can be written.
        trace::to_file(&path).unwrap().finish().unwrap();
        assert!(read(&path).is_empty());

        #[cfg(target_os = "linux")]
        {
            let full = trace::to_file("/dev/full").unwrap_err().to_string();
            assert!(full.contains("/dev/full"), "{full}");
        }
    });
}

// INV-24
#[cfg(unix)]
#[test]
fn a_trace_is_written_to_a_separate_file_and_never_waits_for_a_pipe() {
    alone("trace::a_trace_is_written_to_a_separate_file_and_never_waits_for_a_pipe", || {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        for (path, what) in [(at("pipe"), "a named pipe"), (folder.path().to_path_buf(), "a folder")] {
            let error = trace::to_file(&path).map(drop).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains(&path.display().to_string()), "{error}");
        }
        std::fs::write(at("precious"), "text").unwrap();
        std::os::unix::fs::symlink(at("precious"), at("link")).unwrap();
        trace::to_file(at("link")).unwrap().finish().unwrap();
        parse(&std::fs::read_to_string(at("link")).unwrap());
        assert_eq!(std::fs::read_to_string(at("precious")).unwrap(), "text");
    });
}
