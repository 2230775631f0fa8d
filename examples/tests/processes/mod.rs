//! Starts examples as processes, such as the workers of a job, and reads their output.

#![allow(dead_code)] // Each test program uses its part.

use distribute_testing::Port;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// Returns the program of an example, which `cargo test` of the workspace has built next to this test.
pub fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    assert!(program.exists(), "first: cargo build -p distribute-examples --examples");
    program
}

/// The workers of a job, which are killed on drop, and the port of the first.
pub struct Workers(pub Vec<Child>, pub Option<Port>);

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}

impl Workers {
    pub fn start(workers: usize, name: &str, arguments: &[&str]) -> Self {
        let leader = Port::reserve();
        let port = leader.number();
        let address = |worker: usize| format!("127.0.0.1:{}", if worker == 0 { port } else { 0 });
        let addresses: Vec<_> = (0..workers).map(address).collect();
        let start = |worker: usize| {
            let config =
                json!({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}});
            Command::new(example(name))
                .args(arguments)
                .env("TF_CONFIG", config.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        };
        // The leader starts last.
        let mut all: Vec<_> = (0..workers).rev().map(start).collect();
        all.reverse();
        Self(all, Some(leader))
    }

    pub fn end(mut self) -> Vec<Output> {
        std::mem::take(&mut self.0).into_iter().map(|worker| worker.wait_with_output().unwrap()).collect()
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the JSON in the last line of an example's output. The example must have succeeded.
pub fn figures(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let last = stdout.lines().last().unwrap_or_else(|| panic!("no output; {}", text(&output.stderr)));
    serde_json::from_str(last).unwrap()
}

/// Sends SIGTERM to a process.
pub fn terminate(process: &Child) {
    assert!(Command::new("kill").args(["-TERM", &process.id().to_string()]).status().unwrap().success());
}
