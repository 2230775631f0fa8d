//! Decides which workers exit after some of them have received a notice to exit.

// - INV-44: only the workers with a notice exit, if enough others are left and the first is among them; otherwise all
//   exit, after one checkpoint. Tests: `decisions/src/departure.rs`, `clusters/recovery/leaving.rs`,
//   `clusters/recovery/elastic.rs`.

/// A decision on the workers that exit after a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// All workers exit, after writing a checkpoint.
    All,
    /// Only the workers that received the notice exit. The others have the complete state, and continue.
    Notified,
}

impl Departure {
    /// Decides which workers exit. `notified` contains the ranks of the workers that received a notice, and `workers`
    /// is the total number of workers. `min_remaining` is the minimum number of workers with which training can
    /// continue; `None` means that all are needed. Worker 0 is always needed, because the rendezvous takes place at its
    /// address.
    pub fn decide(notified: &[usize], workers: usize, min_remaining: Option<usize>) -> Self {
        let left = workers.saturating_sub(notified.len());
        match min_remaining {
            Some(min_remaining) if left >= min_remaining && !notified.contains(&0) => Departure::Notified,
            _ => Departure::All,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-44
    #[test]
    fn the_others_go_on_where_enough_are_left_and_the_first_is_among_them() {
        for (notified, workers, min_remaining, departure) in [
            (&[2][..], 3, None, Departure::All),
            (&[2], 3, Some(2), Departure::Notified),
            (&[1, 2], 3, Some(2), Departure::All),
            (&[1, 2], 3, Some(1), Departure::Notified),
            (&[0], 3, Some(1), Departure::All),
            (&[0, 1], 3, Some(1), Departure::All),
            (&[0], 1, Some(1), Departure::All),
        ] {
            assert_eq!(
                Departure::decide(notified, workers, min_remaining),
                departure,
                "{notified:?} of {workers}, {min_remaining:?}"
            );
        }
    }
}
