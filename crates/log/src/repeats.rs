//! [`Repeats`]: a limit on how often repeated events are logged.

// - **INV-84** The behaviour of strangers is logged in few lines: the first of a kind, then counts. The rendezvous,
//   RPC servers and the monitor use `Repeats`. Tests: `log/src/repeats.rs`.

use std::time::Duration;

/// A limit on the logging of events that other processes can cause at any rate. The first event of each kind is logged.
/// After that, the number of further events is logged at intervals. The caller passes the time since any fixed start;
/// no clock is read.
///
/// ```
/// use distribute_log::Repeats;
/// use std::time::Duration;
///
/// let (mut refusals, second) = (Repeats::new(Duration::from_secs(10)), Duration::from_secs(1));
/// assert!(refusals.record("crowded", second));
/// assert!(!refusals.record("crowded", 2 * second));
/// assert_eq!(refusals.due(11 * second), [("crowded", 1)]);
/// ```
#[derive(Debug)]
pub struct Repeats<K> {
    every: Duration,
    kinds: Vec<Kind<K>>,
}

#[derive(Debug)]
struct Kind<K> {
    kind: K,
    logged_at: Duration,
    /// The number of events since the last log entry that were not logged.
    more: u64,
}

impl<K: Clone + PartialEq> Repeats<K> {
    /// Creates a limit of one log entry per kind in each interval of length `every`.
    pub fn new(every: Duration) -> Self {
        Self { every, kinds: Vec::new() }
    }

    /// Records an event. Returns `true` if the event is the first of its kind and should be logged; otherwise only
    /// counts it. All kinds are kept in one list that is searched linearly, so there should be only a few.
    pub fn record(&mut self, kind: K, now: Duration) -> bool {
        match self.kinds.iter_mut().find(|known| known.kind == kind) {
            Some(known) => {
                known.more += 1;
                false
            }
            None => {
                self.kinds.push(Kind { kind, logged_at: now, more: 0 });
                true
            }
        }
    }

    /// Returns the kinds of events that should be logged now, each with the number of its unlogged events, and treats
    /// these events as logged. A kind is returned if it has unlogged events, and an interval has passed since its
    /// last log entry. If there have been no events of a kind in that time, the kind is forgotten, so its next event
    /// is logged immediately. Call this at regular intervals.
    pub fn due(&mut self, now: Duration) -> Vec<(K, u64)> {
        let every = self.every;
        let is_due = |known: &Kind<K>| now.saturating_sub(known.logged_at) >= every;
        // The next event of a kind that has been quiet is logged at once.
        self.kinds.retain(|known| known.more > 0 || !is_due(known));
        let due = self.kinds.iter_mut().filter(|known| is_due(known));
        due.map(|known| {
            known.logged_at = now;
            (known.kind.clone(), std::mem::take(&mut known.more))
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-84
    #[test]
    fn many_events_are_few_lines_and_none_is_lost() {
        let ms = Duration::from_millis;
        let mut repeats = Repeats::new(ms(1000));
        let (mut lines, mut counted) = (0, 0);
        for at in 0..60_000 {
            lines += usize::from(repeats.record('a', ms(at)));
            for (kind, count) in repeats.due(ms(at)) {
                (lines, counted) = (lines + 1, counted + count);
                assert_eq!(kind, 'a');
            }
        }
        counted += repeats.due(ms(61_000)).iter().map(|(_, count)| count).sum::<u64>();
        assert_eq!((lines, counted), (60, 59_999));
    }

    // INV-84
    #[test]
    fn each_kind_is_logged_at_once_and_again_after_a_pause() {
        let second = Duration::from_secs;
        let mut repeats = Repeats::new(second(10));
        assert!(repeats.record('a', second(0)) && repeats.record('b', second(1)));
        assert!(!repeats.record('b', second(2)));
        assert_eq!(repeats.due(second(10)), []);
        assert!(repeats.record('a', second(10)), "it was quiet");
        assert_eq!(repeats.due(second(11)), [('b', 1)]);
        assert_eq!(repeats.due(second(30)), []);
        assert!(repeats.record('b', second(30)));
    }
}
