//! Workers that are linked set up NCCL beside their links.

use crate::cuda::Cuda;
use crate::library::Library;
use crate::offer::{self, Offer, UniqueId};
use crate::sums::Sums;
use crate::{Error, Settings, installed};
use bytes::Bytes;
use distribute_cluster::{Fingerprint, Operation, Standing};
use distribute_collective::group::{Group, GroupCall};
use distribute_nccl_library::Nccl;
use distribute_net::polling::until;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// The workers of `group`, whose sums in [`Order::Fast`](distribute_collective::group::Order::Fast) NCCL makes. Their messages go as
/// before. Called by all workers of it at the same time.
///
/// Workers tell each other their hosts, GPUs and releases of NCCL over the links that they have; worker 0 gives the
/// communicator its name, by which NCCL links them. Where one of them cannot, none does.
///
/// # Errors
/// [`Error`], on all workers: of this one's libraries and GPU, [`Error::Worker`] for those of another, and [`Error::Failure`] where one
/// does not come.
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
    let standings =
        world.local_replicas().map(|replica| Standing::waiting(world.global(replica), call.clone()));
    let mut calling = GroupCall::new(&session, standings.collect(), settings.timeout);

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
    // One that has failed at once waits for those that have waited for it.
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

/// What this worker has; the chief's has the name of the communicator.
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
    until(patience, || match library.is_linked() {
        Ok(false) => None,
        Ok(true) => Some(Ok(())),
        Err(error) => Some(Err(Error::from(error))),
    })
    .unwrap_or(Err(Error::Deadline { workers, waited: patience }))
}

/// What tells this host from others: containers have names of their own.
fn host() -> Bytes {
    std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default().into()
}

#[cfg(test)]
#[path = "setup_tests.rs"]
mod tests;
