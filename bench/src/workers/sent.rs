//! The number of bytes that this host has sent, as counted by the kernel.

use distribute::{Error, Result};
use std::io::Error as IoError;

/// The file with the counters of this process's namespace. `/sys/class/net` may belong to the namespace in which it was
/// mounted.
const COUNTERS: &str = "/proc/self/net/dev";

/// Returns the number of bytes that this host has sent to other hosts so far, including the headers of packets.
///
/// # Errors
/// - [`Error::Io`]: the system does not provide the counters.
pub fn sent() -> Result<u64> {
    let io = |source| Error::Io { operation: format!("reading {COUNTERS}"), source };
    let text = std::fs::read_to_string(COUNTERS).map_err(io)?;
    parsed(&text).ok_or_else(|| io(IoError::other(format!("it is not as expected: {text:?}"))))
}

/// Parses two lines of headings, and one line per device: eight columns of received data, followed by the number of
/// bytes sent.
fn parsed(text: &str) -> Option<u64> {
    let devices = text.lines().skip(2).map(|line| {
        let (name, counters) = line.split_once(':')?;
        Some((name.trim(), counters.split_whitespace().nth(8)?.parse::<u64>().ok()?))
    });
    let devices: Vec<_> = devices.collect::<Option<_>>()?;
    Some(devices.iter().filter(|(name, _)| *name != "lo").map(|(_, bytes)| bytes).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: &str = "Inter-|   Receive                                                |  Transmit\n \
        face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n";

    #[test]
    fn bytes_of_the_loopback_device_are_not_counted() {
        let devices =
            "    lo: 900 9 0 0 0 0 0 0 900 9 0 0 0 0 0 0\n link0:123 2 0 0 0 0 0 0 4567 3 0 0 0 0 0 0\n";
        assert_eq!(parsed(&format!("{HEADS}{devices}")), Some(4567));
        assert_eq!(parsed(HEADS), Some(0));
        assert_eq!(parsed(&format!("{HEADS}link0: 1 2 3\n")), None);
    }
}
