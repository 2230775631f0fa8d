//! Which pushes were applied, so that one that is repeated is not applied twice.

use crate::{Error, Result};
use std::collections::BTreeMap;

const WINDOW: u64 = PushWindows::SPAN;
const BITS: u64 = u64::BITS as u64;
const WORDS: usize = (WINDOW / BITS) as usize;

/// What to do about a push that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is new: apply it, then say so with [`PushWindows::done`].
    Apply,
    /// It was applied. Acknowledge it once more.
    Applied,
    /// It is being applied now, for a request that came before. Acknowledge it when that is done.
    UnderWay,
}

/// For each client, which of its pushes were applied: its last 1,024, by number.
///
/// A client numbers its pushes in ascending order, and gives one that it repeats, because no answer came, the number that it
/// had. It waits for answers before it gets further ahead than the window. A client that starts anew calls itself by another
/// number. Whoever applies pushes keeps this with the values, in a snapshot too, so that both are of one moment.
///
/// ```
/// use distribute_params::{Admission, PushWindows};
///
/// let mut windows = PushWindows::new(100);
/// assert_eq!(windows.begin(7, 0)?, Admission::Apply);
/// assert_eq!(windows.begin(7, 0)?, Admission::UnderWay);
/// windows.done(7, 0, true);
/// assert_eq!(windows.begin(7, 0)?, Admission::Applied);
/// # Ok::<(), distribute_params::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushWindows {
    clients: BTreeMap<u64, Window>,
    /// The clients by when they were last heard of.
    by_use: BTreeMap<u64, u64>,
    uses: u64,
    limit: usize,
}

/// The pushes of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    /// The highest number that has come.
    highest: u64,
    applied: Bits,
    under_way: Bits,
    /// When the client was last heard of.
    used: u64,
}

/// A bit for each of the last numbers: number `n` has bit `n` modulo the window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bits([u64; WORDS]);

/// What [`PushWindows`] know of a client, to be saved: see [`PushWindows::clients`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPushes {
    /// What the client calls itself.
    pub client: u64,
    /// The highest number that has come.
    pub highest: u64,
    /// The numbers that were applied, of the last 1,024.
    pub applied: Vec<u64>,
}

impl PushWindows {
    /// So many pushes of a client are remembered, counted from the highest: those that a client has under way have numbers nearer
    /// to each other than that.
    pub const SPAN: u64 = 1024;

    /// No pushes yet. Up to `clients` are remembered, of some 300 bytes each; for one more, that is forgotten which has not been
    /// heard of for longest.
    pub fn new(clients: usize) -> Self {
        Self { clients: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0, limit: clients }
    }

    /// Decides about push `sequence` of a client.
    ///
    /// # Errors
    /// [`Error::PushExpired`] if that is further behind than is remembered, [`Error::ClientForgotten`] if the client must have been
    /// forgotten, and [`Error::TooManyClients`] while pushes of all that are remembered are under way.
    pub fn begin(&mut self, client: u64, sequence: u64) -> Result<Admission> {
        // Before its first answer a client doesn't get so far: this one has been here before, and may repeat what was applied.
        if !self.clients.contains_key(&client) && self.clients.len() >= self.limit && sequence >= WINDOW {
            return Err(Error::ClientForgotten { client, sequence, limit: self.limit });
        }
        let window = self.window(client, sequence)?;
        if !window.remembers(sequence) {
            let highest = window.highest;
            return Err(Error::PushExpired { client, sequence, highest, window: WINDOW });
        }
        Ok(if window.applied.has(sequence) {
            Admission::Applied
        } else if window.under_way.has(sequence) {
            Admission::UnderWay
        } else {
            window.under_way.set(sequence, true);
            Admission::Apply
        })
    }

    /// Says how a push ended that was to be [applied](Admission::Apply). One that was refused, and has changed nothing, may come
    /// again.
    pub fn done(&mut self, client: u64, sequence: u64, applied: bool) {
        let Some(window) = self.clients.get_mut(&client) else { return };
        // What took longer than the window is, nobody can ask for any more.
        if window.remembers(sequence) && window.under_way.has(sequence) {
            window.under_way.set(sequence, false);
            window.applied.set(sequence, applied);
        }
    }

    /// Notes how a push ended that an earlier process applied, or did not, as its log says.
    pub fn note(&mut self, client: u64, sequence: u64, applied: bool) {
        // No push is under way while a log is read, so there is room.
        let Ok(window) = self.window(client, sequence) else { return };
        if window.remembers(sequence) {
            window.applied.set(sequence, applied);
        }
    }

    /// Whether a client is remembered, or may have been forgotten for others.
    pub fn may_know(&self, client: u64) -> bool {
        self.clients.contains_key(&client) || self.clients.len() >= self.limit
    }

    /// Forgets a client that is gone for good: a push of it would be taken for a new one.
    pub fn forget(&mut self, client: u64) {
        if let Some(window) = self.clients.remove(&client) {
            self.by_use.remove(&window.used);
        }
    }

    /// The window of a client that is heard of, up to this number.
    fn window(&mut self, client: u64, sequence: u64) -> Result<&mut Window> {
        if !self.clients.contains_key(&client) && self.clients.len() >= self.limit {
            // What is under way would be applied twice if it came again.
            let idle =
                |client: &&u64| self.clients.get(client).is_none_or(|window| window.under_way.is_empty());
            match self.by_use.values().find(idle).copied() {
                Some(oldest) => self.forget(oldest),
                None => return Err(Error::TooManyClients { client, limit: self.limit }),
            }
        }
        self.uses += 1;
        let window = self.clients.entry(client).or_insert_with(|| Window::new(sequence));
        self.by_use.remove(&std::mem::replace(&mut window.used, self.uses));
        self.by_use.insert(self.uses, client);
        window.advance(sequence);
        Ok(window)
    }

    /// What is known of all clients, by ascending number. What is under way is not among it: with a snapshot, it is not there.
    pub fn clients(&self) -> impl Iterator<Item = ClientPushes> {
        self.clients.iter().map(|(client, window)| {
            let numbers = window.highest.saturating_sub(WINDOW - 1)..=window.highest;
            let applied = numbers.filter(|sequence| window.applied.has(*sequence)).collect();
            ClientPushes { client: *client, highest: window.highest, applied }
        })
    }

    /// Puts back what was known of a client.
    ///
    /// # Errors
    /// [`Error::TooManyClients`] where none can be forgotten.
    pub fn restore(&mut self, pushes: &ClientPushes) -> Result<()> {
        let ClientPushes { client, highest, applied } = pushes;
        let window = self.window(*client, *highest)?;
        *window = Window { used: window.used, ..Window::new(*highest) };
        for sequence in applied {
            if window.remembers(*sequence) {
                window.applied.set(*sequence, true);
            }
        }
        Ok(())
    }
}

impl Window {
    fn new(highest: u64) -> Self {
        Self { highest, applied: Bits::default(), under_way: Bits::default(), used: 0 }
    }

    fn remembers(&self, sequence: u64) -> bool {
        self.highest.checked_sub(sequence).is_some_and(|behind| behind < WINDOW)
    }

    /// Makes room for a number that is higher than all before: the bits of those up to it stood for others.
    fn advance(&mut self, sequence: u64) {
        if sequence <= self.highest {
            return;
        }
        for number in (self.highest + 1).max(sequence.saturating_sub(WINDOW - 1))..=sequence {
            self.applied.set(number, false);
            self.under_way.set(number, false);
        }
        self.highest = sequence;
    }
}

impl Bits {
    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    fn has(&self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        self.0[word] & bit != 0
    }

    fn set(&mut self, number: u64, value: bool) {
        let (word, bit) = Self::place(number);
        if value { self.0[word] |= bit } else { self.0[word] &= !bit }
    }

    fn place(number: u64) -> (usize, u64) {
        let at = number % WINDOW;
        ((at / BITS) as usize, 1 << (at % BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Numbers near each other, and leaps of about a window.
    fn sequences() -> impl Strategy<Value = Vec<(u64, u64, bool, bool)>> {
        let step = prop_oneof![0u64..4, 1000u64..1050, 0u64..3000];
        prop::collection::vec((0u64..2, step, any::<bool>(), any::<bool>()), 0..200)
    }

    proptest! {
        // INV-52
        #[test]
        fn a_push_is_applied_once_at_most(pushes in sequences()) {
            let mut windows = PushWindows::new(2);
            let (mut applied, mut under_way) = (BTreeSet::new(), BTreeSet::new());
            let mut ends = [0u64; 2];
            for (client, back, ends_well, ends_now) in pushes {
                // Half of the numbers are new, the others go back from the highest.
                let end = ends[client as usize];
                let sequence = if back % 2 == 0 { end + back / 2 } else { end.saturating_sub(back / 2) };
                let expired = sequence + 1024 < end;
                let end = end.max(sequence + 1);
                let push = (client, sequence);
                match windows.begin(client, sequence) {
                    Err(Error::PushExpired { .. }) => prop_assert!(expired),
                    Err(other) => prop_assert!(false, "{}", other),
                    Ok(Admission::Applied) => prop_assert!(!expired && applied.contains(&push)),
                    Ok(Admission::UnderWay) => prop_assert!(!expired && under_way.contains(&push)),
                    Ok(Admission::Apply) => {
                        ends[client as usize] = end;
                        prop_assert!(!expired && !applied.contains(&push));
                        prop_assert!(under_way.insert(push), "it is applied already");
                        if ends_now {
                            windows.done(client, sequence, ends_well);
                            under_way.remove(&push);
                            if ends_well {
                                applied.insert(push);
                            }
                        }
                    }
                }
                // It is the same after it was saved and restored, but for what is under way.
                let mut restored = PushWindows::new(2);
                windows.clients().for_each(|client| restored.restore(&client).unwrap());
                prop_assert!(restored.clients().eq(windows.clients()));
                for window in windows.clients() {
                    prop_assert!(window.applied.iter().all(|s| applied.contains(&(window.client, *s))));
                }
            }
        }
    }

    // INV-52
    #[test]
    fn what_a_log_says_is_known_as_if_it_had_just_been() {
        let mut windows = PushWindows::new(1);
        for (sequence, applied) in [(3, true), (4, true), (4, false), (2000, true), (3, true)] {
            windows.note(7, sequence, applied);
        }
        let known = ClientPushes { client: 7, highest: 2000, applied: vec![2000] };
        assert_eq!(windows.clients().collect::<Vec<_>>(), [known]);
        windows.note(7, 1990, true);
        windows.note(7, 1990, false);
        assert_eq!(windows.begin(7, 1990).unwrap(), Admission::Apply);
        assert_eq!(windows.begin(7, 2000).unwrap(), Admission::Applied);
    }

    // INV-52
    #[test]
    fn for_one_client_more_that_is_forgotten_which_was_not_heard_of_for_longest() {
        let mut windows = PushWindows::new(2);
        for (client, sequence) in [(1, 0), (2, 5000), (1, 1)] {
            assert_eq!(windows.begin(client, sequence).unwrap(), Admission::Apply);
        }
        // Not one that has a push under way.
        assert!(matches!(windows.begin(3, 0), Err(Error::TooManyClients { client: 3, limit: 2 })));
        windows.done(2, 5000, true);
        assert_eq!(windows.begin(3, 0).unwrap(), Admission::Apply);
        assert_eq!(windows.clients().map(|pushes| pushes.client).collect::<Vec<_>>(), [1, 3]);
        // What it repeats was applied, and is not again; nor is anything forgotten for it.
        windows.done(3, 0, true);
        let error = windows.begin(2, 5000).unwrap_err();
        assert!(matches!(error, Error::ClientForgotten { client: 2, sequence: 5000, limit: 2 }), "{error}");
        assert_eq!(windows.begin(3, 0).unwrap(), Admission::Applied);
        // Nor after it was saved and restored, or read from a log.
        let mut restored = PushWindows::new(2);
        windows.clients().for_each(|client| restored.restore(&client).unwrap());
        assert!(matches!(restored.begin(2, 5000), Err(Error::ClientForgotten { .. })));
        restored.note(4, 7000, true);
        assert_eq!(restored.clients().map(|pushes| pushes.client).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(restored.begin(4, 7000).unwrap(), Admission::Applied);
    }

    #[test]
    fn what_was_refused_may_come_again_and_what_is_too_old_is_an_error() {
        let mut windows = PushWindows::new(1);
        assert_eq!(windows.begin(1, 5).unwrap(), Admission::Apply);
        windows.done(1, 5, false);
        assert_eq!(windows.begin(1, 5).unwrap(), Admission::Apply);
        // A push below the first that came may be on its way.
        assert_eq!(windows.begin(1, 0).unwrap(), Admission::Apply);
        assert_eq!(windows.begin(1, 1029).unwrap(), Admission::Apply);
        windows.done(1, 5, true);
        let error = windows.begin(1, 5).unwrap_err();
        assert!(error.to_string().starts_with("push 5 of client 1 is too old"), "{error}");
        assert!(matches!(windows.begin(2, 0), Err(Error::TooManyClients { limit: 1, .. })));
        windows.forget(1);
        assert_eq!(windows.begin(2, u64::MAX).unwrap(), Admission::Apply);
        assert_eq!(windows.begin(2, u64::MAX).unwrap(), Admission::UnderWay);
    }
}
