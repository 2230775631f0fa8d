//! Sums of all replicas' tensors in one group of NCCL calls, made with the communicators of the replicas' GPUs.

use super::fault::{Fault, timed_out};
use candle_core::{Result as CandleResult, Tensor};
use distribute_cluster::Deadline;
use distribute_nccl_library::CallError;
use distribute_net::polling::{poll_until, wait_or_leave};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

/// The maximum time to wait for communicators to be aborted.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The functions of NCCL, which tests can replace. No function waits for a GPU except [`abort`](Self::abort).
/// Operations that take time are polled.
pub(super) trait Library: Sync {
    /// A set of communicators, one for each GPU.
    type Communicators: Send + 'static;

    /// Creates communicators, which are not linked yet, for the GPUs with the given indices.
    fn open(&self, gpus: &[usize]) -> Result<Self::Communicators, CallError>;

    /// Begins linking the communicators.
    fn link(&self, communicators: &Self::Communicators) -> Result<(), CallError>;

    /// Returns the GPUs that have not completed the last operation, which `call` started.
    ///
    /// # Errors
    /// Returns the failure of that operation.
    fn busy(&self, communicators: &Self::Communicators, call: &'static str) -> Result<Vec<usize>, CallError>;

    /// Allocates uninitialized memory for a sum that has the shape and dtype of `part`, on the same GPU.
    fn room(&self, part: &Tensor) -> CandleResult<Tensor>;

    /// Begins a group of calls on this thread. No call of the group starts before [`end`](Self::end). Otherwise a call
    /// that waits for another GPU would prevent this thread from making the call for that GPU.
    fn start(&self) -> Result<(), CallError>;

    /// Adds the calls for one sum. `parts` and `sums` each contain one tensor per replica. All tensors are contiguous,
    /// not empty, and of the same shape and dtype.
    fn add(
        &self,
        communicators: &Self::Communicators,
        parts: &[&Tensor],
        sums: &[&Tensor],
    ) -> Result<(), CallError>;

    /// Ends the group, and begins enqueuing its calls on the GPUs.
    fn end(&self) -> Result<(), CallError>;

    /// Records, for other queues, that the last operation of this queue reads `part` and writes `sum`.
    fn queued(&self, part: &Tensor, sum: &Tensor) -> CandleResult<()>;

    /// Aborts communicators and their operations. This may block forever.
    fn abort(&self, communicators: Self::Communicators);
}

/// The communicators of this process, keyed by the indices of their GPUs in the order of replicas. Linking GPUs takes
/// seconds, so communicators are kept until the program exits.
#[derive(Debug)]
pub(super) struct CommunicatorSets<C>(Mutex<BTreeMap<Vec<usize>, CommunicatorSet<C>>>);

#[derive(Debug)]
enum CommunicatorSet<C> {
    Linked(C),
    /// The communicators were aborted after this error. The GPUs may have completed different numbers of calls, or may
    /// hang.
    Abandoned(CallError),
}

impl<C> CommunicatorSets<C> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

/// Sums `parts[replica][number]` over the replicas. Each replica gets its own copy of the sums.
///
/// Waits for at most `patience` until the sums have been enqueued on the GPUs; like all computations of candle, they
/// are then executed asynchronously. After a failure, aborting takes no longer than half of `patience`. If a sum hangs
/// in a GPU's queue, this is detected only when a program reads the sum.
///
/// # Errors
///
/// - [`Fault::Parts`]: the number of replicas is not that of the GPUs, or the parts of two replicas differ in number,
///   shape or dtype.
/// - [`Fault::Busy`]: another sum of this process takes too long. Nothing has changed.
/// - [`Fault::Candle`]: memory could not be allocated, and nothing has changed; or recording events failed after the
///   sums were enqueued.
/// - [`Fault::Link`]: the GPUs cannot be linked. The next sum tries again.
/// - [`Fault::Sum`], [`Fault::TimedOut`]: a call failed or timed out. All later sums on these GPUs return
///   [`Fault::Abandoned`].
/// - [`Fault::Abandoned`]: an earlier call on these GPUs has failed or timed out.
pub(super) fn sum<L: Library>(
    library: &'static L,
    sets: &CommunicatorSets<L::Communicators>,
    gpus: &[usize],
    parts: &[Vec<Tensor>],
    patience: Duration,
) -> Result<Vec<Vec<Tensor>>, Fault> {
    let deadline = Deadline::after(patience);
    check(gpus, parts)?;
    // All memory is allocated before the group begins, so a lack of memory breaks nothing.
    let contiguous = |part: &Tensor| part.contiguous();
    let parts = each(parts, contiguous)?;
    // Empty tensors need no GPU.
    let room = |part: &Tensor| if part.elem_count() == 0 { Ok(part.detach()) } else { library.room(part) };
    let sums = each(&parts, room)?;
    let count = parts.first().map_or(0, Vec::len);
    let numbers: Vec<usize> = (0..count).filter(|number| parts[0][*number].elem_count() > 0).collect();
    if numbers.is_empty() {
        return Ok(sums);
    }
    {
        // The lock is held during the group: GPUs in two sets execute their queues in the same order. Every
        // holder has a deadline.
        let free = || match sets.0.try_lock() {
            Ok(sets) => Some(sets),
            Err(TryLockError::Poisoned(sets)) => Some(sets.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let mut sets = poll_until(deadline.remaining(), free).ok_or(Fault::Busy { waited: patience })?;
        let mut entry = match sets.entry(gpus.to_vec()) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => match linked(library, gpus, &deadline) {
                Ok(communicators) => entry.insert_entry(CommunicatorSet::Linked(communicators)),
                Err(fault) => {
                    if let Fault::TimedOut(error) = &fault {
                        entry.insert(CommunicatorSet::Abandoned(error.clone()));
                    }
                    return Err(fault);
                }
            },
        };
        let communicators = match entry.get() {
            CommunicatorSet::Linked(communicators) => communicators,
            CommunicatorSet::Abandoned(error) => return Err(Fault::Abandoned(error.clone())),
        };
        if let Err(fault) = group(library, communicators, &numbers, (&parts, &sums), &deadline) {
            if let Fault::Sum(error) | Fault::TimedOut(error) = &fault
                && let CommunicatorSet::Linked(communicators) =
                    entry.insert(CommunicatorSet::Abandoned(error.clone()))
            {
                let used = parts.iter().chain(&sums).flatten().cloned().collect();
                abandon(library, communicators, used, patience);
            }
            return Err(fault);
        }
    }
    for (parts, sums) in parts.iter().zip(&sums) {
        numbers.iter().try_for_each(|number| library.queued(&parts[*number], &sums[*number]))?;
    }
    Ok(sums)
}

/// Creates communicators for the given GPUs and links them. If linking fails or times out, aborts the communicators.
fn linked<L: Library>(
    library: &'static L,
    gpus: &[usize],
    deadline: &Deadline,
) -> Result<L::Communicators, Fault> {
    const CALL: &str = "ncclCommInitRankConfig";
    let communicators = library.open(gpus).map_err(Fault::Link)?;
    let begun = library.link(&communicators).map_err(Fault::Link);
    match begun.and_then(|()| ended(library, &communicators, CALL, deadline, Fault::Link)) {
        Ok(()) => Ok(communicators),
        Err(fault) => {
            abandon(library, communicators, Vec::new(), deadline.timeout());
            Err(fault)
        }
    }
}

/// Runs one group of calls. For each index in `numbers`, the group contains a call that sums the parts with this index.
fn group<L: Library>(
    library: &L,
    communicators: &L::Communicators,
    numbers: &[usize],
    (parts, sums): (&[Vec<Tensor>], &[Vec<Tensor>]),
    deadline: &Deadline,
) -> Result<(), Fault> {
    let of =
        |all: &[Vec<Tensor>], number: usize| all.iter().map(|list| list[number].clone()).collect::<Vec<_>>();
    // A GPU may have failed since, without any reader of a sum noticing.
    ended(library, communicators, "ncclAllReduce of an earlier sum", deadline, Fault::Sum)?;
    library.start().map_err(Fault::Sum)?;
    let added = numbers.iter().try_for_each(|number| {
        let (parts, sums) = (of(parts, *number), of(sums, *number));
        library.add(communicators, &parts.iter().collect::<Vec<_>>(), &sums.iter().collect::<Vec<_>>())
    });
    // Ends the group even if a call has failed: otherwise no later call of this thread would start.
    let begun = library.end();
    added.and(begun).map_err(Fault::Sum)?;
    ended(library, communicators, "ncclGroupEnd", deadline, Fault::Sum)
}

/// Waits until all GPUs have completed the last operation, which `call` started. `failed` converts the error of a
/// failed operation.
fn ended<L: Library>(
    library: &L,
    communicators: &L::Communicators,
    call: &'static str,
    deadline: &Deadline,
    failed: fn(CallError) -> Fault,
) -> Result<(), Fault> {
    let mut slow = Vec::new();
    let ended = poll_until(deadline.remaining(), || match library.busy(communicators, call) {
        Ok(busy) if busy.is_empty() => Some(Ok(())),
        Ok(busy) => {
            slow = busy;
            None
        }
        Err(error) => Some(Err(failed(error))),
    });
    ended.unwrap_or_else(|| Err(Fault::TimedOut(timed_out(call, &slow, deadline.timeout()))))
}

/// Aborts communicators. Waits for at most [`ABORT_TIMEOUT`], and at most half of `patience`: if a GPU hangs, the abort
/// continues after this has returned. The tensors in `used` are kept until the abort is complete, because the
/// operations may still access them.
fn abandon<L: Library>(
    library: &'static L,
    communicators: L::Communicators,
    used: Vec<Tensor>,
    patience: Duration,
) {
    wait_or_leave("nccl-abort", ABORT_TIMEOUT.min(patience / 2), move || {
        library.abort(communicators);
        drop(used);
    });
}

fn each(
    all: &[Vec<Tensor>],
    make: impl Fn(&Tensor) -> CandleResult<Tensor>,
) -> CandleResult<Vec<Vec<Tensor>>> {
    all.iter().map(|list| list.iter().map(&make).collect()).collect()
}

/// Checks that each GPU has a replica, and that all replicas have the same number of parts, with equal shapes and
/// dtypes.
fn check(gpus: &[usize], parts: &[Vec<Tensor>]) -> Result<(), Fault> {
    let wrong = |what: String| Err(Fault::Parts(what));
    if gpus.len() != parts.len() {
        return wrong(format!("there are {} GPUs, but parts of {} replicas", gpus.len(), parts.len()));
    }
    let Some((first, others)) = parts.split_first() else { return Ok(()) };
    for (replica, list) in (1..).zip(others) {
        if list.len() != first.len() {
            let (found, expected) = (list.len(), first.len());
            return wrong(format!("replica {replica} has {found} tensors, but replica 0 has {expected}"));
        }
        let differ = |(a, b): &(&Tensor, &Tensor)| a.dims() != b.dims() || a.dtype() != b.dtype();
        if let Some(number) = first.iter().zip(list).position(|pair| differ(&pair)) {
            let text = |part: &Tensor| format!("{}{:?}", part.dtype().as_str(), part.dims());
            let (found, expected) = (text(&list[number]), text(&first[number]));
            return wrong(format!(
                "replica {replica} has {found} as number {number}, but replica 0 has {expected}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
