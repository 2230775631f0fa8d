//! The setup of NCCL for workers that are already linked.

use crate::cuda::Cuda;
use crate::library::Library;
use crate::offer::{self, Offer, UniqueId};
use crate::sums::Sums;
use crate::{Error, Settings, installed};
use bytes::Bytes;
use distribute_cluster::{Fingerprint, Operation, ReplicaStatus};
use distribute_collective::group::{Group, GroupCall};
use distribute_nccl_library::Nccl;
use distribute_net::polling::poll_until;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// Makes NCCL compute the sums of `group` in [`Order::Fast`](distribute_collective::group::Order::Fast), and returns
/// the group. The group's messages use the same links as before. All workers must call this at the same time.
///
/// Workers exchange their hosts, GPUs and releases of NCCL over their links. Worker 0 creates the id of a communicator,
/// by which NCCL links the workers. If one worker cannot use NCCL, no worker uses it.
///
/// # Errors
/// If one worker fails, all workers fail.
/// - [`Error::Nccl`]: NCCL is missing or too old on this worker.
/// - [`Error::Driver`], [`Error::NoGpu`]: CUDA's driver or the GPU is missing on this worker.
/// - [`Error::Call`]: a call to CUDA or NCCL has failed on this worker.
/// - [`Error::Worker`]: another worker cannot use NCCL.
/// - [`Error::SameGpu`]: two workers use the same GPU.
/// - [`Error::Release`]: workers have different releases of NCCL.
/// - [`Error::Deadline`]: NCCL has not linked all workers in time.
/// - [`Error::Failure`]: a worker has disconnected or timed out.
/// - [`Error::Record`]: the record of a worker is malformed.
#[track_caller]
pub fn over(group: Group, settings: Settings) -> Result<Group, Error> {
    let caller = Location::caller();
    over_by(group, settings, caller, |gpu| {
        let nccl = Nccl::get()?;
        installed::check_driver()?;
        Cuda::new(nccl, gpu)
    })
}

fn over_by<L: Library + 'static>(
    group: Group,
    settings: Settings,
    caller: &'static Location<'static>,
    open: impl FnOnce(usize) -> Result<L, Error>,
) -> Result<Group, Error> {
    let session = group.open("nccl", 0);
    let world = session.world();
    let call = Fingerprint::new(Operation::AllReduce, "NCCL is set up", caller);
    let statuses = world.local_replicas().map(|replica| ReplicaStatus::waiting(replica, call.clone()));
    let mut calling = GroupCall::new(&session, statuses.collect(), settings.timeout);

    let hosts = calling.all_gather_bytes(host())?;
    let gpu = settings.gpu.unwrap_or_else(|| offer::gpu_of(&hosts, world.worker()));
    let opened = open(gpu).and_then(|library| Ok((offered(&library, world.is_chief())?, library)));
    let mine = match &opened {
        Ok((offer, _)) => offer.clone(),
        Err(error) => Offer::Unable(error.to_string()),
    };
    let offers = calling.all_gather_bytes(mine.encode())?;
    let (_, mut library) = opened?;
    let id = offer::agree(&offers)?;

    let linked = link(&mut library, id, (world.worker(), world.workers()), settings.timeout / 2);
    let mine = linked.as_ref().map_or_else(ToString::to_string, |()| String::new());
    // A worker that has failed at once still makes this call, because the others wait for it.
    let all = calling.all_gather_bytes(Bytes::from(mine));
    if let Err(error) = linked {
        library.abort();
        return Err(error);
    }
    let failed = all?.iter().enumerate().find_map(|(worker, reason)| {
        let reason = String::from_utf8_lossy(reason).into_owned();
        (!reason.is_empty()).then_some(Error::Worker { worker, reason })
    });
    match failed {
        Some(error) => {
            library.abort();
            Err(error)
        }
        None => Ok(group.clone().with_native_sum(Arc::new(Sums::new(library, group)))),
    }
}

/// Returns the record of this worker. Only the chief's record contains the id of the communicator. Returns an error if
/// a call to CUDA or NCCL fails.
fn offered(library: &impl Library, is_chief: bool) -> Result<Offer, Error> {
    let id = if is_chief { library.unique_id()? } else { [0; 128] };
    Ok(Offer::Able { release: library.release(), gpu: library.gpu()?, id })
}

fn link(
    library: &mut impl Library,
    id: UniqueId,
    (worker, workers): (usize, usize),
    patience: Duration,
) -> Result<(), Error> {
    library.link(id, worker, workers)?;
    poll_until(patience, || match library.is_linked() {
        Ok(false) => None,
        Ok(true) => Some(Ok(())),
        Err(error) => Some(Err(Error::from(error))),
    })
    .unwrap_or(Err(Error::Deadline { workers, waited: patience }))
}

/// Returns the name of this host. Each container has its own name.
fn host() -> Bytes {
    std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default().into()
}

#[cfg(test)]
#[path = "setup_tests.rs"]
mod tests;
