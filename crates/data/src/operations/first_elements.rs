//! [`FirstElements`]: the first elements of a generator, which are read for the spec.

use crate::chunk::Chunk;
use crate::guard::catch_panics;
use crate::pipeline::{Look, Operation, Sharding};
use crate::stage::Stage;
use crate::{Cardinality, ElementSpec, Error, Result};
use distribute_tensor::{Leaf, Tree};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// A user's iterator in one pass.
pub(super) type Elements = Box<dyn Iterator<Item = Result<Tree<Leaf>>> + Send>;
/// A function that returns the iterator for one pass.
pub(super) type GeneratorFn = Arc<dyn Fn() -> Elements + Send + Sync>;

/// An iterator, and the elements that were read from it for the spec.
pub(super) type Begun = (Elements, VecDeque<Result<Tree<Leaf>>>);

/// An iterator whose first elements were read for the spec, and are kept for the next pass.
///
/// A generator may read a channel or a socket, so a second iterator would not have the same elements. There is
/// therefore at most one such iterator, even if several threads determine the specs of datasets that are derived from
/// the generator.
pub(super) struct FirstElements {
    slot: Mutex<Slot>,
    /// A notification that the slot is no longer busy.
    free: Condvar,
    /// The maximum time to wait for another thread that reads from the iterator.
    max_wait: Duration,
}

impl Default for FirstElements {
    fn default() -> Self {
        Self { slot: Mutex::new(Slot::Free(None)), free: Condvar::new(), max_wait: Duration::from_secs(60) }
    }
}

enum Slot {
    /// No thread reads from the iterator. `None` means that no iterator has been created for the next pass.
    Free(Option<Begun>),
    /// This thread reads from the iterator. User code never runs while the lock is held.
    Busy(ThreadId),
}

impl FirstElements {
    /// Waits until no other thread reads from the iterator, or the wait times out.
    fn wait(&self) -> MutexGuard<'_, Slot> {
        let me = thread::current().id();
        let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = |slot: &mut Slot| matches!(slot, Slot::Busy(other) if *other != me);
        self.free.wait_timeout_while(slot, self.max_wait, busy).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Takes the iterator for a pass. Returns `None` if no iterator was created, or if the iterator's own code begins
    /// a pass.
    ///
    /// # Errors
    ///
    /// - [`Error::GeneratorBusy`]: another thread has been reading from the iterator for too long. A second iterator
    ///   would not have the same elements.
    pub(super) fn take(&self) -> Result<Option<Begun>> {
        match &mut *self.wait() {
            Slot::Free(begun) => Ok(begun.take()),
            Slot::Busy(thread) if *thread == thread::current().id() => Ok(None),
            Slot::Busy(_) => Err(Error::GeneratorBusy { waited: self.max_wait }),
        }
    }

    /// Returns a copy of the element at `index`. Returns `None` at the end, if reading fails, if the iterator's own
    /// code requests the spec, or if another thread reads from the iterator for too long.
    fn look(&self, make: &GeneratorFn, index: usize) -> Option<Tree<Leaf>> {
        let mut slot = self.wait();
        let Slot::Free(begun) = &mut *slot else { return None };
        let begun = begun.take();
        *slot = Slot::Busy(thread::current().id());
        drop(slot);
        let begun =
            begun.or_else(|| Some((catch_panics("from_generator", 0, || make()).ok()?, VecDeque::new())));
        let (begun, element) = match begun {
            Some((mut iterator, mut items)) => {
                let element = read_to(&mut iterator, &mut items, index);
                (Some((iterator, items)), element)
            }
            None => (None, None),
        };
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = Slot::Free(begun);
        self.free.notify_all();
        element
    }
}

/// Reads elements up to the one at `index`, and returns a copy of it.
fn read_to(
    iterator: &mut Elements,
    items: &mut VecDeque<Result<Tree<Leaf>>>,
    index: usize,
) -> Option<Tree<Leaf>> {
    while items.len() <= index {
        match catch_panics("from_generator", items.len(), || iterator.next()) {
            Ok(item) => items.push_back(item?),
            // The next pass panics at the same element.
            Err(panic) => {
                items.push_back(Err(panic));
                break;
            }
        }
    }
    items.get(index)?.as_ref().ok().cloned()
}

/// A source that reads only a generator's first elements.
pub(super) struct FirstElementsSource {
    pub(super) make: GeneratorFn,
    pub(super) first_elements: Arc<FirstElements>,
}

impl Operation for FirstElementsSource {
    fn describe(&self) -> String {
        "generator, looked at".into()
    }

    fn cardinality(&self) -> Cardinality {
        Cardinality::Unknown
    }

    fn spec(&self, _look: Look) -> Option<ElementSpec> {
        None
    }

    fn sharding(&self) -> Sharding {
        Sharding::Source
    }

    fn start(&self, _epoch: u64) -> Box<dyn Stage> {
        let (make, first_elements) = (self.make.clone(), self.first_elements.clone());
        Box::new(FirstElementsStage { make, first_elements, next: 0 })
    }
}

/// A stage that yields copies of a generator's first elements.
struct FirstElementsStage {
    make: GeneratorFn,
    first_elements: Arc<FirstElements>,
    next: usize,
}

impl Stage for FirstElementsStage {
    fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
        let element = self.first_elements.look(&self.make, self.next)?;
        self.next += 1;
        Some(Ok(Chunk::one(element)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_testing::watched;
    use std::sync::mpsc::channel;

    #[test]
    fn a_pass_that_waits_too_long_for_the_iterator_is_an_error_and_not_a_second_iterator() {
        watched(|| {
            let ((started, starts), (release, released)) = (channel(), channel::<()>());
            let released = Arc::new(Mutex::new(released));
            let make: GeneratorFn = Arc::new(move || {
                started.send(()).unwrap();
                let released = released.clone();
                Box::new(std::iter::from_fn(move || {
                    released.lock().unwrap().recv_timeout(Duration::from_secs(60)).ok()?;
                    None
                }))
            });
            let first = FirstElements { max_wait: Duration::from_millis(1), ..FirstElements::default() };
            thread::scope(|scope| {
                let looks = scope.spawn(|| first.look(&make, 0));
                starts.recv_timeout(Duration::from_secs(60)).unwrap();
                let error = first.take().err().unwrap();
                assert!(error.to_string().contains("assert_element_spec"), "{error}");
                assert!(matches!(error, Error::GeneratorBusy { waited } if waited == first.max_wait));
                release.send(()).unwrap();
                assert!(looks.join().unwrap().is_none());
            });
            assert!(first.take().unwrap().is_some());
        });
    }
}
