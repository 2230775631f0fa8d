//! Sums of the tensors of all replicas in one group of calls, by the communicators of their GPUs.

use super::fault::{Fault, late};
use candle_core::{Result as CandleResult, Tensor};
use distribute_cluster::Deadline;
use distribute_nccl_library::CallError;
use distribute_net::polling::{until, wait_or_leave};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

/// The maximum time to wait for communicators to be aborted.
const FAREWELL: Duration = Duration::from_secs(5);

/// The functions of NCCL, which tests can replace. No call waits for a GPU except [`abort`](Self::abort).
/// Operations that take time are polled.
pub(super) trait Library: Sync {
    /// The type of a set of communicators, one for each GPU.
    type Communicators: Send + 'static;

    /// Creates communicators for GPUs, by number, that are not linked yet.
    fn open(&self, gpus: &[usize]) -> Result<Self::Communicators, CallError>;

    /// Begins to link the communicators.
    fn link(&self, communicators: &Self::Communicators) -> Result<(), CallError>;

    /// Returns the GPUs that have not completed the last operation, started by `call`.
    ///
    /// # Errors
    /// The failure of that operation.
    fn busy(&self, communicators: &Self::Communicators, call: &'static str) -> Result<Vec<usize>, CallError>;

    /// Allocates uninitialized memory for the sum of a part.
    fn room(&self, part: &Tensor) -> CandleResult<Tensor>;

    /// Begins a group of calls on this thread. None of them starts before [`end`](Self::end): a call that
    /// waited for another GPU would prevent this thread from making the call for that GPU.
    fn start(&self) -> Result<(), CallError>;

    /// Adds the calls for one sum. `parts` and `sums` have one tensor for each replica, which are contiguous,
    /// alike and not empty.
    fn add(
        &self,
        communicators: &Self::Communicators,
        parts: &[&Tensor],
        sums: &[&Tensor],
    ) -> Result<(), CallError>;

    /// Ends the group, and begins to enqueue its calls on the GPUs.
    fn end(&self) -> Result<(), CallError>;

    /// Records for other queues that the last operation of this queue reads `part` and writes `sum`.
    fn queued(&self, part: &Tensor, sum: &Tensor) -> CandleResult<()>;

    /// Aborts communicators and their operations. This may block forever.
    fn abort(&self, communicators: Self::Communicators);
}

/// The communicators of this process, by the numbers of their GPUs, in the order of replicas. Linking GPUs
/// takes seconds, so communicators are kept until the program ends.
#[derive(Debug)]
pub(super) struct Sets<C>(Mutex<BTreeMap<Vec<usize>, Set<C>>>);

#[derive(Debug)]
enum Set<C> {
    Linked(C),
    /// Aborted after this error. The GPUs may have completed different numbers of calls, or may hang.
    GivenUp(CallError),
}

impl<C> Sets<C> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

/// Sums `parts[replica][number]` over replicas. Each replica gets its sums. When this returns, the sums are
/// in the queues of the GPUs, like all computations of candle. It waits at most `patience` for that. Sums
/// that hang in the queues are detected when they are read.
///
/// # Errors
/// - [`Fault::Parts`]: the replicas' parts differ.
/// - [`Fault::Busy`]: another sum of this process takes too long. Nothing has changed.
/// - [`Fault::Candle`]: there is no memory, and nothing has changed; or events failed, after the sums were
///   enqueued.
/// - [`Fault::Link`]: the GPUs cannot be linked. The next sum links again.
/// - [`Fault::Sum`], [`Fault::Late`]: a call failed or timed out. All later sums of these GPUs return
///   [`Fault::GivenUp`].
/// - [`Fault::GivenUp`]: an earlier call has failed.
pub(super) fn sum<L: Library>(
    library: &'static L,
    sets: &Sets<L::Communicators>,
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
        let mut sets = until(deadline.remaining(), free).ok_or(Fault::Busy { waited: patience })?;
        let mut entry = match sets.entry(gpus.to_vec()) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => match linked(library, gpus, &deadline) {
                Ok(communicators) => entry.insert_entry(Set::Linked(communicators)),
                Err(fault) => {
                    if let Fault::Late(error) = &fault {
                        entry.insert(Set::GivenUp(error.clone()));
                    }
                    return Err(fault);
                }
            },
        };
        let communicators = match entry.get() {
            Set::Linked(communicators) => communicators,
            Set::GivenUp(error) => return Err(Fault::GivenUp(error.clone())),
        };
        if let Err(fault) = group(library, communicators, &numbers, (&parts, &sums), &deadline) {
            if let Fault::Sum(error) | Fault::Late(error) = &fault
                && let Set::Linked(communicators) = entry.insert(Set::GivenUp(error.clone()))
            {
                let used = parts.iter().chain(&sums).flatten().cloned().collect();
                give_up(library, communicators, used, patience);
            }
            return Err(fault);
        }
    }
    for (parts, sums) in parts.iter().zip(&sums) {
        numbers.iter().try_for_each(|number| library.queued(&parts[*number], &sums[*number]))?;
    }
    Ok(sums)
}

/// Links communicators of these GPUs.
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
            give_up(library, communicators, Vec::new(), deadline.timeout());
            Err(fault)
        }
    }
}

/// Runs one group, with a call for each number, of the parts and their sums.
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

/// Waits until all GPUs have completed the last operation, started by `call`. `failed` converts its failure.
fn ended<L: Library>(
    library: &L,
    communicators: &L::Communicators,
    call: &'static str,
    deadline: &Deadline,
    failed: fn(CallError) -> Fault,
) -> Result<(), Fault> {
    let mut slow = Vec::new();
    let ended = until(deadline.remaining(), || match library.busy(communicators, call) {
        Ok(busy) if busy.is_empty() => Some(Ok(())),
        Ok(busy) => {
            slow = busy;
            None
        }
        Err(error) => Some(Err(failed(error))),
    });
    ended.unwrap_or_else(|| Err(Fault::Late(late(call, &slow, deadline.timeout()))))
}

/// Aborts communicators. If a GPU hangs, it returns before they are aborted, and `used` is kept until then,
/// because their operations may still use it. If nothing hangs, they are aborted when this returns.
fn give_up<L: Library>(
    library: &'static L,
    communicators: L::Communicators,
    used: Vec<Tensor>,
    patience: Duration,
) {
    wait_or_leave("nccl-abort", FAREWELL.min(patience / 2), move || {
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

/// Checks that the replicas have the same number of parts, with equal shapes and types.
fn check(gpus: &[usize], parts: &[Vec<Tensor>]) -> Result<(), Fault> {
    let wrong = |what: String| Err(Fault::Parts(what));
    if gpus.len() != parts.len() {
        return wrong(format!("there are {} GPUs, and parts of {} replicas", gpus.len(), parts.len()));
    }
    let Some((first, others)) = parts.split_first() else { return Ok(()) };
    for (replica, list) in (1..).zip(others) {
        if list.len() != first.len() {
            let (found, expected) = (list.len(), first.len());
            return wrong(format!("replica {replica} has {found} tensors, and replica 0 has {expected}"));
        }
        let differ = |(a, b): &(&Tensor, &Tensor)| a.dims() != b.dims() || a.dtype() != b.dtype();
        if let Some(number) = first.iter().zip(list).position(|pair| differ(&pair)) {
            let text = |part: &Tensor| format!("{}{:?}", part.dtype().as_str(), part.dims());
            let (found, expected) = (text(&list[number]), text(&first[number]));
            return wrong(format!(
                "replica {replica} has {found} as number {number}, and replica 0 {expected}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
