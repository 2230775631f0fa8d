//! The devices that get the result of a reduction.

use crate::strategy::Strategy;
use crate::variables::Variable;
use distribute_base::{DeviceName, Error, Result};
use distribute_cluster::Job;
use distribute_cluster::resolver::ClusterResolver;
use distribute_values::{Mirrored, PerReplica};

/// The devices that get a copy of a reduction's result.
///
/// The name of a device, a variable (the devices of its copies) and a distributed value (the devices of the replicas)
/// convert to this type. If the destination is the value that is reduced, the reduction is an all-reduce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destinations(Target);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Replicas,
    /// The devices of the replicas of a value with the given number of components.
    Components(usize),
    Named(String),
    Devices(Vec<DeviceName>),
    /// The devices of a variable's copies.
    Variable(Variable),
}

impl Destinations {
    /// Selects the devices of this process's replicas.
    pub fn replicas() -> Self {
        Self(Target::Replicas)
    }

    /// Selects the given devices, in the order of the copies.
    pub fn devices(devices: impl IntoIterator<Item = DeviceName>) -> Self {
        Self(Target::Devices(devices.into_iter().collect()))
    }

    /// Returns the devices. Returns an error if a name cannot be parsed or belongs to another worker, if a variable is
    /// of another strategy, or if a value has another number of components than there are local replicas. Also returns
    /// an error if there are no devices, or if a named device is neither a worker or parameter device of the strategy
    /// nor the host's `cpu:0`.
    pub(crate) fn resolve(&self, operation: &'static str, strategy: &Strategy) -> Result<Vec<DeviceName>> {
        let own = strategy.devices();
        let devices = match &self.0 {
            Target::Replicas => return Ok(own),
            Target::Components(count) if *count == own.len() => return Ok(own),
            Target::Components(count) => {
                let reason = format!(
                    "the destinations have {count} components, but the strategy has {} local replicas",
                    own.len()
                );
                return Err(Error::invalid(operation, reason));
            }
            Target::Named(name) if name.is_empty() => return Err(empty(operation)),
            Target::Named(name) => vec![parse_device(operation, name, strategy)?],
            Target::Devices(devices) if devices.is_empty() => return Err(empty(operation)),
            Target::Devices(devices) => devices.clone(),
            Target::Variable(variable) if variable.strategy() == strategy => return Ok(variable.devices()),
            Target::Variable(variable) => {
                let (name, owner) = (variable.name(), variable.strategy());
                return Err(Error::invalid(
                    operation,
                    format!("variable {name} is of {owner}, not of {strategy}"),
                ));
            }
        };
        let parameters = strategy.extended().parameter_devices();
        let host = DeviceName::cpu(0);
        let is_allowed =
            |device: &DeviceName| *device == host || own.contains(device) || parameters.contains(device);
        match devices.iter().find(|device| !is_allowed(device)) {
            None => Ok(devices),
            Some(device) => {
                let own: Vec<String> = own.iter().map(ToString::to_string).collect();
                Err(Error::Device {
                    name: device.to_string(),
                    reason: format!(
                        "{operation} puts results on the strategy's devices, {}, and on the host's cpu:0",
                        own.join(", ")
                    ),
                })
            }
        }
    }
}

// PSV1-6
/// Parses the name of a device. In a cluster, the name may contain a task: this process, or a parameter server.
fn parse_device(operation: &'static str, name: &str, strategy: &Strategy) -> Result<DeviceName> {
    let own = strategy.cluster_resolver().and_then(ClusterResolver::task);
    let parts: Vec<&str> = name.trim_start_matches('/').split('/').collect();
    let part = |key: &str| parts.iter().find_map(|part| part.strip_prefix(key));
    let (Some(own), Some(job)) = (own, part("job:")) else { return name.parse() };
    if ![Job::Worker.as_str(), Job::Chief.as_str()].contains(&job) {
        return name.parse();
    }
    let device = parts.last().copied().unwrap_or_default();
    if (job, part("task:")) == (own.job.as_str(), Some(own.index.to_string().as_str())) {
        return device.parse();
    }
    let reason = format!(
        "cannot reduce to {name}, which belongs to another worker; this process is {own}: name one of its devices, or \
         a variable, which all workers can read"
    );
    Err(Error::invalid(operation, reason))
}

fn empty(operation: &'static str) -> Error {
    Error::invalid(
        operation,
        "the destinations are empty; give a device such as \"cpu:0\", a PerReplica or Mirrored value, or \
         Destinations::replicas()",
    )
}

impl From<&str> for Destinations {
    fn from(name: &str) -> Self {
        Self(Target::Named(name.into()))
    }
}

impl From<String> for Destinations {
    fn from(name: String) -> Self {
        Self(Target::Named(name))
    }
}

impl From<DeviceName> for Destinations {
    fn from(device: DeviceName) -> Self {
        Self::devices([device])
    }
}

impl From<&[DeviceName]> for Destinations {
    fn from(devices: &[DeviceName]) -> Self {
        Self::devices(devices.iter().copied())
    }
}

impl From<&Vec<DeviceName>> for Destinations {
    fn from(devices: &Vec<DeviceName>) -> Self {
        devices.as_slice().into()
    }
}

impl From<&Variable> for Destinations {
    fn from(variable: &Variable) -> Self {
        Self(Target::Variable(variable.clone()))
    }
}

impl<T> From<&PerReplica<T>> for Destinations {
    fn from(value: &PerReplica<T>) -> Self {
        Self(Target::Components(value.len()))
    }
}

impl<T> From<&Mirrored<T>> for Destinations {
    fn from(_: &Mirrored<T>) -> Self {
        Self(Target::Replicas)
    }
}
