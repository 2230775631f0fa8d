//! Tests of `distribute-bench` as users start it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use distribute::cluster::Deadline;
use distribute_testing::child;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The peers' scripts.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");
/// The timeout, longer than any of these tests takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

fn command(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_distribute-bench"));
    command.args(options);
    command
}

/// Runs a command that must succeed. Returns the lines of JSON that the command prints.
fn lines(command: Command) -> Vec<Value> {
    let (text, _) = child::output(command, PATIENCE);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn bench(options: &[&str]) -> Vec<Value> {
    lines(command(options))
}

#[test]
fn a_new_process_shows_start_and_the_recorded_peer_stands_in() {
    let lines = bench(&["--json", "--quick", "--rounds", "1", "--filter", "start"]);
    assert!(lines[0]["ours"].as_f64().unwrap() > 0.);
    assert!(lines[0]["peer_source"].as_str().unwrap().starts_with("recorded"));
}

#[test]
fn peers_that_cannot_be_started_are_left_out() {
    let python = "/nowhere/python";
    let lines = bench(&[
        "--json",
        "--quick",
        "--rounds",
        "1",
        "--filter",
        "empty_step_2",
        "--peers",
        SCRIPTS,
        "--python",
        python,
    ]);
    assert!(lines[0]["ratio"].as_f64().unwrap() > 0.);
    assert!(lines[0]["peer_source"].as_str().unwrap().starts_with("recorded"));
}

#[test]
fn away_from_the_repository_it_says_that_it_needs_the_peers_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(&["--filter", "empty_step_2", "--peers"]);
    command.current_dir(folder.path());
    let (out, err) = child::refused(command, PATIENCE);
    assert!(err.contains("bench/peers has no peer_tensorflow.py") && err.contains("--peers FOLDER"), "{err}");
    assert_eq!(out, "");
}

/// Runs a shell script as a peer of `empty_step_2` in three rounds, and returns its result.
#[cfg(unix)]
fn beside(script: &str, folder: &Path, options: &[&str]) -> Value {
    use std::os::unix::fs::PermissionsExt;
    let peer = folder.join("peer");
    std::fs::write(&peer, script).unwrap();
    std::fs::set_permissions(&peer, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = command(&["--json", "--quick", "--rounds", "3", "--filter", "empty_step_2"]);
    command.args(["--peers", SCRIPTS, "--python", "/nowhere/python"]).args(options);
    command.env("DISTRIBUTE_PEER_BURN", &peer).current_dir(folder);
    let [line] = <[Value; 1]>::try_from(lines(command)).unwrap();
    line
}

/// Runs a peer that is a short script with the protocol of the real scripts.
#[test]
#[cfg(unix)]
fn a_peer_takes_turns_and_a_plot_is_drawn_and_its_figures_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"#!/bin/sh
case "$1" in
--list) echo '{"figure": "empty_step_2", "unit": "us", "peer": "a shell"}' ;;
*) echo '{"version": "7"}'; while read -r line; do echo '{"value": 1000000}'; done ;;
esac
"#;
    let files = ["--plot", "ratios.svg", "--record", "kept.jsonl", "--machine", "this one"];
    let line = beside(script, folder.path(), &files);
    assert_eq!(line["peer"], "a shell");
    assert_eq!(line["peer_value"], 1e6);
    assert_eq!(line["peer_version"], "7");
    assert_eq!(line["peer_source"], "this run");
    assert!(line["ratio"].as_f64().unwrap() > 1.);
    assert!(std::fs::read_to_string(folder.path().join("ratios.svg")).unwrap().contains("a shell"));
    let kept = std::fs::read_to_string(folder.path().join("kept.jsonl")).unwrap();
    let kept: Value = serde_json::from_str(&kept).unwrap();
    assert_eq!((&kept["peer"], &kept["machine"]), (&"a shell".into(), &"this one".into()));
}

/// Starts two peers, each with a busy process, that record in each of their rounds the processes of the benchmark that
/// are not stopped: this program and the other peer. No process is left at the end.
#[test]
#[cfg(target_os = "linux")]
fn everybody_else_is_stopped_while_one_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"#!/bin/sh
case "$1" in
--list)
    echo '{"figure": "empty_step_2", "unit": "us", "peer": "first"}'
    echo '{"figure": "empty_step_2", "unit": "us", "peer": "second"}'
    ;;
*)
    (while :; do :; done) &
    echo $! > "restless.$$"
    echo '{"version": "7"}'
    while read -r line; do
        stopped=0 running=0
        for stat in /proc/[0-9]*/stat; do
            read -r text 2>/dev/null < "$stat" || continue
            pid=${text%% *}
            set -- ${text##*) }
            [ "$2" = "$PPID" ] && [ "$pid" != $$ ] || continue
            case "$1" in T) stopped=$((stopped + 1)) ;; *) running=$((running + 1)) ;; esac
        done
        echo "{\"value\": 1000$stopped$running}"
    done
    ;;
esac
"#;
    let line = beside(script, folder.path(), &[]);
    let peers = line["peers"].as_array().unwrap();
    assert_eq!(peers.len(), 2, "{line}");
    for peer in peers {
        // Two are stopped, none is running, in every round.
        assert_eq!((&peer["min"], &peer["max"]), (&100020.0.into(), &100020.0.into()), "{line}");
    }
    let restless = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let restless: Vec<_> = restless.filter(|path| path.to_string_lossy().contains("restless.")).collect();
    assert_eq!(restless.len(), 2);
    for path in restless {
        let pid = std::fs::read_to_string(path).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        let deadline = Deadline::after(Duration::from_secs(30));
        // Another process may reap it.
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(!deadline.has_passed(), "{stat} goes on");
            std::thread::yield_now();
        }
    }
}

#[test]
#[cfg(unix)]
fn a_peer_that_ends_or_fails_is_left_out_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"#!/bin/sh
case "$1" in
--list) for peer in ends fails lasts; do echo '{"figure": "empty_step_2", "unit": "us", "peer": "'$peer'"}'; done ;;
*)
    echo '{"version": "7"}'
    read -r line
    echo '{"value": 1}'
    read -r line
    case "$5" in
    ends) exit ;;
    fails) echo '{"error": "no luck"}' ;;
    esac
    echo '{"value": 1}'
    read -r line
    echo '{"value": 1}'
    read -r line
    ;;
esac
"#;
    let line = beside(script, folder.path(), &[]);
    assert_eq!(line["peers"].as_array().unwrap().len(), 1, "{line}");
    assert_eq!(line["peer"], "lasts");
}

#[test]
fn steps_are_shown_beside_those_during_a_save() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let lines = bench(&["--saves", folder, "--json", "--quick", "--rounds", "1"]);
    assert_eq!(lines.len(), 12);
    assert!(lines.iter().all(|line| line["replicas"].as_u64().is_some()));
    assert_eq!(distribute_testing::names_in(std::path::Path::new(folder)), ["saves-1", "saves-2"]);
}

#[test]
fn trainings_in_half_precision_are_shown_beside_f32() {
    let lines = bench(&["--precision", "--json", "--quick", "--rounds", "1"]);
    let names: Vec<_> = lines.iter().map(|line| line["precision"].as_str().unwrap()).collect();
    assert_eq!(names, ["off", "bf16", "f16", "off", "bf16", "f16"]);
    for line in &lines {
        assert!(line["loss"].as_f64().unwrap() < 3. && line["peak_mib"].as_f64().unwrap() > 1., "{line}");
    }
}

#[test]
fn growth_is_shown_beside_what_its_bytes_allow() {
    let lines = bench(&["--growth", "--json", "--quick", "--rounds", "1", "--filter", "replicas"]);
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| line["bound"].as_f64().unwrap() > 0.));
    assert!(lines.iter().all(|line| line["peak_mib"].as_f64().unwrap() > 1.));
}
