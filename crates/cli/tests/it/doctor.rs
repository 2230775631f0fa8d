//! Runs `distribute doctor` as users do.

use distribute_testing::{Port, child};
use std::process::Command;
use std::time::Duration;

/// Runs the command with `CANDLE_NUM_THREADS` set to `threads`, and returns its output. It is killed after five
/// minutes.
fn doctor(threads: Option<&str>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_distribute"));
    command.arg("doctor").env_remove("CANDLE_NUM_THREADS").env_remove("RAYON_NUM_THREADS");
    command.env_remove("TF_CONFIG");
    command.envs(threads.map(|threads| ("CANDLE_NUM_THREADS", threads)));
    child::output(command, Duration::from_secs(300)).0
}

#[test]
fn doctor_describes_the_machine_and_advises_changes() {
    let text = doctor(None);
    for found in
        ["cores   ", "CANDLE_NUM_THREADS  1, set by", "RAYON_NUM_THREADS   1, set by", "memory, 1 thread    "]
    {
        assert!(text.contains(found), "{found}: {text}");
    }
    // Tests are built so.
    assert!(!cfg!(debug_assertions) || text.contains("built without optimisation"), "{text}");
    assert!(!text.contains("CANDLE_NUM_THREADS="), "{text}");
    // A pipe is no terminal.
    assert!(!text.contains('\x1b'), "{text:?}");

    let text = doctor(Some("8"));
    assert!(text.contains("CANDLE_NUM_THREADS  8, from the environment"), "{text}");
    assert!(text.contains("warning: CANDLE_NUM_THREADS=8: ") && text.contains("Unset it"), "{text}");
}

/// Returns the command `distribute doctor` for worker 0 of a cluster of two workers at the given ports.
fn of_cluster(ports: &[Port; 2], arguments: &[&str]) -> Command {
    let [one, two] = ports.each_ref().map(Port::address);
    let task = r#"{"type": "worker", "index": 0}"#;
    let config = format!(r#"{{"cluster": {{"worker": ["{one}", "{two}"]}}, "task": {task}}}"#);
    let mut command = Command::new(env!("CARGO_BIN_EXE_distribute"));
    command.arg("doctor").args(arguments).env("TF_CONFIG", config).env_remove("DISTRIBUTE_SECRET");
    command
}

#[test]
fn a_closed_link_is_named_in_a_table_and_in_json() {
    let patience = Duration::from_secs(300);
    let ports = [Port::reserve(), Port::reserve()];
    let text = child::refused(of_cluster(&ports, &["--timeout", "300ms"]), patience).0;
    assert!(text.contains("from      to        address"), "{text}");
    assert!(
        text.contains("warning: doctor 0 → worker 1 is closed: no process answers at 127.0.0.1:"),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "{text:?}");
    let text = child::refused(of_cluster(&ports, &["--timeout", "300ms", "--json"]), patience).0;
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["links"][0]["state"]["is"], "closed");
    assert_eq!(json["findings"].as_array().unwrap().len(), 2);
    assert!(json["machine"]["cores"].as_u64().unwrap() > 0);
}

#[test]
fn tasks_that_listen_are_measured_by_worker_0() {
    let patience = Duration::from_secs(300);
    let ports = [Port::reserve(), Port::reserve()];
    let first = of_cluster(&ports, &["--listen", "--timeout", "50s"]);
    let config = first.get_envs().find(|(name, _)| *name == "TF_CONFIG").unwrap().1.unwrap();
    let second = config.to_str().unwrap().replace("\"index\": 0", "\"index\": 1");
    let mut other = Command::new(env!("CARGO_BIN_EXE_distribute"));
    other.args(["doctor", "--listen", "--timeout", "50s"]).env("TF_CONFIG", second);
    other.env_remove("DISTRIBUTE_SECRET");
    let other = std::thread::spawn(move || child::output(other, patience).0);
    let text = child::output(first, patience).0;
    assert!(text.contains("worker 0  worker 1  127.0.0.1:") && text.contains("  open "), "{text}");
    assert!(text.contains("no problems found"), "{text}");
    assert_eq!(other.join().unwrap(), "");
}
