//! Which storages a new variable gets, and which rules it goes by: one pure decision, for users' variables and models'.

use super::access::VariableKind;
use super::kinds::VariableSynchronization;
use crate::strategy::{DeviceName, VariablePlacement};

/// The storages of a new variable.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placement {
    /// One storage on each: for each replica of this process, or one that they share.
    pub(super) devices: Vec<DeviceName>,
    pub(super) kind: VariableKind,
}

/// What a new variable is for.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    /// Whatever the user does with it.
    Own {
        synchronization: VariableSynchronization,
        /// The devices of the variable that it is to lie beside.
        colocated: Option<Vec<DeviceName>>,
    },
    /// The weights of a model: only optimizers write them, for all replicas at once.
    Weights,
    /// The running statistics of a model: each replica writes its own.
    Statistics,
}

/// What a strategy says about the variables that are created with it.
pub(super) struct Policy<'a> {
    pub(super) placement: VariablePlacement,
    /// The device of each replica of this process.
    pub(super) replicas: &'a [DeviceName],
    /// Where parameters go that replicas share.
    pub(super) parameters: DeviceName,
}

impl Policy<'_> {
    /// Where a variable goes, or why it cannot be.
    pub(super) fn place(&self, purpose: Purpose) -> Result<Placement, String> {
        let each = || self.replicas.to_vec();
        let (synchronization, colocated) = match purpose {
            Purpose::Weights => {
                return Ok(Placement { devices: vec![self.parameters], kind: VariableKind::OnWrite });
            }
            Purpose::Statistics => return Ok(Placement { devices: each(), kind: VariableKind::OnRead }),
            Purpose::Own { synchronization, colocated } => (synchronization, colocated),
        };
        let devices = match (colocated, self.placement) {
            (Some(devices), _) => devices,
            (None, VariablePlacement::Central(device)) => vec![device],
            (None, _) => each(),
        };
        let for_each = devices.len() == self.replicas.len()
            && self.replicas.iter().all(|device| devices.contains(device));
        if !for_each && devices.len() != 1 {
            return Err(format!("a copy for each replica or one for all, not on {devices:?}"));
        }
        let kind = match (self.placement, synchronization) {
            (VariablePlacement::Ordinary, _) => VariableKind::Ordinary,
            (_, VariableSynchronization::None) => {
                return Err("synchronization NONE is not supported; use ON_WRITE or ON_READ".into());
            }
            (VariablePlacement::Mirrored, VariableSynchronization::OnRead) if for_each => {
                VariableKind::OnRead
            }
            (_, VariableSynchronization::OnRead) if for_each && devices.len() > 1 => VariableKind::OnRead,
            // PSV-3: there is one copy, which is all that a replica could write.
            _ => VariableKind::OnWrite,
        };
        Ok(Placement { devices, kind })
    }
}

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
        let on = |devices: Vec<DeviceName>, kind| Ok(Placement { devices, kind });
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
            place(VariablePlacement::Mirrored, 3, OnWrite, Some(devices)).map(|placement| placement.devices)
        };
        assert_eq!(beside(cpus(3)), Ok(cpus(3)));
        assert_eq!(beside(vec![DeviceName::cpu(5)]), Ok(vec![DeviceName::cpu(5)]));
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
            let weights = Placement { devices: vec![DeviceName::cpu(9)], kind: VariableKind::OnWrite };
            assert_eq!(policy.place(Purpose::Weights), Ok(weights));
            let statistics = Placement { devices: cpus(3), kind: VariableKind::OnRead };
            assert_eq!(policy.place(Purpose::Statistics), Ok(statistics));
        }
    }
}
