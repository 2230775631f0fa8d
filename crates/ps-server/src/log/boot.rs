//! The identity of the current boot of the machine. The writes of a killed process are lost only if the machine
//! restarts.

use bytes::Bytes;

/// Returns an identifier of the current boot; empty if the system has none.
pub(crate) fn id() -> Bytes {
    #[cfg(target_os = "linux")]
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    #[cfg(not(target_os = "linux"))]
    let id = Vec::new();
    Bytes::from(id.trim_ascii().to_vec())
}
