//! Checks of the values that a [`StrategyExtended`] returns, made once per strategy.

use super::{CommunicationOptions, StrategyExtended, VariablePlacement};
use distribute_base::{DeviceName, Error, Result};
use distribute_cluster::World;
use distribute_collective::group::Group;
use std::time::Duration;

/// Checks the values that the methods of `extended` return.
///
/// # Errors
/// - [`Error::InvalidArgument`]: two values contradict each other, or a value is not supported. The error names the
///   methods.
/// - The errors of [`CrossDeviceOps::check`](super::CrossDeviceOps::check).
pub(super) fn check(extended: &dyn StrategyExtended) -> Result<()> {
    let claims = Declared {
        devices: extended.worker_devices(),
        placement: extended.variable_placement(),
        world: extended.group().map(Group::world),
        servers: extended
            .parameter_servers()
            .map(|servers| servers.tables().map_or(Stored::All, |_| Stored::Tables)),
        timeout: extended.timeout(),
        options: extended.communication_options(),
    };
    let local = extended.local_steps().filter(|local| !local.is_lock_step()).and_then(|local| {
        local.contradiction(claims.world, extended.elastic().is_some(), claims.servers.is_some())
    });
    if let Some(reason) = claims.contradiction().or_else(|| Some(format!("has {}", local?))) {
        return Err(Error::invalid("Strategy::new", format!("{} {reason}", extended.kind())));
    }
    extended.cross_device_ops().map_or(Ok(()), |ops| ops.check(extended.worker_devices()))
}

/// Values that methods of a [`StrategyExtended`] return and that must not contradict each other.
#[derive(Clone, Debug)]
struct Declared<'a> {
    devices: &'a [DeviceName],
    placement: VariablePlacement,
    world: Option<World>,
    servers: Option<Stored>,
    timeout: Duration,
    options: CommunicationOptions,
}

/// The variables that parameter servers store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    All,
    Tables,
}

impl Declared<'_> {
    fn contradiction(&self) -> Option<String> {
        let Self { devices, placement, world, servers, timeout, options } = self;
        let twice = devices.iter().enumerate().find(|(i, device)| devices[..*i].contains(device));
        let other = world.filter(|world| world.replicas() != devices.len());
        let in_sync = world.map_or(devices.len(), |world| world.num_replicas_in_sync());
        Some(if devices.is_empty() {
            "has no replica: its worker_devices are empty".into()
        } else if let Some((_, device)) = twice {
            format!("names {device} twice in worker_devices; a device holds one replica")
        } else if let Some(world) = other {
            format!(
                "has {} worker_devices, and its group is {world}; each replica has a separate device",
                devices.len()
            )
        } else if *placement == VariablePlacement::Ordinary && in_sync > 1 {
            format!(
                "has {in_sync} replicas and variable_placement Ordinary, under which nothing keeps their writes in \
                 step; use Mirrored or Central"
            )
        } else if matches!(placement, VariablePlacement::Central(_))
            && world.is_some_and(|w| w.is_multi_worker())
        {
            "keeps variables on one device of each of several workers, which nothing keeps in step; use Mirrored".into()
        } else if (*servers == Some(Stored::All)) != (*placement == VariablePlacement::Servers) {
            "has parameter_servers without variable_placement Servers, or the reverse".into()
        } else if *servers == Some(Stored::All) && world.is_some_and(|w| w.is_multi_worker()) {
            "has parameter servers and a group of workers in lock step; its workers don't wait for each other"
                .into()
        } else if timeout.is_zero() {
            "has a timeout of zero, within which no other replica can arrive; use Duration::MAX for no timeout".into()
        } else if let Some(fault) = options.fault() {
            format!("has communication_options that cannot be met: {fault}")
        } else if let Some(other) = options.timeout.filter(|other| other != timeout) {
            format!(
                "has a timeout of {timeout:?}, but one of {other:?} in communication_options, which a view with \
                 options would use; set only one of them"
            )
        } else {
            return None;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::CommunicationImplementation::{Nccl, Ring};

    const TWO: &[DeviceName] = &[DeviceName::cpu(0), DeviceName::cpu(1)];

    fn two() -> Declared<'static> {
        Declared {
            devices: TWO,
            placement: VariablePlacement::Mirrored,
            world: None,
            servers: None,
            timeout: Duration::from_secs(1),
            options: CommunicationOptions::default(),
        }
    }

    fn of(workers: usize, replicas: usize) -> Option<World> {
        Some(World::new(workers, 0, replicas).unwrap())
    }

    #[test]
    fn matching_values_are_accepted() {
        let second_of_three = Declared { world: Some(World::new(3, 1, 2).unwrap()), ..two() };
        let one = Declared { devices: &TWO[1..], ..two() };
        let ordinary = Declared { placement: VariablePlacement::Ordinary, ..one.clone() };
        let second = CommunicationOptions { timeout: Some(Duration::from_secs(1)), ..Default::default() };
        let same = Declared { options: second, ..two() };
        for claims in [two(), second_of_three, one, ordinary, same] {
            assert_eq!(claims.contradiction(), None, "{claims:?}");
        }
    }

    #[test]
    fn contradictions_are_named() {
        const SAME: &[DeviceName] = &[DeviceName::cpu(1), DeviceName::cpu(1)];
        let options = CommunicationOptions::default();
        let implementation = |implementation| CommunicationOptions { implementation, ..options };
        let within =
            |seconds| CommunicationOptions { timeout: Some(Duration::from_secs(seconds)), ..options };
        let central = VariablePlacement::Central(DeviceName::cpu(0));
        let one = Declared { devices: &TWO[1..], ..two() };
        let servers = Declared { placement: VariablePlacement::Servers, ..two() };
        let cases: [(Declared, &[&str]); 14] = [
            (servers.clone(), &["parameter_servers", "variable_placement"]),
            (Declared { servers: Some(Stored::All), ..two() }, &["parameter_servers", "variable_placement"]),
            (
                Declared { servers: Some(Stored::All), world: of(2, 2), ..servers.clone() },
                &["a group of workers in lock step"],
            ),
            (Declared { devices: &[], ..two() }, &["no replica", "worker_devices are empty"]),
            (Declared { devices: SAME, ..two() }, &["CPU:1 twice", "worker_devices"]),
            (Declared { world: of(2, 3), ..two() }, &["2 worker_devices", "worker 0 of 2, 3 replicas each"]),
            (Declared { placement: VariablePlacement::Ordinary, ..two() }, &["Ordinary", "2 replicas"]),
            (
                Declared { placement: VariablePlacement::Ordinary, world: of(3, 1), ..one },
                &["Ordinary", "3 replicas"],
            ),
            (Declared { placement: central, world: of(2, 2), ..two() }, &["one device of each", "Mirrored"]),
            (Declared { timeout: Duration::ZERO, ..two() }, &["timeout of zero"]),
            // CO-3: as if a MirroredStrategy were asked for it.
            (Declared { options: implementation(Ring), ..two() }, &["communication_options", "RING", "AUTO"]),
            (Declared { options: implementation(Nccl), ..two() }, &["CommunicationImplementation NCCL"]),
            (Declared { options: within(0), ..two() }, &["communication_options", "timeout of zero"]),
            (Declared { options: within(7), ..two() }, &["timeout of 1s", "one of 7s"]),
        ];
        for (claims, texts) in cases {
            let found = claims.contradiction().unwrap();
            for text in texts {
                assert!(found.contains(text), "{text:?} is not in {found:?}");
            }
        }
    }
}
