//! The detection of repeated pushes, so that none is applied twice.

// - INV-52: the exception is the first 1,024 pushes of a client whose record the server has dropped for others:
//   they cannot be distinguished from those of a new one. Tests: `push_window.rs`,
//   `ps-server/src/connection/in_flight.rs`, `ps-server/tests/it/service.rs`.

use crate::{Error, Result};
use std::collections::BTreeMap;

const WINDOW: u64 = PushWindows::SPAN;
const BITS: u64 = u64::BITS as u64;
const WORDS: usize = (WINDOW / BITS) as usize;

/// The decision about a received push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The push is new: apply it, then call [`PushWindows::done`].
    Apply,
    /// The push was already applied. Acknowledge it again, without applying it.
    Applied,
    /// The push is in progress because of an earlier request. Acknowledge it when that request has completed.
    InProgress,
}

/// A record of which of the latest 1,024 pushes of each client were applied, by sequence number.
///
/// A client numbers its pushes in ascending order, and repeats a push without a response under the same number. It
/// waits for responses before its numbers exceed the window. After a restart, a client has a new id. Store this record
/// together with the values, and include it in snapshots, so that the two stay consistent.
///
/// ```
/// use distribute_ps_tables::{Admission, PushWindows};
///
/// let mut windows = PushWindows::new(100);
/// assert_eq!(windows.begin(7, 0)?, Admission::Apply);
/// assert_eq!(windows.begin(7, 0)?, Admission::InProgress);
/// windows.done(7, 0, true);
/// assert_eq!(windows.begin(7, 0)?, Admission::Applied);
/// # Ok::<(), distribute_ps_tables::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushWindows {
    clients: BTreeMap<u64, Window>,
    /// The ids of the clients, by the `used` of their windows.
    by_use: BTreeMap<u64, u64>,
    uses: u64,
    limit: usize,
}

/// The latest pushes of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    /// The highest sequence number that was received.
    highest: u64,
    applied: Bits,
    in_progress: Bits,
    /// The value of [`PushWindows::uses`] at the client's last push.
    used: u64,
}

/// A bit for each of the latest sequence numbers. The bit of number `n` has the index `n` modulo the size of the
/// window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bits([u64; WORDS]);

/// The record of one client, for saving: see [`PushWindows::clients`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPushes {
    /// The id of the client.
    pub client: u64,
    /// The highest sequence number that was received.
    pub highest: u64,
    /// The sequence numbers of applied pushes, among the latest 1,024.
    pub applied: Vec<u64>,
}

impl PushWindows {
    /// The size of the window: the number of a client's latest pushes that are recorded. The sequence numbers of a
    /// client's pushes in flight must differ by less than this.
    pub const SPAN: u64 = 1024;

    /// Creates an empty record of up to `clients` clients, each of which takes about 300 bytes. The record of another
    /// client replaces that of the least recently active one without a push in progress.
    pub fn new(clients: usize) -> Self {
        Self { clients: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0, limit: clients }
    }

    /// Decides whether push `sequence` of a client must be applied. If so, the push is in progress until
    /// [`done`](Self::done) is called. A client without a record gets one, which may replace that of another client.
    ///
    /// # Errors
    /// - [`Error::PushExpired`]: the push is older than the window.
    /// - [`Error::ClientForgotten`]: the record of the client was discarded, so the push may have been applied.
    /// - [`Error::TooManyClients`]: all recorded clients have pushes in progress.
    pub fn begin(&mut self, client: u64, sequence: u64) -> Result<Admission> {
        // A client has its first answer before it uses this number. So the server has known this client, which may
        // repeat a push that was applied.
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
        } else if window.in_progress.has(sequence) {
            Admission::InProgress
        } else {
            window.in_progress.set(sequence, true);
            Admission::Apply
        })
    }

    /// Records the result of a push for which [`begin`](Self::begin) returned [`Apply`](Admission::Apply). If `applied`
    /// is `false`, the push has changed nothing and may be repeated.
    pub fn done(&mut self, client: u64, sequence: u64, applied: bool) {
        let Some(window) = self.clients.get_mut(&client) else { return };
        // If this push took longer than the window, it cannot be repeated any more.
        if window.remembers(sequence) && window.in_progress.has(sequence) {
            window.in_progress.set(sequence, false);
            window.applied.set(sequence, applied);
        }
    }

    /// Records the result of a push that an earlier process of the server has written to its log.
    pub fn record(&mut self, client: u64, sequence: u64, applied: bool) {
        // No push is in progress while a log is read, so there is room.
        let Ok(window) = self.window(client, sequence) else { return };
        if window.remembers(sequence) {
            window.applied.set(sequence, applied);
        }
    }

    /// Returns whether a client is recorded, or was recorded and may have been discarded.
    pub fn may_remember(&self, client: u64) -> bool {
        self.clients.contains_key(&client) || self.clients.len() >= self.limit
    }

    /// Removes the record of a client that will not return. Its pushes would be treated as new.
    pub fn forget(&mut self, client: u64) {
        if let Some(window) = self.clients.remove(&client) {
            self.by_use.remove(&window.used);
        }
    }

    /// Returns the window of a client, advanced to sequence number `sequence`, and marks the client as active. A client
    /// without a record gets one. If there is no space, the new record replaces that of the least recently active
    /// client without a push in progress.
    ///
    /// # Errors
    /// - [`Error::TooManyClients`]: there is no space, and all recorded clients have pushes in progress.
    fn window(&mut self, client: u64, sequence: u64) -> Result<&mut Window> {
        if !self.clients.contains_key(&client) && self.clients.len() >= self.limit {
            // A push in progress would be applied twice if it were repeated after its client was forgotten.
            let idle =
                |client: &&u64| self.clients.get(client).is_none_or(|window| window.in_progress.is_empty());
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

    /// Returns the records of all clients, in ascending order of their ids. Pushes in progress are not included,
    /// because a snapshot does not contain them either.
    pub fn clients(&self) -> impl Iterator<Item = ClientPushes> {
        self.clients.iter().map(|(client, window)| {
            let numbers = window.highest.saturating_sub(WINDOW - 1)..=window.highest;
            let applied = numbers.filter(|sequence| window.applied.has(*sequence)).collect();
            ClientPushes { client: *client, highest: window.highest, applied }
        })
    }

    /// Restores the record of a client, replacing an existing one. If there is no space, the record of another client
    /// is discarded.
    ///
    /// # Errors
    /// - [`Error::TooManyClients`]: no client's record can be discarded.
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
        Self { highest, applied: Bits::default(), in_progress: Bits::default(), used: 0 }
    }

    fn remembers(&self, sequence: u64) -> bool {
        self.highest.checked_sub(sequence).is_some_and(|behind| behind < WINDOW)
    }

    /// Advances the window to a higher number, and clears the bits of the numbers that enter it. Does nothing if the
    /// number is not higher.
    fn advance(&mut self, sequence: u64) {
        if sequence <= self.highest {
            return;
        }
        for number in (self.highest + 1).max(sequence.saturating_sub(WINDOW - 1))..=sequence {
            self.applied.set(number, false);
            self.in_progress.set(number, false);
        }
        self.highest = sequence;
    }
}

impl Bits {
    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    fn has(&self, number: u64) -> bool {
        let (word, bit) = Self::location(number);
        self.0[word] & bit != 0
    }

    fn set(&mut self, number: u64, value: bool) {
        let (word, bit) = Self::location(number);
        if value { self.0[word] |= bit } else { self.0[word] &= !bit }
    }

    fn location(number: u64) -> (usize, u64) {
        let at = number % WINDOW;
        ((at / BITS) as usize, 1 << (at % BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Generates pushes by two clients, as (client, offset, whether the push succeeds, whether it ends at once). The
    /// offset is the distance of the sequence number from the one after the client's highest; it is negative for a
    /// lower number. Its absolute value is small, about the size of the window, or arbitrary.
    fn pushes() -> impl Strategy<Value = Vec<(u64, i64, bool, bool)>> {
        let distance = prop_oneof![0i64..4, 1020i64..1030, 0i64..3000];
        let offset =
            (distance, any::<bool>()).prop_map(|(distance, back)| if back { -distance } else { distance });
        prop::collection::vec((0u64..2, offset, any::<bool>(), any::<bool>()), 0..200)
    }

    proptest! {
        // INV-52
        #[test]
        fn a_push_is_applied_once_at_most(pushes in pushes()) {
            let mut windows = PushWindows::new(2);
            let (mut applied, mut in_progress) = (BTreeSet::new(), BTreeSet::new());
            let mut ends = [0u64; 2];
            for (client, offset, ends_well, ends_now) in pushes {
                let end = ends[client as usize];
                let sequence = end.saturating_add_signed(offset);
                let expired = sequence + 1024 < end;
                let end = end.max(sequence + 1);
                let push = (client, sequence);
                match windows.begin(client, sequence) {
                    Err(Error::PushExpired { .. }) => prop_assert!(expired),
                    Err(other) => prop_assert!(false, "{}", other),
                    Ok(Admission::Applied) => prop_assert!(!expired && applied.contains(&push)),
                    Ok(Admission::InProgress) => prop_assert!(!expired && in_progress.contains(&push)),
                    Ok(Admission::Apply) => {
                        ends[client as usize] = end;
                        prop_assert!(!expired && !applied.contains(&push));
                        prop_assert!(in_progress.insert(push), "it is applied already");
                        if ends_now {
                            windows.done(client, sequence, ends_well);
                            in_progress.remove(&push);
                            if ends_well {
                                applied.insert(push);
                            }
                        }
                    }
                }
                // Saving and restoring keeps everything except pushes in progress.
                let mut restored = PushWindows::new(2);
                windows.clients().for_each(|client| restored.restore(&client).unwrap());
                prop_assert!(restored.clients().eq(windows.clients()));
                for ClientPushes { client, highest, applied: recorded } in windows.clients() {
                    let window = (client, highest.saturating_sub(1023))..=(client, highest);
                    prop_assert!(recorded.iter().eq(applied.range(window).map(|(_, sequence)| sequence)));
                }
            }
        }
    }

    // INV-52
    #[test]
    fn changes_from_a_log_are_remembered_like_new_ones() {
        let mut windows = PushWindows::new(1);
        for (sequence, applied) in [(3, true), (4, true), (4, false), (2000, true), (3, true)] {
            windows.record(7, sequence, applied);
        }
        let known = ClientPushes { client: 7, highest: 2000, applied: vec![2000] };
        assert_eq!(windows.clients().collect::<Vec<_>>(), [known]);
        windows.record(7, 1990, true);
        windows.record(7, 1990, false);
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
        // A client with a push in progress is not forgotten.
        assert!(matches!(windows.begin(3, 0), Err(Error::TooManyClients { client: 3, limit: 2 })));
        windows.done(2, 5000, true);
        assert_eq!(windows.begin(3, 0).unwrap(), Admission::Apply);
        assert_eq!(windows.clients().map(|pushes| pushes.client).collect::<Vec<_>>(), [1, 3]);
        // A repeated push that was applied is not applied again, and no client is forgotten for it.
        windows.done(3, 0, true);
        let error = windows.begin(2, 5000).unwrap_err();
        assert!(matches!(error, Error::ClientForgotten { client: 2, sequence: 5000, limit: 2 }), "{error}");
        assert_eq!(windows.begin(3, 0).unwrap(), Admission::Applied);
        // The same holds after saving and restoring, or after reading a log.
        let mut restored = PushWindows::new(2);
        windows.clients().for_each(|client| restored.restore(&client).unwrap());
        assert!(matches!(restored.begin(2, 5000), Err(Error::ClientForgotten { .. })));
        restored.record(4, 7000, true);
        assert_eq!(restored.clients().map(|pushes| pushes.client).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(restored.begin(4, 7000).unwrap(), Admission::Applied);
    }

    #[test]
    fn a_refused_change_may_be_resent_and_a_too_old_one_is_an_error() {
        let mut windows = PushWindows::new(1);
        assert_eq!(windows.begin(1, 5).unwrap(), Admission::Apply);
        windows.done(1, 5, false);
        assert_eq!(windows.begin(1, 5).unwrap(), Admission::Apply);
        // A push below the first received one may still be in flight.
        assert_eq!(windows.begin(1, 0).unwrap(), Admission::Apply);
        assert_eq!(windows.begin(1, 1029).unwrap(), Admission::Apply);
        windows.done(1, 5, true);
        let error = windows.begin(1, 5).unwrap_err();
        assert!(error.to_string().starts_with("push 5 of client 1 is too old"), "{error}");
        assert!(matches!(windows.begin(2, 0), Err(Error::TooManyClients { limit: 1, .. })));
        windows.forget(1);
        assert_eq!(windows.begin(2, u64::MAX).unwrap(), Admission::Apply);
        assert_eq!(windows.begin(2, u64::MAX).unwrap(), Admission::InProgress);
    }
}
