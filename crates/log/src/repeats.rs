//! [`Repeats`]: limits how often repeated events are logged.

use std::time::Duration;

/// A limit for events that other processes can cause at any rate. The first event of each kind is logged.
/// After that, their number is logged at intervals. Times are measured from any fixed start; no clock is
/// read.
///
/// ```
/// use distribute_log::Repeats;
/// use std::time::Duration;
///
/// let (mut refusals, second) = (Repeats::new(Duration::from_secs(10)), Duration::from_secs(1));
/// assert!(refusals.come("crowded", second));
/// assert!(!refusals.come("crowded", 2 * second));
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
    told: Duration,
    /// The number of events since then that were not logged.
    more: u64,
}

impl<K: Clone + PartialEq> Repeats<K> {
    /// Creates a limit of one log entry of each kind in the time `every`.
    pub fn new(every: Duration) -> Self {
        Self { every, kinds: Vec::new() }
    }

    /// Records an event. Returns whether it should be logged; otherwise it is counted. There should be few
    /// kinds.
    pub fn come(&mut self, kind: K, now: Duration) -> bool {
        match self.kinds.iter_mut().find(|known| known.kind == kind) {
            Some(known) => {
                known.more += 1;
                false
            }
            None => {
                self.kinds.push(Kind { kind, told: now, more: 0 });
                true
            }
        }
    }

    /// Returns the kinds and counts that should be logged now: those with unlogged events, if the last log
    /// entry is old enough. Call this method repeatedly.
    pub fn due(&mut self, now: Duration) -> Vec<(K, u64)> {
        let every = self.every;
        let is_due = |known: &Kind<K>| now.saturating_sub(known.told) >= every;
        // The next event of a kind that has been quiet is logged at once.
        self.kinds.retain(|known| known.more > 0 || !is_due(known));
        let due = self.kinds.iter_mut().filter(|known| is_due(known));
        due.map(|known| {
            known.told = now;
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
            lines += usize::from(repeats.come('a', ms(at)));
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
    fn each_kind_is_told_at_once_and_again_when_it_was_quiet() {
        let second = Duration::from_secs;
        let mut repeats = Repeats::new(second(10));
        assert!(repeats.come('a', second(0)) && repeats.come('b', second(1)));
        assert!(!repeats.come('b', second(2)));
        assert_eq!(repeats.due(second(10)), []);
        assert!(repeats.come('a', second(10)), "it was quiet");
        assert_eq!(repeats.due(second(11)), [('b', 1)]);
        assert_eq!(repeats.due(second(30)), []);
        assert!(repeats.come('b', second(30)));
    }
}
