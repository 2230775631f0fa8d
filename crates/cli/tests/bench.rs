//! `distribute bench` as users start it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;
use std::process::Command;

fn bench(options: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_distribute")).arg("bench").args(options).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_new_process_shows_start_and_the_recorded_peer_stands_in() {
    let lines = bench(&["--json", "--quick", "--rounds", "1", "--filter", "start"]);
    assert!(lines[0]["ours"].as_f64().unwrap() > 0.);
    assert_eq!(lines[0]["peer"], "TensorFlow, MirroredStrategy");
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
        "--python",
        python,
    ]);
    assert_eq!(lines[0]["peer"], "TensorFlow, compiled");
    assert!(lines[0]["peer_source"].as_str().unwrap().starts_with("recorded"));
}

/// A peer of a few lines, which speaks as the scripts do.
#[test]
#[cfg(unix)]
fn a_peer_takes_turns_and_a_plot_is_drawn() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (peer, plot) = (folder.path().join("peer"), folder.path().join("ratios.svg"));
    let script = r#"#!/bin/sh
case "$1" in
--list) echo '{"figure": "empty_step_2", "unit": "us", "peer": "a shell"}' ;;
*) echo '{"version": "7"}'; while read -r line; do echo '{"value": 1000000}'; done ;;
esac
"#;
    std::fs::write(&peer, script).unwrap();
    std::fs::set_permissions(&peer, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_distribute"))
        .args(["bench", "--json", "--quick", "--rounds", "3", "--filter", "empty_step_2"])
        .args(["--peers", "--python", "/nowhere/python", "--plot", plot.to_str().unwrap()])
        .env("DISTRIBUTE_PEER_BURN", &peer)
        .output()
        .unwrap();
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["peer"], "a shell");
    assert_eq!(line["peer_value"], 1e6);
    assert_eq!(line["peer_version"], "7");
    assert_eq!(line["peer_source"], "this run");
    assert!(line["ratio"].as_f64().unwrap() > 1.);
    assert!(std::fs::read_to_string(&plot).unwrap().contains("a shell"));
}

#[test]
fn growth_is_shown_beside_what_its_bytes_allow() {
    let lines = bench(&["--growth", "--json", "--quick", "--rounds", "1", "--filter", "replicas"]);
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| line["bound"].as_f64().unwrap() > 0.));
    assert!(lines.iter().all(|line| line["peak_mib"].as_f64().unwrap() > 1.));
}
