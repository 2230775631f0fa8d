//! Names of event files. TensorBoard reads the files of a folder with `tfevents` in their names, in the order
//! of names.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Returns a name for an event file that no other file has. It consists of the time in seconds, the name of the
/// machine, the id of the process and a number.
pub(crate) fn of_file(now: Duration) -> String {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    named(now.as_secs(), &host(), std::process::id(), number)
}

fn named(seconds: u64, host: &str, process: u32, number: u64) -> String {
    format!("events.out.tfevents.{seconds:010}.{host}.{process}.{number}")
}

/// Returns the name of this machine, without characters that may not be allowed in a file name; `localhost` if the name
/// is not available.
fn host() -> String {
    let found = fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    in_a_name(found.as_deref().unwrap_or_default())
}

fn in_a_name(host: &str) -> String {
    let fits = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = host.trim().chars().filter(fits).take(64).collect();
    if name.is_empty() { "localhost".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_time_and_each_is_another() {
        assert_eq!(named(1_700_000_000, "node-1", 7, 0), "events.out.tfevents.1700000000.node-1.7.0");
        assert!(named(999, "z", 9, 9) < named(1_700_000_000, "a", 1, 0));
        assert_ne!(of_file(Duration::ZERO), of_file(Duration::ZERO));
    }

    #[test]
    fn a_host_of_any_name_has_one_that_files_can_have() {
        assert_eq!(in_a_name("node-1.example\n"), "node-1.example");
        assert_eq!(in_a_name("../a b"), "..ab");
        assert_eq!(in_a_name("\n"), "localhost");
    }
}
