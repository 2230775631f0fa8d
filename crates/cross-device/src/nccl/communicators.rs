//! Sums of tensors, all replicas' in one group of calls, by the communicators of their GPUs.

use super::fault::{Fault, late};
use candle_core::{Result as CandleResult, Tensor};
use distribute_cluster::Deadline;
use distribute_nccl_library::CallError;
use distribute_net::polling::{until, wait_or_leave};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

/// How long who gives up communicators waits until they are gone, at most.
const FAREWELL: Duration = Duration::from_secs(5);

/// What is asked of NCCL: what the tests can fake. No call waits for a GPU but [`abort`](Self::abort): what takes time is asked for again
/// and again.
pub(super) trait Library: Sync {
    /// One communicator for each of several GPUs.
    type Communicators: Send + 'static;

    /// Communicators for GPUs, by their numbers, that are not linked yet.
    fn open(&self, gpus: &[usize]) -> Result<Self::Communicators, CallError>;

    /// Begins to link them.
    fn link(&self, communicators: &Self::Communicators) -> Result<(), CallError>;

    /// The GPUs that have not done yet what was asked for last, by `call`; what has failed since is an error.
    fn busy(&self, communicators: &Self::Communicators, call: &'static str) -> Result<Vec<usize>, CallError>;

    /// Memory for the sum beside a part, with whatever is in it.
    fn room(&self, part: &Tensor) -> CandleResult<Tensor>;

    /// Begins a group of calls, of this thread. None of them begins before its [`end`](Self::end): one that waited for another GPU would
    /// keep this thread from calling for that.
    fn start(&self) -> Result<(), CallError>;

    /// Calls for one sum: `parts` and `sums` have one tensor of each replica, which are contiguous, alike and not empty.
    fn add(
        &self,
        communicators: &Self::Communicators,
        parts: &[&Tensor],
        sums: &[&Tensor],
    ) -> Result<(), CallError>;

    /// Ends the group, and begins to put its calls into the queues of the GPUs.
    fn end(&self) -> Result<(), CallError>;

    /// Tells other queues that what is in this one reads `part` and writes `sum`.
    fn queued(&self, part: &Tensor, sum: &Tensor) -> CandleResult<()>;

    /// Gives up communicators and what they are doing, for which it may wait for ever.
    fn abort(&self, communicators: Self::Communicators);
}

/// The communicators of this process, by the numbers of their GPUs, in the order of replicas. To link GPUs takes seconds, and what they have
/// is kept until the program ends.
#[derive(Debug)]
pub(super) struct Sets<C>(Mutex<BTreeMap<Vec<usize>, Set<C>>>);

#[derive(Debug)]
enum Set<C> {
    Linked(C),
    /// After this error, which may have left the GPUs with different numbers of calls, or hanging.
    GivenUp(CallError),
}

impl<C> Sets<C> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

/// The sums over replicas of `parts[replica][number]`, beside these. They are in the queues of the GPUs, as all that candle computes, when this
/// returns, for which it waits `patience` at most. Sums that hang in the queues are for those to find that read them.
///
/// # Errors
/// [`Fault::Parts`] where replicas' parts are not alike; [`Fault::Candle`] for no memory and [`Fault::Busy`], after which all is as before (but where
/// it is of an event behind sums, which are in the queues then);
/// [`Fault::Link`], after which the next sum links again; and [`Fault::Sum`] and [`Fault::Late`], after which all further sums of these GPUs are
/// [`Fault::GivenUp`].
pub(super) fn sum<L: Library>(
    library: &'static L,
    sets: &Sets<L::Communicators>,
    gpus: &[usize],
    parts: &[Vec<Tensor>],
    patience: Duration,
) -> Result<Vec<Vec<Tensor>>, Fault> {
    let deadline = Deadline::after(patience);
    check(gpus, parts)?;
    // All memory is there before the group begins, so that a lack of it breaks nothing.
    let contiguous = |part: &Tensor| part.contiguous();
    let parts = each(parts, contiguous)?;
    // Of nothing, a GPU is asked for nothing.
    let room = |part: &Tensor| if part.elem_count() == 0 { Ok(part.detach()) } else { library.room(part) };
    let sums = each(&parts, room)?;
    let count = parts.first().map_or(0, Vec::len);
    let numbers: Vec<usize> = (0..count).filter(|number| parts[0][*number].elem_count() > 0).collect();
    if numbers.is_empty() {
        return Ok(sums);
    }
    {
        // Held over the group: GPUs that two sets share do what is in their queues in one order. Who has it has a deadline of its own.
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

/// Communicators of these GPUs.
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

/// One group, with a call for each number, of the parts and their sums.
fn group<L: Library>(
    library: &L,
    communicators: &L::Communicators,
    numbers: &[usize],
    (parts, sums): (&[Vec<Tensor>], &[Vec<Tensor>]),
    deadline: &Deadline,
) -> Result<(), Fault> {
    let of =
        |all: &[Vec<Tensor>], number: usize| all.iter().map(|list| list[number].clone()).collect::<Vec<_>>();
    // What has failed on a GPU since, which nobody who reads a sum may have met.
    ended(library, communicators, "ncclAllReduce of an earlier sum", deadline, Fault::Sum)?;
    library.start().map_err(Fault::Sum)?;
    let added = numbers.iter().try_for_each(|number| {
        let (parts, sums) = (of(parts, *number), of(sums, *number));
        library.add(communicators, &parts.iter().collect::<Vec<_>>(), &sums.iter().collect::<Vec<_>>())
    });
    // Also where one has failed: else no later call of this thread would begin.
    let begun = library.end();
    added.and(begun).map_err(Fault::Sum)?;
    ended(library, communicators, "ncclGroupEnd", deadline, Fault::Sum)
}

/// Waits until all GPUs have done what was asked for last, by `call`. What has failed in it is an error as `failed` makes it.
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

/// Gives up communicators, for which a GPU that hangs may be waited for in vain. Until they are gone, what they are doing may use `used`, which
/// is kept. Where nothing hangs, they are gone when this returns.
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

/// Whether the replicas have as many parts each, which differ in neither shape nor type.
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
