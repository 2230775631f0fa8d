//! The devices that a reduction puts its result on.

use crate::strategy::Strategy;
use crate::values::{Mirrored, PerReplica};
use crate::variables::Variable;
use distribute_base::{DeviceName, Error, Result};
use distribute_cluster::Job;
use distribute_cluster::resolver::ClusterResolver;

/// The devices that get a copy of a reduction's result.
///
/// It can be converted from the name of a device. A variable converts to the devices of its copies, and a
/// distributed value to the devices of the replicas. If the destination is the reduced value itself, the
/// reduction is an all-reduce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destinations(Place);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Replicas,
    /// The replicas of a value with one component for each.
    Components(usize),
    Named(String),
    Devices(Vec<DeviceName>),
    /// The devices of a variable's copies.
    Variable(Variable),
}

impl Destinations {
    /// Returns the devices of this process's replicas.
    pub fn replicas() -> Self {
        Self(Place::Replicas)
    }

    /// Returns a list of devices, in the order of the copies.
    pub fn devices(devices: impl IntoIterator<Item = DeviceName>) -> Self {
        Self(Place::Devices(devices.into_iter().collect()))
    }

    /// Returns the devices, each of which must be the strategy's or the host's.
    pub(crate) fn resolve(&self, operation: &'static str, strategy: &Strategy) -> Result<Vec<DeviceName>> {
        let own = strategy.devices();
        let devices = match &self.0 {
            Place::Replicas => return Ok(own),
            Place::Components(count) if *count == own.len() => return Ok(own),
            Place::Components(count) => {
                let reason = format!(
                    "the destinations have {count} components, but the strategy has {} local replicas",
                    own.len()
                );
                return Err(Error::invalid(operation, reason));
            }
            Place::Named(name) if name.is_empty() => return Err(empty(operation)),
            Place::Named(name) => vec![named(operation, name, strategy)?],
            Place::Devices(devices) if devices.is_empty() => return Err(empty(operation)),
            Place::Devices(devices) => devices.clone(),
            Place::Variable(variable) if variable.strategy() == strategy => return Ok(variable.devices()),
            Place::Variable(variable) => {
                let (name, owner) = (variable.name(), variable.strategy());
                return Err(Error::invalid(
                    operation,
                    format!("variable {name} is of {owner}, not of {strategy}"),
                ));
            }
        };
        let parameters = strategy.extended().parameter_devices();
        let host = DeviceName::cpu(0);
        let known =
            |device: &DeviceName| *device == host || own.contains(device) || parameters.contains(device);
        match devices.iter().find(|device| !known(device)) {
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
/// Returns the device of this name. In a cluster, the name may contain a task, which must be this one.
fn named(operation: &'static str, name: &str, strategy: &Strategy) -> Result<DeviceName> {
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
        "cannot reduce to another worker, as {name} is of: this process is {own}; name one of its own devices, or a variable, which is where \
         all workers can read it"
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
        Self(Place::Named(name.into()))
    }
}

impl From<String> for Destinations {
    fn from(name: String) -> Self {
        Self(Place::Named(name))
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
        Self(Place::Variable(variable.clone()))
    }
}

impl<T> From<&PerReplica<T>> for Destinations {
    fn from(value: &PerReplica<T>) -> Self {
        Self(Place::Components(value.len()))
    }
}

impl<T> From<&Mirrored<T>> for Destinations {
    fn from(_: &Mirrored<T>) -> Self {
        Self(Place::Replicas)
    }
}
