//! Open MPI.

use super::{Job, SECRET};
use crate::{Error, Result};

/// A call of `mpirun`, and the secret that it passes on.
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
    let mut options = format!("-np {}", layout.workers);
    let slots = layout.hosts.iter().zip(job.on_hosts()).filter(|(_, tasks)| *tasks > 0);
    let slots: Vec<_> = slots.map(|(host, tasks)| format!("{}:{tasks}", host.host())).collect();
    let (mut told, slots) = (String::new(), slots.join(","));
    if !slots.is_empty() {
        // MPI tells no rank where the others are.
        told = format!("export DISTRIBUTE_HOSTS={slots}\n");
        options += &format!(" --host {slots} -x DISTRIBUTE_HOSTS");
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
mpirun -np 3 --host a:2,b:1 -x DISTRIBUTE_HOSTS --timeout 2 -x DISTRIBUTE_SECRET ./train 'it'\''s' ''
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
