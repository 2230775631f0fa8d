//! The run of the machine: what a process has written before it was killed is there, unless the machine has ended since.

use bytes::Bytes;

/// Returns a name of this run of the machine; empty where the system has none.
pub(crate) fn id() -> Bytes {
    #[cfg(target_os = "linux")]
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    #[cfg(not(target_os = "linux"))]
    let id = Vec::new();
    Bytes::from(id.trim_ascii().to_vec())
}
