//! Connections from a coordinator to the workers of its strategy.

use crate::remote::RemoteProgram;
use crate::strategy::ParameterServerStrategy;
use distribute_base::{Error, Result};
use distribute_cluster::{Job, Task};
use distribute_coordinator::{Connect, FunctionId, LocalWorker, Program, RemoteWorker, Worker};
use std::sync::Arc;

/// The connections to all workers, and the functions that each worker must have.
pub(super) struct ConnectedWorkers {
    pub workers: Vec<Box<dyn Connect>>,
    pub functions: Vec<FunctionId>,
}

pub(super) fn connect(strategy: &ParameterServerStrategy) -> Result<ConnectedWorkers> {
    let tasks = (0..strategy.workers()).map(|index| Job::Worker.task(index));
    if let Some(program) = RemoteProgram::of_local_cluster(strategy)? {
        let program = Arc::new(program);
        let functions = program.functions();
        let local = |task: Task| {
            Box::new(LocalWorker::new(task.to_string(), Worker::new(program.clone()))) as Box<dyn Connect>
        };
        return Ok(ConnectedWorkers { workers: tasks.map(local).collect(), functions });
    }
    let clients = strategy.clients().ok_or_else(|| {
        let reason = "the strategy was built with channels to its servers, so it does not know the addresses of \
                      workers; build it with a resolver instead";
        Error::invalid("ClusterCoordinator::new", reason)
    })?;
    let remote = |task| Box::new(RemoteWorker::new(clients.clone(), task)) as Box<dyn Connect>;
    Ok(ConnectedWorkers {
        workers: tasks.map(remote).collect(),
        functions: RemoteProgram::functions_of_program()?,
    })
}
