//! Waiting for operations that can only be polled, and for operations that may never end.

use distribute_cluster::{Deadline, Stopwatch};
use std::mem::ManuallyDrop;
use std::time::Duration;

/// The time to spin before pausing.
const SPIN: Duration = Duration::from_micros(200);

/// The longest pause between two polls.
const MAX_PAUSE: Duration = Duration::from_millis(1);

/// Calls `ask` until it returns a value, for at most `patience` and at least once. Returns `None` if there is no value
/// by then.
pub fn poll_until<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
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
            std::thread::park_timeout((waited / 8).min(MAX_PAUSE).min(slice));
        }
    }
}

/// Runs a closure that may never end on a separate thread, and waits for the thread for at most `patience`. Values that
/// the closure owns are dropped when the closure ends. If no thread can be started, the closure does not run and is
/// never dropped.
pub fn wait_or_leave(name: &str, patience: Duration, run: impl FnOnce() + Send + 'static) {
    let run = ManuallyDrop::new(run);
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || ManuallyDrop::into_inner(run)());
    if let Ok(thread) = thread {
        poll_until(patience, || thread.is_finished().then_some(()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closure_that_ends_is_awaited_and_an_endless_one_is_abandoned() {
        let (says, said) = std::sync::mpsc::channel();
        let never = says.clone();
        wait_or_leave("ends", Duration::from_secs(60), move || says.send(()).unwrap());
        said.try_recv().unwrap();
        let (_go, told) = std::sync::mpsc::channel::<()>();
        let watch = Stopwatch::start();
        wait_or_leave("hangs", Duration::from_millis(20), move || {
            let _ = told.recv_timeout(Duration::from_secs(60));
            let _ = never.send(());
        });
        assert!(watch.elapsed() >= Duration::from_millis(20) && said.try_recv().is_err());
    }

    #[test]
    fn present_and_later_values_are_found() {
        assert_eq!(poll_until(Duration::ZERO, || Some(1)), Some(1));
        let mut asked = 0;
        let third = || {
            asked += 1;
            (asked == 3).then_some(asked)
        };
        assert_eq!(poll_until(Duration::from_secs(60), third), Some(3));
    }

    #[test]
    fn a_missing_value_is_abandoned_at_the_deadline() {
        let (watch, patience) = (Stopwatch::start(), Duration::from_millis(20));
        assert_eq!(poll_until(patience, || None::<()>), None);
        assert!(watch.elapsed() >= patience, "{:?}", watch.elapsed());
    }
}
