//! The script for Slurm.

use super::{Job, SECRET};
use crate::{Error, Result};
use std::fmt::Write as _;

/// Returns a script for `sbatch`.
pub(super) fn script(job: &Job<'_>) -> Result<String> {
    let layout = job.layout;
    let refuse = |problem| Err(Error::Unprintable { target: "slurm", problem });
    if layout.evaluator {
        return refuse(
            "an evaluator is no part of the cluster; submit it as a job of its own, without --evaluator here",
        );
    }
    if job.max_restarts > 0 {
        return refuse("Slurm starts no single task again; leave out --max-restarts");
    }
    let mut script = String::from("#!/bin/bash\n");
    let mut directive = |name: &str, value: String| {
        // Writing into a string cannot fail.
        let _ = writeln!(script, "#SBATCH --{name}={value}");
    };
    directive("job-name", job.name());
    directive("ntasks", job.in_cluster().to_string());
    let on_hosts = job.on_hosts();
    if let Some(most) = on_hosts.iter().max() {
        let names: Vec<_> = layout.hosts.iter().map(|host| host.host().to_string()).collect();
        directive("nodelist", names.join(","));
        directive("nodes", names.len().to_string());
        directive("ntasks-per-node", most.to_string());
    }
    if let Some(timeout) = job.timeout {
        directive("time", (timeout.as_secs_f64() / 60.).ceil().to_string());
    }
    script += "set -eu\n\n# The tasks know each other by it; srun hands it on in their environment.\n";
    script += SECRET;
    script += "\n\n# The program finds its world in the environment that srun gives each task: SlurmClusterResolver";
    let jobs = [("chief", usize::from(layout.chief)), ("ps", layout.ps), ("worker", layout.workers)];
    let jobs: Vec<_> = jobs.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name}: {n}")).collect();
    script += &if layout.chief || layout.ps > 0 {
        format!(",\n# made with the jobs {}, which get the tasks in this order.\n", jobs.join(", "))
    } else {
        ".\n".into()
    };
    // When one task fails, the others are ended.
    let _ = writeln!(script, "srun --kill-on-bad-exit=1 --label {}", job.shell_command());
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, parse_hosts};
    use std::time::Duration;

    #[test]
    fn a_script_for_sbatch() {
        let command = ["target/release/train".to_string(), "--out=a b".into()];
        let layout = Layout::new(4).ps(2).hosts(parse_hosts("n1,n2").unwrap());
        let timeout = Some(Duration::from_secs(3601));
        let job = Job { layout: &layout, command: &command, timeout, max_restarts: 0, image: None };
        assert_eq!(
            script(&job).unwrap(),
            r#"#!/bin/bash
#SBATCH --job-name=train
#SBATCH --ntasks=6
#SBATCH --nodelist=n1,n2
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=3
#SBATCH --time=61
set -eu

# The tasks know each other by it; srun hands it on in their environment.
export DISTRIBUTE_SECRET="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"

# The program finds its world in the environment that srun gives each task: SlurmClusterResolver,
# made with the jobs ps: 2, worker: 4, which get the tasks in this order.
srun --kill-on-bad-exit=1 --label target/release/train '--out=a b'
"#
        );
        let workers = Layout::new(2);
        let text = script(&Job { layout: &workers, timeout: None, ..job }).unwrap();
        assert!(
            text.contains("--ntasks=2\nset -eu") && text.contains("SlurmClusterResolver.\nsrun "),
            "{text}"
        );
        let evaluator = Layout::new(1).evaluator(true);
        assert!(script(&Job { layout: &evaluator, ..job }).is_err());
        assert!(script(&Job { max_restarts: 1, ..job }).is_err());
    }
}
