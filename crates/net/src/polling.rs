//! Waiting for what tells nobody that it is done: who waits asks again and again.

use distribute_cluster::{Deadline, Stopwatch};
use std::time::Duration;

/// Spin this long before pausing.
const SPIN: Duration = Duration::from_micros(200);

/// The longest pause between two questions after that.
const NAP: Duration = Duration::from_millis(1);

/// Asks until there is an answer, for at most `patience`. It is asked once at least.
pub fn until<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let (watch, mut deadline) = (Stopwatch::start(), Deadline::after(patience));
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        let slice = deadline.look();
        if slice.is_zero() {
            return None;
        }
        let waited = watch.elapsed();
        if waited < SPIN {
            std::thread::yield_now();
        } else {
            std::thread::park_timeout((waited / 8).min(NAP).min(slice));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_found_at_once_and_what_comes_later_too() {
        assert_eq!(until(Duration::ZERO, || Some(1)), Some(1));
        let mut asked = 0;
        let third = || {
            asked += 1;
            (asked == 3).then_some(asked)
        };
        assert_eq!(until(Duration::from_secs(60), third), Some(3));
    }

    #[test]
    fn what_never_comes_is_given_up_at_the_deadline() {
        let (watch, patience) = (Stopwatch::start(), Duration::from_millis(20));
        assert_eq!(until(patience, || None::<()>), None);
        assert!(watch.elapsed() >= patience, "{:?}", watch.elapsed());
    }
}
