//! Inspection of this machine for causes of slow training.

use super::memory;
use distribute::Result;

impl Machine {
    /// Inspects this machine. Copies memory for several seconds to measure the bandwidth.
    pub fn look() -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let alone = memory::bandwidth(1)?;
        let all_cores = if cores > 1 { memory::bandwidth(cores)? } else { alone };
        let threads = THREADS.map(|name| (name, given(name)));
        Ok(Self { cores, load: load(), quota: quota(), threads, alone, all_cores })
    }

    /// Returns the findings, one line each.
    pub fn lines(&self) -> Vec<String> {
        let cores = self.cores;
        let quota = self.quota.map(|quota| format!(", of which cgroups grant {quota}")).unwrap_or_default();
        let mut lines = vec![format!("cores               {cores}{quota}")];
        for (name, value) in &self.threads {
            let text = match value {
                Some(value) => format!("{value}, from the environment"),
                None => "1, set by #[distribute::main]".into(),
            };
            lines.push(format!("{name:<19} {text}"));
        }
        if let Some(load) = self.load {
            lines.push(format!("load                {load:.1} threads wait or run, averaged over a minute"));
        }
        lines.push(format!("memory, 1 thread    {:.1} GB/s copied", self.alone));
        if cores > 1 {
            lines.push(format!("memory, {cores} threads   {:.1} GB/s copied", self.all_cores));
        }
        lines
    }

    /// Returns the findings and the warnings as JSON.
    pub fn json(&self) -> serde_json::Value {
        let threads: serde_json::Map<_, _> =
            self.threads.iter().map(|(name, value)| ((*name).to_string(), value.clone().into())).collect();
        serde_json::json!({
            "cores": self.cores,
            "quota": self.quota,
            "load": self.load,
            "threads": threads,
            "copied_gb_per_s": [self.alone, self.all_cores],
            "warnings": self.warnings(),
        })
    }

    /// Returns the problems that were found. Each text names the cause, the cost and the fix.
    pub fn warnings(&self) -> Vec<String> {
        let found = self;
        let mut warnings = Vec::new();
        for (name, value) in &found.threads {
            let Some(value) = value.as_ref().filter(|value| value.trim() != "1") else { continue };
            let trap = match *name {
                "CANDLE_NUM_THREADS" => {
                    "all replicas share one pool of candle's, and wait for each other in it"
                }
                _ => "each matrix product of each replica starts that many jobs",
            };
            warnings.push(format!(
                "{name}={value}: {trap}; several replicas then run 3 to 8 times slower. Unset it, unless you train with one replica"
            ));
        }
        if let Some(quota) = found.quota.filter(|quota| *quota + 0.01 < found.cores as f64) {
            warnings.push(format!(
                "the container sees {} cores but may use {quota}: replicas are stopped in turn while others wait for them. \
                 Use {} replicas at most",
                found.cores,
                quota.floor().max(1.)
            ));
        }
        if let Some(load) = found.load.filter(|load| *load > 0.5 * found.cores as f64) {
            warnings.push(format!(
                "other programs use the cores (load {load:.1} on {}): a step takes as long as its slowest replica",
                found.cores
            ));
        }
        if found.cores > 1 && found.all_cores < 1.2 * found.alone {
            warnings.push(format!(
                "{} cores copy no faster than one ({:.1} and {:.1} GB/s): models that are bound by memory gain nothing from \
                 more replicas here",
                found.cores, found.all_cores, found.alone
            ));
        }
        if cfg!(debug_assertions) {
            warnings.push("this program was built without optimisation: use cargo run --release".into());
        }
        warnings
    }
}

/// The environment variables that set the number of threads for matrix products.
pub(crate) const THREADS: [&str; 2] = ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"];

/// The relevant properties of a machine.
pub struct Machine {
    cores: usize,
    load: Option<f64>,
    quota: Option<f64>,
    /// The values of [`THREADS`] in the environment; `None` if the user has not set them.
    threads: [(&'static str, Option<String>); 2],
    /// The copy bandwidth of one thread, in gigabytes per second.
    alone: f64,
    /// The copy bandwidth of all cores together, with one thread on each.
    all_cores: f64,
}

/// Returns the value that an environment variable had when the process started, before `#[distribute::main]` set it;
/// `None` if it was not set. Only Linux provides this; on other systems, returns the current value.
pub(crate) fn given(name: &str) -> Option<String> {
    match std::fs::read("/proc/self/environ") {
        Ok(bytes) => bytes.split(|b| *b == 0).find_map(|entry| {
            let entry = String::from_utf8_lossy(entry);
            entry.strip_prefix(name)?.strip_prefix('=').map(str::to_string)
        }),
        Err(_) => std::env::var(name).ok(),
    }
}

/// Returns the number of running and waiting threads, averaged over the last minute; `None` if the system does not
/// report it.
fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Returns the number of cores that a container may use; `None` if it is not limited, or the system does not report it.
fn quota() -> Option<f64> {
    parse_quota(&std::fs::read_to_string("/sys/fs/cgroup/cpu.max").ok()?)
}

fn parse_quota(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> Machine {
        let threads = [("CANDLE_NUM_THREADS", None), ("RAYON_NUM_THREADS", Some("1".into()))];
        Machine { cores: 2, load: Some(0.1), quota: None, threads, alone: 10., all_cores: 20. }
    }

    /// Returns the warnings, except the one about a build without optimisation, which tests always cause.
    fn traps(found: &Machine) -> Vec<String> {
        found.warnings().into_iter().filter(|w| !w.contains("--release")).collect()
    }

    #[test]
    fn a_healthy_machine_is_left_alone() {
        assert_eq!(traps(&healthy()), Vec::<String>::new());
    }

    #[test]
    fn each_trap_is_named_with_advice() {
        let mut found = healthy();
        found.threads[0].1 = Some("8".into());
        found.quota = Some(1.5);
        found.load = Some(6.);
        found.all_cores = 10.;
        let traps = traps(&found);
        for (trap, words) in traps.iter().zip([
            ["CANDLE_NUM_THREADS=8", "Unset it"],
            ["may use 1.5", "Use 1 replicas"],
            ["load 6.0", "slowest replica"],
            ["copy no faster", "bound by memory"],
        ]) {
            assert!(words.iter().all(|word| trap.contains(word)), "{trap}");
        }
        assert_eq!(traps.len(), 4);
    }

    #[test]
    fn a_quota_is_read_as_cores() {
        assert_eq!(parse_quota("150000 100000\n"), Some(1.5));
        assert_eq!(parse_quota("max 100000\n"), None);
    }
}
