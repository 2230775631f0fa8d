//! The size of the memory that this process may use, read from Linux's files.

/// Returns the size of this machine's memory in bytes or, if it is lower, the memory limit of this process's container.
/// Returns `None` if the system doesn't report the size.
pub fn memory() -> Option<usize> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let machine = std::fs::read_to_string("/proc/meminfo").ok()?;
    let machine = machine.lines().find_map(|line| line.strip_prefix("MemTotal:")?.strip_suffix("kB"));
    let machine = number(machine?)?.checked_mul(1024)?;
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let container = limits.into_iter().filter_map(|path| number(&std::fs::read_to_string(path).ok()?)).min();
    Some(container.map_or(machine, |container| container.min(machine)))
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn there_is_some() {
        assert!(super::memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
