//! The script for Slurm.

use super::{Job, SECRET};
use crate::{Error, Result};
use distribute_cluster::internal::first_port_in_shell;
use std::fmt::Write as _;

/// The lines that choose the ports of the tasks: those that belong to the number of the job, or else the next ones that
/// are free on all nodes. `FIRST` stands for the first port by the number of the job, and `TASKS` for the number of
/// tasks.
const PORTS: &str = r#"# Jobs on one node use different ports: from one by the number of the job on, or the next that are free on all nodes.
listening=" $(srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
  awk '$4 == "0A" { sub(".*:", "", $2); printf "%s ", $2 }')"
port=${DISTRIBUTE_PORT_BASE:-FIRST}
for ((at = port; at < port + TASKS; at++)); do
  if [[ $listening == *" $(printf %04X "$at") "* ]]; then port=$((at + 1)); fi
done
export DISTRIBUTE_PORT_BASE=$port
"#;

/// Returns a script for `sbatch`, or an error if Slurm does not support a setting of the job.
pub(super) fn script(job: &Job<'_>) -> Result<String> {
    let layout = job.layout;
    let refuse = |problem| Err(Error::Unprintable { target: "slurm", problem });
    if layout.evaluator {
        return refuse(
            "an evaluator is not part of the cluster; submit it as a separate job, without --evaluator here",
        );
    }
    if layout.spares > 0 {
        return refuse("srun ends all tasks when one fails; leave out --spares");
    }
    if job.memory.is_some() {
        return refuse(
            "Slurm reserves memory for a node or a core; leave out --memory, and give sbatch --mem",
        );
    }
    if job.image.is_some() || job.volume.is_some() || job.health.is_some() {
        return refuse(
            "Slurm starts no containers and probes no ports; leave out --image, --volume and --health-port",
        );
    }
    let mut script = String::from("#!/bin/bash\n");
    let mut directive = |name: &str, value: String| {
        // Writing into a string cannot fail.
        let _ = writeln!(script, "#SBATCH --{name}={value}");
    };
    directive("job-name", job.name());
    directive("ntasks", job.in_cluster().to_string());
    let on_hosts = job.on_hosts();
    if let Some(max) = on_hosts.iter().max() {
        let names: Vec<_> = layout.hosts.iter().map(|host| host.host().to_string()).collect();
        directive("nodelist", names.join(","));
        directive("nodes", names.len().to_string());
        directive("ntasks-per-node", max.to_string());
    }
    if let Some(timeout) = job.timeout {
        directive("time", (timeout.as_secs_f64() / 60.).ceil().to_string());
    }
    // Slurm may send it up to a minute earlier.
    directive("signal", format!("TERM@{}", job.grace.as_secs_f64().ceil()));
    for (name, count) in [("cpus-per-task", job.cpus), ("gpus-per-task", job.gpus)] {
        if let Some(count) = count {
            directive(name, count.to_string());
        }
    }
    if job.max_restarts > 0 {
        script += "#SBATCH --requeue\n#SBATCH --open-mode=append\n";
    }
    script +=
        "set -eu\n\n# The secret by which tasks authenticate; srun passes it on in their environment.\n";
    script += SECRET;
    script += "\n\n";
    let ports = PORTS.replace("FIRST", &first_port_in_shell("SLURM_JOB_ID"));
    script += &ports.replace("TASKS", &job.in_cluster().to_string());
    script += "\n# The program finds its world in the environment that srun gives each task: resolver::from_env().\n";
    script += &job.export_tasks();
    // When one task fails, the others are ended.
    let step = format!("srun --kill-on-bad-exit=1 --label {}", job.shell_command());
    let _ = match job.max_restarts {
        0 => writeln!(script, "{step}"),
        // The job is started again as a whole. Slurm counts how often.
        max => writeln!(
            script,
            "status=0\n{step} || status=$?\nif [ $status != 0 ] && [ \"${{SLURM_RESTART_COUNT:-0}}\" -lt {max} ]; then\n  \
             scontrol requeue \"$SLURM_JOB_ID\"\nfi\nexit $status"
        ),
    };
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
        let layout = Layout::new(4).with_chief().ps(2).hosts(parse_hosts("n1,n2").unwrap());
        let timeout = Some(Duration::from_secs(3601));
        let job = Job { timeout, max_restarts: 3, cpus: Some(2), ..Job::new(&layout, &command) };
        assert_eq!(
            script(&job).unwrap(),
            r#"#!/bin/bash
#SBATCH --job-name=train
#SBATCH --ntasks=7
#SBATCH --nodelist=n1,n2
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=61
#SBATCH --signal=TERM@30
#SBATCH --cpus-per-task=2
#SBATCH --requeue
#SBATCH --open-mode=append
set -eu

# The secret by which tasks authenticate; srun passes it on in their environment.
export DISTRIBUTE_SECRET="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"

# Jobs on one node use different ports: from one by the number of the job on, or the next that are free on all nodes.
listening=" $(srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
  awk '$4 == "0A" { sub(".*:", "", $2); printf "%s ", $2 }')"
port=${DISTRIBUTE_PORT_BASE:-$((10000 + SLURM_JOB_ID % 350 * 64))}
for ((at = port; at < port + 7; at++)); do
  if [[ $listening == *" $(printf %04X "$at") "* ]]; then port=$((at + 1)); fi
done
export DISTRIBUTE_PORT_BASE=$port

# The program finds its world in the environment that srun gives each task: resolver::from_env().
export DISTRIBUTE_TASKS=chief:1,ps:2,worker:4 # in the order of their ranks
status=0
srun --kill-on-bad-exit=1 --label target/release/train '--out=a b' || status=$?
if [ $status != 0 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 3 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
"#
        );
        let workers = Layout::new(2);
        let text = script(&Job::new(&workers, &command)).unwrap();
        assert!(
            text.contains("--ntasks=2\n#SBATCH --signal=TERM@30\nset -eu")
                && text.ends_with("resolver::from_env().\nsrun --kill-on-bad-exit=1 --label target/release/train '--out=a b'\n"),
            "{text}"
        );
        let evaluator = Layout::new(1).with_evaluator();
        for refused in [
            Job { layout: &evaluator, ..job },
            Job { memory: Some("1Gi"), ..job },
            Job { health: Some(6071), ..job },
        ] {
            assert!(script(&refused).is_err());
        }
    }
}
