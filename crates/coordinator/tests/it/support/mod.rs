//! A program of a few functions, for workers in tests.

// Not every test uses the complete module, and clippy does not recognize it as test code.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use bytes::Bytes;
use distribute_cluster::Deadline;
use distribute_coordinator::{
    Argument, Call, CallContext, Error, Executor, Failure, FailureKind, FunctionId, Program, ResourceId,
    ResultHandle,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub const MINUTE: Duration = Duration::from_secs(60);

/// The state that the functions of all workers of a test share.
#[derive(Default)]
pub struct World {
    pub opened: Mutex<Vec<u64>>,
    pub changed: Condvar,
    /// The gates that functions are waiting for.
    pub started: Mutex<Vec<u64>>,
    /// The number of runs of each function.
    pub ran: Mutex<BTreeMap<String, u64>>,
    /// The worker that created each resource, its start position, and whether it could create variables.
    pub made: Mutex<Vec<(usize, Option<u64>, bool)>>,
}

impl World {
    pub fn open(&self, gate: u64) {
        self.opened.lock().unwrap().push(gate);
        self.changed.notify_all();
    }

    pub fn wait_started(&self, gate: u64) {
        self.until(|| self.started.lock().unwrap().contains(&gate));
    }

    pub fn until(&self, is_so: impl Fn() -> bool) {
        let mut deadline = Deadline::after(MINUTE);
        let mut opened = self.opened.lock().unwrap();
        while !is_so() {
            let slice = deadline.look();
            assert!(!slice.is_zero(), "it has not happened");
            opened = self.changed.wait_timeout(opened, slice.min(Duration::from_millis(1))).unwrap().0;
            deadline.look();
        }
    }

    pub fn ran(&self, name: &str) -> u64 {
        self.ran.lock().unwrap().get(name).copied().unwrap_or(0)
    }
}

/// The program with these functions.
pub struct Functions(pub Arc<World>);

pub const NAMES: [&str; 10] =
    ["value", "gate", "stuck", "fail", "panic", "server", "large", "draw", "stream", "broken"];

pub fn function(name: &str) -> FunctionId {
    FunctionId { name: name.to_owned(), source: 1 }
}

pub fn functions() -> Vec<FunctionId> {
    NAMES.iter().map(|name| function(name)).collect()
}

impl Program for Functions {
    fn functions(&self) -> Vec<FunctionId> {
        functions()
    }

    fn start(&self, worker: usize, _workers: usize, _settings: &Bytes) -> Result<Arc<dyn Executor>, Failure> {
        Ok(Arc::new(OfWorker { world: self.0.clone(), worker, streams: Mutex::default() }))
    }
}

/// A counter for each worker: the position of the last request, and the current position.
struct OfWorker {
    world: Arc<World>,
    worker: usize,
    streams: Mutex<BTreeMap<ResourceId, (u64, u64)>>,
}

fn number(call: &Call, at: usize) -> u64 {
    match &call.arguments[at] {
        Argument::Value(bytes) => u64::from_le_bytes(bytes[..].try_into().unwrap()),
        Argument::Resource(id) => id.0,
    }
}

impl Executor for OfWorker {
    fn call(&self, context: &CallContext, call: &Call) -> Result<Bytes, Failure> {
        let name = call.function.name.as_str();
        *self.world.ran.lock().unwrap().entry(name.to_owned()).or_default() += 1;
        let fail = |kind, text: &str| Err(Failure::new(kind, text));
        match name {
            "value" => Ok(Bytes::copy_from_slice(&number(call, 0).to_le_bytes())),
            "gate" | "stuck" => {
                let gate = number(call, 0);
                self.world.started.lock().unwrap().push(gate);
                let mut opened = self.world.opened.lock().unwrap();
                while !opened.contains(&gate) {
                    if name == "gate" {
                        context.cancellation().check()?;
                    }
                    opened = self.world.changed.wait_timeout(opened, Duration::from_millis(1)).unwrap().0;
                }
                Ok(Bytes::copy_from_slice(&gate.to_le_bytes()))
            }
            "fail" => fail(FailureKind::InvalidArgument, "this is wrong"),
            "panic" => panic!("no more"),
            "server" => fail(FailureKind::Server, "ps 0 does not answer"),
            "large" => Ok(vec![0; number(call, 0) as usize].into()),
            "draw" => {
                let mut streams = self.streams.lock().unwrap();
                let (_, at) = streams.get_mut(&ResourceId(number(call, 0))).unwrap();
                *at += 1;
                if number(call, 1) == *at {
                    // Fails only once: the next attempt succeeds.
                    let first = !self.world.opened.lock().unwrap().contains(at);
                    self.world.opened.lock().unwrap().push(*at);
                    if first {
                        return fail(FailureKind::Server, "ps 0 does not answer");
                    }
                }
                Ok(Bytes::copy_from_slice(&(*at - 1).to_le_bytes()))
            }
            other => fail(FailureKind::UnknownFunction, other),
        }
    }

    fn create(
        &self,
        context: &CallContext,
        resource: ResourceId,
        call: &Call,
        position: Option<&Bytes>,
    ) -> Result<(), Failure> {
        if call.function.name == "broken" {
            return Err(Failure::new(FailureKind::Function, "there is no such file"));
        }
        let at = position.map(|bytes| u64::from_le_bytes(bytes[..].try_into().unwrap()));
        self.world.made.lock().unwrap().push((self.worker, at, context.creates_variables));
        let at = at.unwrap_or(0);
        self.streams.lock().unwrap().insert(resource, (at, at));
        Ok(())
    }

    fn positions(&self) -> Vec<(ResourceId, Bytes)> {
        let mut streams = self.streams.lock().unwrap();
        let moved = streams.iter_mut().filter(|(_, (told, at))| told != at);
        moved
            .map(|(id, (told, at))| {
                *told = *at;
                (*id, Bytes::copy_from_slice(&at.to_le_bytes()))
            })
            .collect()
    }

    fn rewind(&self) {
        self.streams.lock().unwrap().values_mut().for_each(|(told, at)| *at = *told);
    }

    fn forget(&self, resource: ResourceId) {
        self.streams.lock().unwrap().remove(&resource);
    }
}

pub fn call(name: &str, values: &[u64]) -> Call {
    let value = |value: &u64| Argument::Value(Bytes::copy_from_slice(&value.to_le_bytes()));
    Call { function: function(name), arguments: values.iter().map(value).collect() }
}

pub fn of(name: &str, resource: ResourceId, values: &[u64]) -> Call {
    let mut call = call(name, values);
    call.arguments.insert(0, Argument::Resource(resource));
    call
}

pub fn fetched(remote: &ResultHandle) -> Result<u64, FailureKind> {
    match remote.fetch() {
        Ok(bytes) => Ok(u64::from_le_bytes(bytes[..].try_into().unwrap())),
        Err(Error::Failed(failure)) => Err(failure.kind),
        Err(other) => panic!("{other}"),
    }
}
