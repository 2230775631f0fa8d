//! Decides where a new variable of a program or model is stored, and which rules apply to it: a pure function.

use crate::access::VariableKind;
use distribute_base::{DeviceKind, DeviceName, VariableSynchronization};
use distribute_ps_tables::TablePolicy;

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

impl VariablePlacement {
    /// Returns the devices on which variables are stored. `replicas` contains the devices of the replicas, and
    /// `servers` returns the number of parameter servers.
    #[doc(hidden)]
    pub fn devices(self, replicas: &[DeviceName], servers: impl FnOnce() -> usize) -> Vec<DeviceName> {
        match self {
            Self::Central(device) => vec![device],
            Self::Mirrored | Self::Ordinary => replicas.to_vec(),
            Self::Servers => (0..servers()).map(DeviceName::of_server).collect(),
        }
    }
}

/// The storage location of a new variable, and the kind that determines the rules for its use.
#[derive(Debug, PartialEq, Eq)]
pub struct Placement {
    /// The location of the variable's copies.
    pub at: StorageLocation,
    /// The kind of the variable.
    pub kind: VariableKind,
}

/// The location of a variable's copies.
#[derive(Debug, PartialEq, Eq)]
pub enum StorageLocation {
    /// One copy on each of these devices, with one device per replica of this process, or a single device for all.
    Devices(Vec<DeviceName>),
    /// One value on parameter servers, which all replicas of all workers share. The value is partitioned over the
    /// servers or, if the variable is colocated with another one, stored completely on server `next_to`.
    Servers {
        /// The server of the variable with which this one is colocated, if any.
        next_to: Option<usize>,
    },
}

/// The purpose of a new variable.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// A variable that the program creates for any use.
    Program {
        /// The synchronization that the program requested.
        synchronization: VariableSynchronization,
        /// The devices of the variable with which the new variable is colocated, if any.
        colocated: Option<Vec<DeviceName>>,
    },
    /// A weight of a model. Only optimizers write it, for all replicas at once.
    Weights {
        /// The devices of the variable with which the model is colocated, if any.
        colocated: Option<Vec<DeviceName>>,
        /// The size in bytes, if the weight is a table whose rows are looked up; `usize::MAX` if the table has no fixed
        /// size, because any id can be a row.
        table: Option<usize>,
    },
    /// A running statistic of a model. Each replica writes its own copy.
    Statistics,
}

/// The settings of a strategy that determine where variables are stored.
pub struct Policy<'a> {
    /// The location of the variables of the strategy.
    pub placement: VariablePlacement,
    /// The rule for weights that are stored on servers although other variables are not; `None` if there are no such
    /// weights.
    pub tables: Option<TablePolicy>,
    /// The devices of this process's replicas.
    pub replicas: &'a [DeviceName],
    /// The first device on which the strategy stores variables. Weights, which the replicas share, are stored there if
    /// it is a CPU, and otherwise on `cpu:0`.
    pub parameters: DeviceName,
}

impl Policy<'_> {
    /// Returns the placement of a variable, or the reason why it cannot be created.
    pub fn place(&self, purpose: Purpose) -> Result<Placement, String> {
        let each = || self.replicas.to_vec();
        let on_servers = self.placement == VariablePlacement::Servers;
        let (synchronization, colocated) = match purpose {
            Purpose::Weights { colocated, table } => {
                let is_stored = self.tables.is_some_and(|tables| tables.stores(table));
                let on_servers = on_servers || is_stored && colocated.is_none();
                let at = self.place_weights(colocated, on_servers)?;
                return Ok(Placement { at, kind: VariableKind::OnWrite });
            }
            Purpose::Statistics => {
                return Ok(Placement { at: StorageLocation::Devices(each()), kind: VariableKind::OnRead });
            }
            Purpose::Program { synchronization, colocated } => (synchronization, colocated),
        };
        // COLO-4, PSV-1: with one replica there is nothing to aggregate.
        let next_to = match colocated.as_deref() {
            None if on_servers => Some(None),
            Some([DeviceName { server: Some(server), .. }]) if on_servers => Some(Some(*server)),
            _ => None,
        };
        if let Some(next_to) = next_to {
            let kind = match synchronization {
                _ if self.replicas.len() == 1 => VariableKind::Ordinary,
                VariableSynchronization::None => return Err(NEVER.into()),
                // PSV-3
                _ => VariableKind::OnWrite,
            };
            return Ok(Placement { at: StorageLocation::Servers { next_to }, kind });
        }
        let devices = match (colocated, self.placement) {
            (Some(devices), _) => devices,
            (None, VariablePlacement::Central(device)) => vec![device],
            (None, _) => each(),
        };
        let for_each = self.require_one_or_each(&devices)?;
        let kind = match (self.placement, synchronization) {
            (VariablePlacement::Ordinary, _) => VariableKind::Ordinary,
            (_, VariableSynchronization::None) => {
                return Err(NEVER.into());
            }
            (VariablePlacement::Mirrored, VariableSynchronization::OnRead) if for_each => {
                VariableKind::OnRead
            }
            (_, VariableSynchronization::OnRead) if for_each && devices.len() > 1 => VariableKind::OnRead,
            // PSV-3: a replica can only write the single copy.
            _ => VariableKind::OnWrite,
        };
        Ok(Placement { at: StorageLocation::Devices(devices), kind })
    }

    /// Returns the location of a model's weights. Weights that are not on parameter servers are stored in CPU memory,
    /// and replicas on devices with separate memory compute with copies.
    fn place_weights(
        &self,
        colocated: Option<Vec<DeviceName>>,
        on_servers: bool,
    ) -> Result<StorageLocation, String> {
        let on_host = |device: DeviceName| {
            if device.kind == DeviceKind::Cpu { device } else { DeviceName::cpu(0) }
        };
        // COLO-2, COLO-4
        match colocated.as_deref() {
            None if on_servers => Ok(StorageLocation::Servers { next_to: None }),
            None => Ok(StorageLocation::Devices(vec![on_host(self.parameters)])),
            Some([DeviceName { server: Some(server), .. }]) if on_servers => {
                Ok(StorageLocation::Servers { next_to: Some(*server) })
            }
            Some(devices) if on_servers => Err(format!(
                "the weights of a model are trained on a parameter server, not on {devices:?}; colocate the model \
                 with a variable on a server"
            )),
            Some(devices) => {
                self.require_one_or_each(devices)?;
                let mut on_hosts = Vec::new();
                for device in devices.iter().copied().map(on_host) {
                    if !on_hosts.contains(&device) {
                        on_hosts.push(device);
                    }
                }
                Ok(StorageLocation::Devices(on_hosts))
            }
        }
    }

    /// Returns `true` if `devices` contains one device per replica, and `false` if it contains a single device for all.
    /// Returns an error otherwise.
    fn require_one_or_each(&self, devices: &[DeviceName]) -> Result<bool, String> {
        let for_each = devices.len() == self.replicas.len()
            && self.replicas.iter().all(|device| devices.contains(device));
        if for_each || devices.len() == 1 {
            return Ok(for_each);
        }
        Err(format!("a copy for each replica or one for all, not on {devices:?}"))
    }
}

const NEVER: &str = "synchronization NONE is not supported; use ON_WRITE or ON_READ";

#[cfg(test)]
mod tests {
    use super::*;
    use VariableSynchronization::{Auto, None as Never, OnRead, OnWrite};
    use distribute_ps_tables::PartitionStrategy;

    fn cpus(count: usize) -> Vec<DeviceName> {
        (0..count).map(DeviceName::cpu).collect()
    }

    fn place(
        placement: VariablePlacement,
        replicas: usize,
        synchronization: VariableSynchronization,
        colocated: Option<Vec<DeviceName>>,
    ) -> Result<Placement, String> {
        let policy =
            Policy { placement, tables: None, replicas: &cpus(replicas), parameters: DeviceName::cpu(0) };
        policy.place(Purpose::Program { synchronization, colocated })
    }

    // VAR-1, PSV-3
    #[test]
    fn variables_of_users_are_on_the_strategys_devices_with_the_requested_synchronization() {
        let central = VariablePlacement::Central(DeviceName::cpu(7));
        let on =
            |devices: Vec<DeviceName>, kind| Ok(Placement { at: StorageLocation::Devices(devices), kind });
        for (placement, replicas, devices, of_write, of_read) in [
            (VariablePlacement::Ordinary, 1, cpus(1), VariableKind::Ordinary, VariableKind::Ordinary),
            (VariablePlacement::Mirrored, 1, cpus(1), VariableKind::OnWrite, VariableKind::OnRead),
            (VariablePlacement::Mirrored, 3, cpus(3), VariableKind::OnWrite, VariableKind::OnRead),
            (central, 3, vec![DeviceName::cpu(7)], VariableKind::OnWrite, VariableKind::OnWrite),
        ] {
            for synchronization in [Auto, OnWrite] {
                assert_eq!(place(placement, replicas, synchronization, None), on(devices.clone(), of_write));
            }
            assert_eq!(place(placement, replicas, OnRead, None), on(devices.clone(), of_read));
            let never = place(placement, replicas, Never, None);
            assert_eq!(never.is_ok(), placement == VariablePlacement::Ordinary, "{never:?}");
        }
    }

    #[test]
    fn a_colocated_variable_is_on_one_device_or_on_those_of_all_replicas() {
        let next_to = |devices: Vec<DeviceName>| {
            place(VariablePlacement::Mirrored, 3, OnWrite, Some(devices)).map(|placement| placement.at)
        };
        assert_eq!(next_to(cpus(3)), Ok(StorageLocation::Devices(cpus(3))));
        assert_eq!(next_to(vec![DeviceName::cpu(5)]), Ok(StorageLocation::Devices(vec![DeviceName::cpu(5)])));
        assert!(next_to(cpus(2)).unwrap_err().contains("a copy for each replica or one for all"));
        // Copies for each replica of a strategy with a central device can be ON_READ.
        let central = VariablePlacement::Central(DeviceName::cpu(0));
        let kind = |devices| place(central, 3, OnRead, Some(devices)).unwrap().kind;
        assert_eq!((kind(cpus(3)), kind(cpus(1))), (VariableKind::OnRead, VariableKind::OnWrite));
    }

    #[test]
    fn replicas_share_a_models_weights_and_have_running_statistics_of_their_own() {
        for placement in [VariablePlacement::Ordinary, VariablePlacement::Mirrored] {
            let policy =
                Policy { placement, tables: None, replicas: &cpus(3), parameters: DeviceName::cpu(9) };
            let weights = Placement {
                at: StorageLocation::Devices(vec![DeviceName::cpu(9)]),
                kind: VariableKind::OnWrite,
            };
            assert_eq!(policy.place(Purpose::Weights { colocated: None, table: None }), Ok(weights));
            let on_gpu = Policy { parameters: DeviceName::gpu(0), ..policy };
            let on_gpu = on_gpu.place(Purpose::Weights { colocated: None, table: None }).unwrap();
            assert_eq!(on_gpu.at, StorageLocation::Devices(vec![DeviceName::cpu(0)]));
            let policy =
                Policy { placement, tables: None, replicas: &cpus(3), parameters: DeviceName::cpu(9) };
            let statistics = Placement { at: StorageLocation::Devices(cpus(3)), kind: VariableKind::OnRead };
            assert_eq!(policy.place(Purpose::Statistics), Ok(statistics));
        }
    }

    // COLO-2, COLO-4
    #[test]
    fn a_colocated_models_weights_are_where_the_other_variable_is_and_whole() {
        let place = |placement, devices: &[DeviceName]| {
            let policy =
                Policy { placement, tables: None, replicas: &cpus(2), parameters: DeviceName::cpu(9) };
            policy
                .place(Purpose::Weights { colocated: Some(devices.to_vec()), table: None })
                .map(|placement| placement.at)
        };
        for placement in [VariablePlacement::Mirrored, VariablePlacement::Central(DeviceName::cpu(9))] {
            for devices in [cpus(2), vec![DeviceName::cpu(1)], vec![DeviceName::cpu(9)]] {
                assert_eq!(place(placement, &devices), Ok(StorageLocation::Devices(devices)));
            }
            assert!(place(placement, &cpus(3)).unwrap_err().contains("a copy for each replica or one"));
            // Weights stay in the memory of the CPU.
            assert_eq!(place(placement, &[DeviceName::gpu(1)]), Ok(StorageLocation::Devices(cpus(1))));
        }
        let gpus = [DeviceName::gpu(0), DeviceName::gpu(1)];
        let policy = Policy {
            placement: VariablePlacement::Mirrored,
            tables: None,
            replicas: &gpus,
            parameters: gpus[0],
        };
        let weights = policy.place(Purpose::Weights { colocated: Some(gpus.to_vec()), table: None });
        assert_eq!(weights.unwrap().at, StorageLocation::Devices(cpus(1)));
        let servers = VariablePlacement::Servers;
        assert_eq!(
            place(servers, &[DeviceName::of_server(3)]),
            Ok(StorageLocation::Servers { next_to: Some(3) })
        );
        let error = place(servers, &cpus(1)).unwrap_err();
        assert!(error.contains("colocate the model with a variable on a server"), "{error}");
    }

    #[test]
    fn large_tables_of_mirrored_models_are_on_servers_if_the_strategy_says_so() {
        let at_least =
            |min_bytes| TablePolicy { min_bytes, partition: PartitionStrategy::Mod, all_weights: false };
        let place = |tables, table, colocated| {
            let policy = Policy {
                placement: VariablePlacement::Mirrored,
                tables,
                replicas: &cpus(2),
                parameters: DeviceName::cpu(0),
            };
            policy.place(Purpose::Weights { colocated, table }).map(|placement| placement.at)
        };
        let here = || Ok(StorageLocation::Devices(cpus(1)));
        let there = || Ok(StorageLocation::Servers { next_to: None });
        let large = Some(at_least(100));
        assert_eq!(place(large, Some(100), None), there());
        for (tables, table) in [(large, Some(99)), (large, None), (None, Some(100))] {
            assert_eq!(place(tables, table, None), here(), "{tables:?} {table:?}");
        }
        assert_eq!(place(large, Some(100), Some(cpus(1))), here());
        let all = Some(TablePolicy { all_weights: true, ..at_least(100) });
        for table in [Some(100), Some(99), None] {
            assert_eq!(place(all, table, None), there());
            assert_eq!(place(all, table, Some(cpus(1))), here());
        }
    }

    // PSV-1, PSV-3, COLO-4
    #[test]
    fn on_servers_there_is_one_value_and_colocated_variables_are_not_sharded() {
        let place = |replicas, synchronization, colocated| {
            place(VariablePlacement::Servers, replicas, synchronization, colocated)
        };
        let on = |next_to, kind| Ok(Placement { at: StorageLocation::Servers { next_to }, kind });
        for synchronization in [Auto, OnWrite, OnRead] {
            assert_eq!(place(2, synchronization, None), on(None, VariableKind::OnWrite));
            assert_eq!(place(1, synchronization, None), on(None, VariableKind::Ordinary));
        }
        assert!(place(2, Never, None).unwrap_err().contains("NONE"));
        assert_eq!(place(2, Auto, Some(vec![DeviceName::of_server(3)])), on(Some(3), VariableKind::OnWrite));
        let here = place(2, Auto, Some(cpus(1))).unwrap();
        assert_eq!(here.at, StorageLocation::Devices(cpus(1)));
    }
}
