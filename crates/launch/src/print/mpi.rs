//! The command for Open MPI.

use super::{Job, SECRET};
use crate::{Error, Result};

/// Returns an `mpirun` command, and the secret that it passes on.
pub(super) fn call(job: &Job<'_>) -> Result<String> {
    let layout = job.layout;
    if layout.chief || layout.ps > 0 || layout.evaluator {
        let problem = "ranks of MPI are workers, and nothing else; leave out --chief, --ps and --evaluator";
        return Err(Error::Unprintable { target: "mpi", problem });
    }
    if job.max_restarts > 0 {
        let problem = "MPI starts no rank again; leave out --max-restarts";
        return Err(Error::Unprintable { target: "mpi", problem });
    }
    // A worker may have several threads, and Open MPI would give it one core.
    let mut options = format!("-np {} --bind-to none", layout.workers);
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
    Ok(format!(
        "# The program finds its world in the environment that Open MPI gives each rank: MpiClusterResolver.\n\
         {SECRET}\n{told}mpirun {options} -x DISTRIBUTE_SECRET {}\n",
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
        let job = Job {
            layout: &layout,
            command: &command,
            timeout: Some(Duration::from_millis(1500)),
            max_restarts: 0,
            image: None,
        };
        assert_eq!(
            call(&job).unwrap(),
            r#"# The program finds its world in the environment that Open MPI gives each rank: MpiClusterResolver.
export DISTRIBUTE_SECRET="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
export DISTRIBUTE_HOSTS=a:2,b:1
mpirun -np 3 --bind-to none --host a,a,b --map-by seq -x DISTRIBUTE_HOSTS --timeout 2 -x DISTRIBUTE_SECRET ./train 'it'\''s' ''
"#
        );
        for layout in [Layout::new(1).ps(1), Layout::new(1).chief(true), Layout::new(1).evaluator(true)] {
            assert!(
                call(&Job { layout: &layout, ..job })
                    .unwrap_err()
                    .to_string()
                    .starts_with("--print mpi: ranks")
            );
        }
        assert!(call(&Job { max_restarts: 1, ..job }).is_err());
    }
}
