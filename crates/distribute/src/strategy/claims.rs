//! What a strategy says of itself: checked in one place, where the strategy is made.

use super::{CommunicationOptions, CrossDeviceOps, DeviceName, StrategyExtended, VariablePlacement};
use crate::{Error, Result};
use distribute_data::Layout;
use std::time::Duration;

/// Refuses a strategy whose methods contradict each other, and names those that do.
pub(super) fn check(extended: &dyn StrategyExtended) -> Result<()> {
    let claims = Claims {
        devices: extended.worker_devices(),
        placement: extended.variable_placement(),
        local_replicas: extended.local_replicas(),
        in_sync: extended.num_replicas_in_sync(),
        first_id: extended.first_replica_id(),
        workers: extended.input_workers(),
        worker: extended.input_worker(),
        timeout: extended.timeout(),
        options: extended.communication_options(),
    };
    if let Some(reason) = claims.contradiction() {
        return Err(Error::invalid("Strategy::new", format!("{} {reason}", extended.kind())));
    }
    extended.cross_device_ops().map_or(Ok(()), CrossDeviceOps::check)
}

/// What the author's methods return.
#[derive(Clone, Debug)]
struct Claims<'a> {
    devices: &'a [DeviceName],
    placement: VariablePlacement,
    local_replicas: usize,
    in_sync: usize,
    first_id: usize,
    workers: usize,
    worker: usize,
    timeout: Duration,
    options: CommunicationOptions,
}

impl Claims<'_> {
    fn contradiction(&self) -> Option<String> {
        let Self { devices, placement, local_replicas, in_sync, first_id, workers, worker, timeout, options } =
            self;
        let layout = Layout { workers: *workers, replicas: *local_replicas };
        let first_of_worker = worker.saturating_mul(*local_replicas);
        let twice = devices.iter().enumerate().find(|(i, device)| devices[..*i].contains(device));
        Some(if devices.is_empty() {
            "has no replica: its worker_devices are empty".into()
        } else if let Some((_, device)) = twice {
            format!("names {device} twice in worker_devices; a device holds one replica")
        } else if *local_replicas != devices.len() {
            format!(
                "has {local_replicas} local_replicas on {} worker_devices; each replica has a device of its own",
                devices.len()
            )
        } else if worker >= workers {
            format!("is input_worker {worker} of {workers} input_workers; they are numbered from 0")
        } else if layout.total() != *in_sync {
            format!(
                "has {in_sync} num_replicas_in_sync, but input_workers and local_replicas are {layout}: every worker \
                 has the same number of replicas"
            )
        } else if *first_id != first_of_worker {
            format!(
                "begins with first_replica_id {first_id}, but input_worker {worker} with {local_replicas} \
                 local_replicas begins with {first_of_worker}: ids are given in the order of workers"
            )
        } else if *placement == VariablePlacement::Ordinary && *in_sync > 1 {
            format!(
                "has {in_sync} replicas and variable_placement Ordinary, under which nothing keeps their writes in \
                 step; use Mirrored or Central"
            )
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
            local_replicas: 2,
            in_sync: 2,
            first_id: 0,
            workers: 1,
            worker: 0,
            timeout: Duration::from_secs(1),
            options: CommunicationOptions::default(),
        }
    }

    #[test]
    fn what_agrees_is_taken() {
        let second_of_three = Claims { in_sync: 6, first_id: 2, workers: 3, worker: 1, ..two() };
        let one = Claims { devices: &TWO[1..], local_replicas: 1, in_sync: 1, ..two() };
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
        let cases: [(Claims, &[&str]); 14] = [
            (Claims { devices: &[], ..two() }, &["no replica", "worker_devices are empty"]),
            (Claims { devices: SAME, ..two() }, &["CPU:1 twice", "worker_devices"]),
            (Claims { local_replicas: 3, in_sync: 3, ..two() }, &["3 local_replicas on 2 worker_devices"]),
            (Claims { first_id: 9, ..two() }, &["first_replica_id 9", "begins with 0"]),
            (Claims { in_sync: 3, ..two() }, &["3 num_replicas_in_sync", "1 worker of 2 replicas"]),
            (Claims { worker: 1, ..two() }, &["input_worker 1 of 1 input_workers"]),
            (Claims { workers: 0, ..two() }, &["input_worker 0 of 0"]),
            (Claims { workers: usize::MAX, ..two() }, &["2 num_replicas_in_sync"]),
            (Claims { placement: VariablePlacement::Ordinary, ..two() }, &["Ordinary", "2 replicas"]),
            (Claims { timeout: Duration::ZERO, ..two() }, &["timeout of zero"]),
            // CO-3: as where a MirroredStrategy is asked for it.
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
