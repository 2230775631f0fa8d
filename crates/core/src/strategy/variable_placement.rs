//! [`VariablePlacement`]: the location of a strategy's variables.

use distribute_base::DeviceName;

/// The location of a strategy's variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VariablePlacement {
    /// One copy on each worker device.
    Mirrored,
    /// A single copy on one device, which all replicas share.
    Central(DeviceName),
    /// A single ordinary copy, for strategies with only one replica.
    Ordinary,
    /// One value, stored in shards on parameter servers, which all replicas of all workers share.
    Servers,
}
