//! The command for Open MPI.

use super::{Job, SECRET};
use crate::{Error, Result};
use distribute_cluster::internal::first_port_in_shell;

/// Returns the shell line that exports the first port. Unless `DISTRIBUTE_PORT_BASE` is set, the line derives the port
/// from the process id of the shell.
fn ports() -> String {
    let first = first_port_in_shell("$$");
    format!("export DISTRIBUTE_PORT_BASE=${{DISTRIBUTE_PORT_BASE:-{first}}} # of the ranks of a host")
}

/// Returns an `mpirun` command, after the command that creates the secret. Returns an error if MPI does not support a
/// setting of the job.
pub(super) fn call(job: &Job<'_>) -> Result<String> {
    let layout = job.layout;
    let refuse = |problem| Err(Error::Unprintable { target: "mpi", problem });
    if layout.evaluator {
        return refuse(
            "an evaluator is not part of the cluster; start it separately, without --evaluator here",
        );
    }
    if layout.spares > 0 {
        return refuse("MPI ends all ranks when one fails; leave out --spares");
    }
    if job.max_restarts > 0 {
        return refuse("MPI does not restart ranks; leave out --max-restarts");
    }
    if job.cpus.or(job.gpus).is_some()
        || job.memory.or(job.volume.map(|(claim, _)| claim)).is_some()
        || job.health.is_some()
        || job.image.is_some()
    {
        return refuse(
            "MPI only starts ranks; leave out --image, --cpus, --gpus, --memory, --volume and --health-port",
        );
    }
    // A worker may have several threads, and Open MPI would give it one core.
    let mut options = format!("-np {} --bind-to none", job.in_cluster());
    let hosts: Vec<_> = layout.hosts.iter().zip(job.on_hosts()).filter(|(_, tasks)| *tasks > 0).collect();
    let mut told = String::new();
    if hosts.is_empty() {
        // Starts the requested number of processes on any number of cores.
        options += " --oversubscribe";
    } else {
        // MPI does not provide the hosts of the other ranks.
        let ranks: Vec<_> = hosts.iter().map(|(host, tasks)| format!("{}:{tasks}", host.host())).collect();
        told = format!("export DISTRIBUTE_HOSTS={}\n", ranks.join(","));
        // In this order. By slots, the host on which mpirun is started would be the first.
        let each =
            hosts.iter().flat_map(|(host, tasks)| std::iter::repeat_n(host.host().to_string(), *tasks));
        options +=
            &format!(" --host {} --map-by seq -x DISTRIBUTE_HOSTS", each.collect::<Vec<_>>().join(","));
    }
    if let Some(timeout) = job.timeout {
        options += &format!(" --timeout {}", timeout.as_secs_f64().ceil());
    }
    let tasks = job.export_tasks();
    if !tasks.is_empty() {
        options += " -x DISTRIBUTE_TASKS";
    }
    Ok(format!(
        "# The program finds its world in the environment that Open MPI gives each rank: resolver::from_env().\n\
         {SECRET}\n{}\n{tasks}{told}mpirun {options} -x DISTRIBUTE_SECRET -x DISTRIBUTE_PORT_BASE {}\n",
        ports(),
        job.shell_command()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, parse_hosts};
    use std::time::Duration;

    #[test]
    fn a_call_of_mpirun() {
        let layout = Layout::new(3).hosts(parse_hosts("me@a,b").unwrap());
        let command = ["./train".to_string(), "it's".into(), "".into()];
        let job = Job { timeout: Some(Duration::from_millis(1500)), ..Job::new(&layout, &command) };
        assert_eq!(
            call(&job).unwrap(),
            r#"# The program finds its world in the environment that Open MPI gives each rank: resolver::from_env().
export DISTRIBUTE_SECRET="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
export DISTRIBUTE_PORT_BASE=${DISTRIBUTE_PORT_BASE:-$((10000 + $$ % 350 * 64))} # of the ranks of a host
export DISTRIBUTE_HOSTS=a:2,b:1
mpirun -np 3 --bind-to none --host a,a,b --map-by seq -x DISTRIBUTE_HOSTS --timeout 2 -x DISTRIBUTE_SECRET -x DISTRIBUTE_PORT_BASE ./train 'it'\''s' ''
"#
        );
        let servers = Layout::new(2).ps(1).with_chief();
        let text = call(&Job { layout: &servers, timeout: None, ..job }).unwrap();
        assert!(text.contains(
            "\nexport DISTRIBUTE_TASKS=chief:1,ps:1,worker:2 # in the order of their ranks\nmpirun -np 4 "
        ));
        assert!(text.contains(" -x DISTRIBUTE_TASKS "), "{text}");
        let evaluator = Layout::new(1).with_evaluator();
        for refused in [
            Job { layout: &evaluator, ..job },
            Job { max_restarts: 1, ..job },
            Job { cpus: Some(1), ..job },
            Job { memory: Some("1Gi"), ..job },
        ] {
            assert!(call(&refused).unwrap_err().to_string().starts_with("--print mpi: "));
        }
    }
}
