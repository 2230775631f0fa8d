//! `distribute-bench --link` as users start it.
//!
//! Making network namespaces takes root (or `unshare --user --map-root-user`), so those tests have to be asked for:
//!
//! ```text
//! DISTRIBUTE_TEST_NAMESPACES=1 cargo test -p distribute-bench --test link
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(target_os = "linux")]

use distribute::cluster::Deadline;
use distribute_testing::{child, watched};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The timeout, longer than any of these tests takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

fn bench(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_distribute-bench"));
    command.args(["--quick", "--json"]).args(options);
    command
}

fn asked_for() -> bool {
    let asked = std::env::var("DISTRIBUTE_TEST_NAMESPACES").as_deref() == Ok("1");
    if !asked {
        eprintln!("not asked for: DISTRIBUTE_TEST_NAMESPACES=1 runs it");
    }
    asked
}

#[test]
fn training_goes_through_the_link_at_its_rate() {
    if !asked_for() {
        return;
    }
    let options = ["--rounds", "1", "--filter", "mlp_2p", "--link", "200mbit,unlimited"];
    let (text, _) = child::output(bench(&options), PATIENCE);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [limited, unlimited] = &lines[..] else { panic!("{text}") };
    assert_eq!(limited["figure"], "mlp_2p_200mbit");
    assert_eq!(unlimited["figure"], "mlp_2p_unlimited");
    let number = |line: &Value, name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name} in {line}"));
    // Gradients of 535,818 parameters, none of them through memory that the namespaces could share.
    let sent = number(limited, "sent");
    assert!((2.14e6..2.4e6).contains(&sent), "{sent}");
    let (least, step) = (sent * 8. / 200e6 * 1e3, number(limited, "step_ms"));
    assert!(
        step > 0.9 * least && number(limited, "sending_ms") > 0.9 * least,
        "{step} of {least}: {limited}"
    );
    assert!(number(unlimited, "sending_ms") < 0.5 * least, "{unlimited}");
}

/// Checks that no namespaces, devices or processes are left, even if no code can clean up.
#[test]
fn a_bench_that_is_killed_leaves_no_namespace() {
    if !asked_for() {
        return;
    }
    watched(|| {
        let mut command = bench(&["--seconds", "1000", "--filter", "mlp_2p", "--link", "1gbit"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut bench = child::Killed(command.spawn().unwrap());
        let here = namespace("self").unwrap();
        let mut inside = Vec::new();
        until(|| {
            inside = started_by(bench.0.id()).into_iter().collect();
            inside.retain(|pid| namespace(pid).is_some_and(|there| there != here));
            let works = |pid: &&String| {
                let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
                words.is_ok_and(|words| words.contains("--child"))
            };
            inside.iter().filter(works).count() == 2
        });
        assert_eq!(inside.len(), 4, "two that work, and two that keep the namespaces");
        bench.0.kill().unwrap();
        bench.0.wait().unwrap();
        until(|| inside.iter().all(|pid| namespace(pid).is_none()));
    });
}

fn until(mut done: impl FnMut() -> bool) {
    let deadline = Deadline::after(Duration::from_secs(50));
    while !done() {
        assert!(!deadline.has_passed(), "it has not come to that");
        std::thread::yield_now();
    }
}

/// Returns the network namespace of a process, or `None` if it has ended.
fn namespace(pid: &str) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

/// Returns all processes that the process `pid` has started, and their descendants.
fn started_by(pid: u32) -> BTreeSet<String> {
    let parent = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, fields) = stat.rsplit_once(") ")?;
        fields.split_whitespace().nth(1).map(str::to_string)
    };
    let all = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    let all: Vec<_> = all.filter_map(|name| name.into_string().ok()).collect();
    let parents: Vec<_> = all.iter().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = BTreeSet::from([pid.to_string()]);
    while let Some((child, _)) = parents.iter().find(|(pid, up)| found.contains(up) && !found.contains(*pid))
    {
        found.insert((*child).clone());
    }
    found.remove(&pid.to_string());
    found
}

/// Creates a folder to be used as `PATH`, with the given shell scripts as programs.
fn programs(all: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, script) in all {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

/// Runs the benchmark with the given `PATH`, which must make it fail. Returns the error that it prints.
fn refused(path: &Path, options: &[&str]) -> String {
    let mut command = bench(options);
    command.env("PATH", path);
    let (out, err) = child::refused(command, PATIENCE);
    assert_eq!(out, "");
    err
}

#[test]
fn without_the_tools_it_says_which_package_has_them() {
    let none = programs(&[]);
    let err = refused(none.path(), &["--link", "1gbit"]);
    assert!(err.contains("--link needs unshare") && err.contains("install util-linux"), "{err}");
    let some = programs(&[("unshare", ""), ("nsenter", ""), ("ip", "")]);
    let err = refused(some.path(), &["--link", "1gbit"]);
    assert!(err.contains("--link needs tc") && err.contains("install iproute2"), "{err}");
}

#[test]
fn where_it_may_not_it_says_who_may() {
    let unshare =
        r#"[ "$1" = -V ] || { echo "unshare: unshare failed: Operation not permitted" >&2; exit 1; }"#;
    let all = programs(&[("unshare", unshare), ("nsenter", ""), ("ip", ""), ("tc", "")]);
    let err = refused(all.path(), &["--link", "1gbit"]);
    assert!(err.contains("Operation not permitted") && err.contains("--map-root-user"), "{err}");
}

#[test]
fn a_rate_or_filter_that_means_nothing_is_refused_before_anything_is_made() {
    let none = programs(&[]);
    let err = refused(none.path(), &["--link", "fast"]);
    assert!(err.contains("\"fast\" is no rate of a link"), "{err}");
    let err = refused(none.path(), &["--link", "1gbit", "--filter", "moon"]);
    assert!(err.contains("mlp_2p_1gbit, mlp_bf16_2p_1gbit") && err.contains("zipf_tables_2p_1gbit"), "{err}");
}
