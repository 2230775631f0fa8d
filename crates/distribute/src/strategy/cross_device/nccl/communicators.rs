//! Sums of tensors, all replicas' in one group of calls, by the communicators of their GPUs.

use super::fault::{CallError, Fault};
use crate::lock::lock;
use candle_core::{Result as CandleResult, Tensor};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Mutex;

/// What is asked of NCCL: so much as the tests can play.
pub(super) trait Library {
    /// One communicator for each of several GPUs.
    type Communicators: Send;

    /// Links GPUs, by their numbers.
    fn link(&self, gpus: &[usize]) -> Result<Self::Communicators, CallError>;

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

    /// Ends the group, and puts its calls into the queues of the GPUs.
    fn end(&self) -> Result<(), CallError>;

    /// Tells other queues that what is in this one reads `part` and writes `sum`.
    fn queued(&self, part: &Tensor, sum: &Tensor) -> CandleResult<()>;

    /// Gives up communicators and what they are doing.
    fn abort(&self, communicators: Self::Communicators);
}

/// The communicators of this process, by the numbers of their GPUs, in the order of replicas. To link GPUs takes seconds, and what they have
/// is kept until the program ends.
#[derive(Debug)]
pub(super) struct Sets<C>(Mutex<BTreeMap<Vec<usize>, Set<C>>>);

#[derive(Debug)]
enum Set<C> {
    Linked(C),
    /// After this error, which may have left the GPUs with different numbers of calls.
    GivenUp(CallError),
}

impl<C> Sets<C> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

/// The sums over replicas of `parts[replica][number]`, beside these. They are in the queues of the GPUs, as all that candle computes, when this
/// returns.
///
/// # Errors
/// [`Fault::Parts`] where replicas' parts are not alike; [`Fault::Candle`] for no memory, after which all is as before; [`Fault::Link`]; and
/// [`Fault::Sum`], after which all further sums of these GPUs are [`Fault::GivenUp`].
pub(super) fn sum<L: Library>(
    library: &L,
    sets: &Sets<L::Communicators>,
    gpus: &[usize],
    parts: &[Vec<Tensor>],
) -> Result<Vec<Vec<Tensor>>, Fault> {
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
        // Held over the group: GPUs that two sets share do what is in their queues in one order.
        let mut sets = lock(&sets.0);
        let mut entry = match sets.entry(gpus.to_vec()) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => entry.insert_entry(Set::Linked(library.link(gpus).map_err(Fault::Link)?)),
        };
        let communicators = match entry.get() {
            Set::Linked(communicators) => communicators,
            Set::GivenUp(error) => return Err(Fault::GivenUp(error.clone())),
        };
        if let Err(error) = group(library, communicators, &numbers, &parts, &sums) {
            if let Set::Linked(communicators) = entry.insert(Set::GivenUp(error.clone())) {
                library.abort(communicators);
            }
            return Err(Fault::Sum(error));
        }
    }
    for (parts, sums) in parts.iter().zip(&sums) {
        numbers.iter().try_for_each(|number| library.queued(&parts[*number], &sums[*number]))?;
    }
    Ok(sums)
}

/// One group, with a call for each number.
fn group<L: Library>(
    library: &L,
    communicators: &L::Communicators,
    numbers: &[usize],
    parts: &[Vec<Tensor>],
    sums: &[Vec<Tensor>],
) -> Result<(), CallError> {
    let of =
        |all: &[Vec<Tensor>], number: usize| all.iter().map(|list| list[number].clone()).collect::<Vec<_>>();
    library.start()?;
    let added = numbers.iter().try_for_each(|number| {
        let (parts, sums) = (of(parts, *number), of(sums, *number));
        library.add(communicators, &parts.iter().collect::<Vec<_>>(), &sums.iter().collect::<Vec<_>>())
    });
    // Also where one has failed: else no later call of this thread would begin.
    let ended = library.end();
    added.and(ended)
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
