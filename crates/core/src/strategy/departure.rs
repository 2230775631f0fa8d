//! The workers that exit after a notice. Pure.

/// The workers that exit after a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// All workers, after one checkpoint.
    All,
    /// Only the workers that received the notice. The others have the complete state, and continue.
    Told,
}

impl Departure {
    /// Decides which workers exit. `told` has the ranks that received a notice, out of this number of workers.
    /// `least` is the number of workers that suffices for the others to continue; `None` if all are needed. The
    /// first worker is needed in any case, because the rendezvous is at its address.
    pub(super) fn decide(told: &[usize], workers: usize, least: Option<usize>) -> Self {
        let left = workers.saturating_sub(told.len());
        match least {
            Some(least) if left >= least && !told.contains(&0) => Departure::Told,
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
        for (told, workers, least, departure) in [
            (&[2][..], 3, None, Departure::All),
            (&[2], 3, Some(2), Departure::Told),
            (&[1, 2], 3, Some(2), Departure::All),
            (&[1, 2], 3, Some(1), Departure::Told),
            (&[0], 3, Some(1), Departure::All),
            (&[0, 1], 3, Some(1), Departure::All),
            (&[0], 1, Some(1), Departure::All),
        ] {
            assert_eq!(
                Departure::decide(told, workers, least),
                departure,
                "{told:?} of {workers}, {least:?}"
            );
        }
    }
}
