//! The checks of the return values of a [`StrategyExtended`], made once for each strategy.

use super::{CommunicationOptions, StrategyExtended, VariablePlacement};
use distribute_base::{DeviceName, Error, Result};
use distribute_cluster::World;
use distribute_collective::group::Group;
use std::time::Duration;

/// Returns an error that names the methods that contradict each other, if any do.
pub(super) fn check(extended: &dyn StrategyExtended) -> Result<()> {
    let claims = Claims {
        devices: extended.worker_devices(),
        placement: extended.variable_placement(),
        world: extended.group().map(Group::world),
        has_servers: extended.parameter_servers().is_some(),
        timeout: extended.timeout(),
        options: extended.communication_options(),
    };
    if let Some(reason) = claims.contradiction() {
        return Err(Error::invalid("Strategy::new", format!("{} {reason}", extended.kind())));
    }
    extended.cross_device_ops().map_or(Ok(()), |ops| ops.check(extended.worker_devices()))
}

/// The return values of the author's methods.
#[derive(Clone, Debug)]
struct Claims<'a> {
    devices: &'a [DeviceName],
    placement: VariablePlacement,
    world: Option<World>,
    has_servers: bool,
    timeout: Duration,
    options: CommunicationOptions,
}

impl Claims<'_> {
    fn contradiction(&self) -> Option<String> {
        let Self { devices, placement, world, has_servers, timeout, options } = self;
        let twice = devices.iter().enumerate().find(|(i, device)| devices[..*i].contains(device));
        let other = world.filter(|world| world.replicas() != devices.len());
        let in_sync = world.map_or(devices.len(), |world| world.num_replicas_in_sync());
        Some(if devices.is_empty() {
            "has no replica: its worker_devices are empty".into()
        } else if let Some((_, device)) = twice {
            format!("names {device} twice in worker_devices; a device holds one replica")
        } else if let Some(world) = other {
            format!(
                "has {} worker_devices, and its group is {world}; each replica has a device of its own",
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
        } else if *has_servers != (*placement == VariablePlacement::Servers) {
            "has parameter_servers and another variable_placement than Servers, or the other way round".into()
        } else if *has_servers && world.is_some_and(|w| w.is_multi_worker()) {
            "has parameter servers and a group of workers in lock step; its workers don't wait for each other"
                .into()
        } else if timeout.is_zero() {
            "has a timeout of zero, before which no other replica can come; use Duration::MAX for none".into()
        } else if let Some(fault) = options.fault() {
            format!("has communication_options that nothing can keep: {fault}")
        } else if let Some(other) = options.timeout.filter(|other| other != timeout) {
            format!(
                "has a timeout of {timeout:?}, but one of {other:?} in communication_options, by which a view with options \
                 would wait; give it in one of them"
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

    fn two() -> Claims<'static> {
        Claims {
            devices: TWO,
            placement: VariablePlacement::Mirrored,
            world: None,
            has_servers: false,
            timeout: Duration::from_secs(1),
            options: CommunicationOptions::default(),
        }
    }

    fn of(workers: usize, replicas: usize) -> Option<World> {
        Some(World::new(workers, 0, replicas).unwrap())
    }

    #[test]
    fn what_agrees_is_taken() {
        let second_of_three = Claims { world: Some(World::new(3, 1, 2).unwrap()), ..two() };
        let one = Claims { devices: &TWO[1..], ..two() };
        let ordinary = Claims { placement: VariablePlacement::Ordinary, ..one.clone() };
        let second = CommunicationOptions { timeout: Some(Duration::from_secs(1)), ..Default::default() };
        let same = Claims { options: second, ..two() };
        for claims in [two(), second_of_three, one, ordinary, same] {
            assert_eq!(claims.contradiction(), None, "{claims:?}");
        }
    }

    #[test]
    fn what_contradicts_what_is_named() {
        const SAME: &[DeviceName] = &[DeviceName::cpu(1), DeviceName::cpu(1)];
        let options = CommunicationOptions::default();
        let implementation = |implementation| CommunicationOptions { implementation, ..options };
        let within =
            |seconds| CommunicationOptions { timeout: Some(Duration::from_secs(seconds)), ..options };
        let central = VariablePlacement::Central(DeviceName::cpu(0));
        let one = Claims { devices: &TWO[1..], ..two() };
        let servers = Claims { placement: VariablePlacement::Servers, ..two() };
        let cases: [(Claims, &[&str]); 14] = [
            (servers.clone(), &["parameter_servers", "variable_placement"]),
            (Claims { has_servers: true, ..two() }, &["parameter_servers", "variable_placement"]),
            (
                Claims { has_servers: true, world: of(2, 2), ..servers.clone() },
                &["a group of workers in lock step"],
            ),
            (Claims { devices: &[], ..two() }, &["no replica", "worker_devices are empty"]),
            (Claims { devices: SAME, ..two() }, &["CPU:1 twice", "worker_devices"]),
            (Claims { world: of(2, 3), ..two() }, &["2 worker_devices", "worker 0 of 2, 3 replicas each"]),
            (Claims { placement: VariablePlacement::Ordinary, ..two() }, &["Ordinary", "2 replicas"]),
            (
                Claims { placement: VariablePlacement::Ordinary, world: of(3, 1), ..one },
                &["Ordinary", "3 replicas"],
            ),
            (Claims { placement: central, world: of(2, 2), ..two() }, &["one device of each", "Mirrored"]),
            (Claims { timeout: Duration::ZERO, ..two() }, &["timeout of zero"]),
            // CO-3: as if a MirroredStrategy were asked for it.
            (Claims { options: implementation(Ring), ..two() }, &["communication_options", "RING", "AUTO"]),
            (Claims { options: implementation(Nccl), ..two() }, &["CommunicationImplementation NCCL"]),
            (Claims { options: within(0), ..two() }, &["communication_options", "timeout of zero"]),
            (Claims { options: within(7), ..two() }, &["timeout of 1s", "one of 7s"]),
        ];
        for (claims, texts) in cases {
            let found = claims.contradiction().unwrap();
            for text in texts {
                assert!(found.contains(text), "{text:?} is not in {found:?}");
            }
        }
    }
}
