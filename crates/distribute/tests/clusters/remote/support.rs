//! Workers, and calls as they receive them.

use crate::support::on_cluster;
use bytes::Bytes;
use distribute::cluster::Job;
use distribute::parameter_server::ParameterServerStrategyBuilder;
use distribute::remote::{RemoteFunction, RemoteProgram};
use distribute::{LocalCluster, ParameterServerStrategy};
use distribute_coordinator::{
    Argument, Call, CallContext, Cancellation, Executor, Failure, Program, ResourceId,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// Returns all workers of a coordinator's strategy.
pub fn workers_of(strategy: &ParameterServerStrategy) -> Vec<Worker> {
    let program = RemoteProgram::of_local_cluster(strategy).unwrap().unwrap();
    let start = |worker| Worker(program.start(worker, strategy.workers(), &Bytes::new()).unwrap());
    (0..strategy.workers()).map(start).collect()
}

/// Returns the only worker of a cluster, with one replica.
pub fn worker() -> Worker {
    workers_of(&on_cluster(1, 2)).remove(0)
}

/// Returns the only worker of a cluster, with the given settings.
pub fn worker_with(builder: ParameterServerStrategyBuilder) -> Worker {
    let cluster = LocalCluster::new(1, 2).unwrap();
    let builder = builder.cluster_resolver(cluster.resolver_of(Job::Worker.task(0)));
    Worker(RemoteProgram::of_task(builder).unwrap().start(0, 1, &Bytes::new()).unwrap())
}

pub struct Worker(pub Arc<dyn Executor>);

/// Returns the context of a call that may not create variables.
pub fn context() -> CallContext {
    CallContext::new(None, false, Cancellation::default())
}

/// Returns the context of a call that may create variables.
pub fn making() -> CallContext {
    CallContext::new(None, true, Cancellation::default())
}

pub fn value(value: impl Serialize) -> Argument {
    Argument::Value(Bytes::from(postcard::to_stdvec(&value).unwrap()))
}

pub fn resource(id: u64) -> Argument {
    Argument::Resource(ResourceId(id))
}

pub fn call_of<F: RemoteFunction>(_: F, arguments: impl Into<Vec<Argument>>) -> Call {
    Call { function: F::id(), arguments: arguments.into() }
}

impl Worker {
    pub fn try_call<F: RemoteFunction>(
        &self,
        function: F,
        arguments: impl Into<Vec<Argument>>,
    ) -> Result<F::Output, Failure>
    where
        F::Output: DeserializeOwned,
    {
        let bytes = self.0.call(&context(), &call_of(function, arguments))?;
        Ok(postcard::from_bytes(&bytes).unwrap())
    }

    pub fn call<F: RemoteFunction>(&self, function: F, arguments: impl Into<Vec<Argument>>) -> F::Output
    where
        F::Output: DeserializeOwned,
    {
        self.try_call(function, arguments).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Creates a resource, and the variables that it needs.
    pub fn make<F: RemoteFunction>(&self, id: u64, function: F, arguments: impl Into<Vec<Argument>>) {
        let made = self.0.create(&making(), ResourceId(id), &call_of(function, arguments), None);
        made.unwrap_or_else(|failure| panic!("{failure}"));
    }
}
