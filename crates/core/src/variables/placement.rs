//! The storages of a new variable, and the rules that apply to it: one pure decision, for programs' variables
//! and models'.

use super::access::VariableKind;
use crate::strategy::VariablePlacement;
use distribute_base::{DeviceKind, DeviceName, VariableSynchronization};

/// The storages of a new variable.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) at: At,
    pub(super) kind: VariableKind,
}

/// The location of the storages.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum At {
    /// One on each: for each replica of this process, or one that they share.
    Devices(Vec<DeviceName>),
    /// One on parameter servers, which all replicas of all workers share. It is partitioned over them or, next
    /// to another variable, on one server.
    Servers { beside: Option<usize> },
}

/// The purpose of a new variable.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    /// Any use by the program.
    Own {
        synchronization: VariableSynchronization,
        /// The devices of the variable that it is colocated with.
        colocated: Option<Vec<DeviceName>>,
    },
    /// The weights of a model. Only optimizers write them, for all replicas at once.
    Weights {
        /// The devices of the variable that the model is colocated with.
        colocated: Option<Vec<DeviceName>>,
    },
    /// The running statistics of a model. Each replica writes a separate copy.
    Statistics,
}

/// The settings of a strategy for the variables that are created with it.
pub(super) struct Policy<'a> {
    pub(super) placement: VariablePlacement,
    /// The device of each replica of this process.
    pub(super) replicas: &'a [DeviceName],
    /// The device of parameters that replicas share.
    pub(super) parameters: DeviceName,
}

impl Policy<'_> {
    /// Returns the location of a variable, or the reason why it cannot be created.
    pub(super) fn place(&self, purpose: Purpose) -> Result<Placement, String> {
        let each = || self.replicas.to_vec();
        let on_servers = self.placement == VariablePlacement::Servers;
        let (synchronization, colocated) = match purpose {
            Purpose::Weights { colocated } => {
                let at = self.place_weights(colocated, on_servers)?;
                return Ok(Placement { at, kind: VariableKind::OnWrite });
            }
            Purpose::Statistics => {
                return Ok(Placement { at: At::Devices(each()), kind: VariableKind::OnRead });
            }
            Purpose::Own { synchronization, colocated } => (synchronization, colocated),
        };
        // COLO-4, PSV-1: with one replica there is nothing to aggregate.
        let beside = match colocated.as_deref() {
            None if on_servers => Some(None),
            Some([DeviceName { server: Some(server), .. }]) if on_servers => Some(Some(*server)),
            _ => None,
        };
        if let Some(beside) = beside {
            let kind = match synchronization {
                _ if self.replicas.len() == 1 => VariableKind::Ordinary,
                VariableSynchronization::None => return Err(NEVER.into()),
                // PSV-3
                _ => VariableKind::OnWrite,
            };
            return Ok(Placement { at: At::Servers { beside }, kind });
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
        Ok(Placement { at: At::Devices(devices), kind })
    }

    /// Returns the location of a model's weights. Replicas on devices with separate memory compute with copies
    /// of the weights in CPU memory.
    fn place_weights(&self, colocated: Option<Vec<DeviceName>>, on_servers: bool) -> Result<At, String> {
        let on_host = |device: DeviceName| {
            if device.kind == DeviceKind::Cpu { device } else { DeviceName::cpu(0) }
        };
        // COLO-2, COLO-4
        match colocated.as_deref() {
            None if on_servers => Ok(At::Servers { beside: None }),
            None => Ok(At::Devices(vec![on_host(self.parameters)])),
            Some([DeviceName { server: Some(server), .. }]) if on_servers => {
                Ok(At::Servers { beside: Some(*server) })
            }
            Some(devices) if on_servers => Err(format!(
                "the weights of a model are trained on a parameter server, not on {devices:?}; colocate the model with a variable that is on one"
            )),
            Some(devices) => {
                self.require_one_or_each(devices)?;
                let mut on_hosts = Vec::new();
                for device in devices.iter().copied().map(on_host) {
                    if !on_hosts.contains(&device) {
                        on_hosts.push(device);
                    }
                }
                Ok(At::Devices(on_hosts))
            }
        }
    }

    /// Returns whether there is a device for each replica.
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

    fn cpus(count: usize) -> Vec<DeviceName> {
        (0..count).map(DeviceName::cpu).collect()
    }

    fn place(
        placement: VariablePlacement,
        replicas: usize,
        synchronization: VariableSynchronization,
        colocated: Option<Vec<DeviceName>>,
    ) -> Result<Placement, String> {
        let policy = Policy { placement, replicas: &cpus(replicas), parameters: DeviceName::cpu(0) };
        policy.place(Purpose::Own { synchronization, colocated })
    }

    // VAR-1, PSV-3
    #[test]
    fn users_variables_lie_where_the_strategy_says_and_go_by_what_was_asked_for() {
        let central = VariablePlacement::Central(DeviceName::cpu(7));
        let on = |devices: Vec<DeviceName>, kind| Ok(Placement { at: At::Devices(devices), kind });
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
    fn what_is_colocated_lies_beside_the_other_on_one_device_or_on_all() {
        let beside = |devices: Vec<DeviceName>| {
            place(VariablePlacement::Mirrored, 3, OnWrite, Some(devices)).map(|placement| placement.at)
        };
        assert_eq!(beside(cpus(3)), Ok(At::Devices(cpus(3))));
        assert_eq!(beside(vec![DeviceName::cpu(5)]), Ok(At::Devices(vec![DeviceName::cpu(5)])));
        assert!(beside(cpus(2)).unwrap_err().contains("a copy for each replica or one for all"));
        // Copies for each replica of a strategy with a central device can be ON_READ.
        let central = VariablePlacement::Central(DeviceName::cpu(0));
        let kind = |devices| place(central, 3, OnRead, Some(devices)).unwrap().kind;
        assert_eq!((kind(cpus(3)), kind(cpus(1))), (VariableKind::OnRead, VariableKind::OnWrite));
    }

    #[test]
    fn replicas_share_a_models_weights_and_have_running_statistics_of_their_own() {
        for placement in [VariablePlacement::Ordinary, VariablePlacement::Mirrored] {
            let policy = Policy { placement, replicas: &cpus(3), parameters: DeviceName::cpu(9) };
            let weights =
                Placement { at: At::Devices(vec![DeviceName::cpu(9)]), kind: VariableKind::OnWrite };
            assert_eq!(policy.place(Purpose::Weights { colocated: None }), Ok(weights));
            let on_gpu = Policy { parameters: DeviceName::gpu(0), ..policy };
            let on_gpu = on_gpu.place(Purpose::Weights { colocated: None }).unwrap();
            assert_eq!(on_gpu.at, At::Devices(vec![DeviceName::cpu(0)]));
            let policy = Policy { placement, replicas: &cpus(3), parameters: DeviceName::cpu(9) };
            let statistics = Placement { at: At::Devices(cpus(3)), kind: VariableKind::OnRead };
            assert_eq!(policy.place(Purpose::Statistics), Ok(statistics));
        }
    }

    // COLO-2, COLO-4
    #[test]
    fn a_colocated_models_weights_are_where_the_other_variable_is_and_whole() {
        let place = |placement, devices: &[DeviceName]| {
            let policy = Policy { placement, replicas: &cpus(2), parameters: DeviceName::cpu(9) };
            policy.place(Purpose::Weights { colocated: Some(devices.to_vec()) }).map(|placement| placement.at)
        };
        for placement in [VariablePlacement::Mirrored, VariablePlacement::Central(DeviceName::cpu(9))] {
            for devices in [cpus(2), vec![DeviceName::cpu(1)], vec![DeviceName::cpu(9)]] {
                assert_eq!(place(placement, &devices), Ok(At::Devices(devices)));
            }
            assert!(place(placement, &cpus(3)).unwrap_err().contains("a copy for each replica or one"));
            // Weights stay in the memory of the CPU.
            assert_eq!(place(placement, &[DeviceName::gpu(1)]), Ok(At::Devices(cpus(1))));
        }
        let gpus = [DeviceName::gpu(0), DeviceName::gpu(1)];
        let policy = Policy { placement: VariablePlacement::Mirrored, replicas: &gpus, parameters: gpus[0] };
        let weights = policy.place(Purpose::Weights { colocated: Some(gpus.to_vec()) });
        assert_eq!(weights.unwrap().at, At::Devices(cpus(1)));
        let servers = VariablePlacement::Servers;
        assert_eq!(place(servers, &[DeviceName::of_server(3)]), Ok(At::Servers { beside: Some(3) }));
        let error = place(servers, &cpus(1)).unwrap_err();
        assert!(error.contains("colocate the model with a variable that is on one"), "{error}");
    }

    // PSV-1, PSV-3, COLO-4
    #[test]
    fn on_servers_there_is_one_value_and_what_is_colocated_stays_whole() {
        let place = |replicas, synchronization, colocated| {
            place(VariablePlacement::Servers, replicas, synchronization, colocated)
        };
        let on = |beside, kind| Ok(Placement { at: At::Servers { beside }, kind });
        for synchronization in [Auto, OnWrite, OnRead] {
            assert_eq!(place(2, synchronization, None), on(None, VariableKind::OnWrite));
            assert_eq!(place(1, synchronization, None), on(None, VariableKind::Ordinary));
        }
        assert!(place(2, Never, None).unwrap_err().contains("NONE"));
        assert_eq!(place(2, Auto, Some(vec![DeviceName::of_server(3)])), on(Some(3), VariableKind::OnWrite));
        let here = place(2, Auto, Some(cpus(1))).unwrap();
        assert_eq!(here.at, At::Devices(cpus(1)));
    }
}
