//! A record of a worker's latest calls, for error messages. It reads no clock: the caller passes the time.

use crate::Fingerprint;
use std::fmt;
use std::time::Duration;

/// The number of calls that a [`FlightRecorder`] keeps.
pub const RECORDED_CALLS: usize = 32;

/// A recorder of the latest [`RECORDED_CALLS`] calls of a worker. Times are durations since an origin that the caller
/// chooses. Recording a call does not allocate.
#[derive(Clone, Debug)]
pub struct FlightRecorder {
    /// A ring buffer: the call with ticket `n` is at index `n` modulo [`RECORDED_CALLS`].
    calls: Vec<Entry>,
    next: u64,
}

/// A handle to a recorded call, for [`FlightRecorder::continue_call`] and [`FlightRecorder::end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

#[derive(Clone, Debug)]
struct Entry {
    step: u64,
    number: u64,
    call: Fingerprint,
    began: Duration,
    /// The time at which the call or its latest part ended, and whether it completed; `None` while it is running.
    ended: Option<(Duration, bool)>,
}

/// A recorded call, which has completed, has failed, or is still running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCall {
    /// The number of the step. For a call between steps, it is the number of the previous step.
    pub step: u64,
    /// The number of the call within the step, counted from 1, as in a [`Blame`](crate::Blame).
    pub number: u64,
    /// The fingerprint of the call. If the call has several parts, it is that of the latest part.
    pub call: Fingerprint,
    /// The time since the call began.
    pub began: Duration,
    /// The progress of the call.
    pub progress: Progress,
}

/// The progress of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The call is still running.
    Running,
    /// The call completed after this time.
    Completed(Duration),
    /// The call failed after this time.
    Failed(Duration),
}

impl Default for FlightRecorder {
    fn default() -> Self {
        Self::new()
    }
}

impl FlightRecorder {
    /// Creates an empty recorder.
    pub fn new() -> Self {
        Self { calls: Vec::with_capacity(RECORDED_CALLS), next: 0 }
    }

    /// Records that a call begins at `now`. If the recorder is full, the call replaces the oldest one.
    pub fn begin(&mut self, now: Duration, step: u64, number: u64, call: Fingerprint) -> Ticket {
        let ticket = Ticket(self.next);
        let entry = Entry { step, number, call, began: now, ended: None };
        match self.calls.get_mut(index_of(ticket)) {
            Some(oldest) => *oldest = entry,
            None => self.calls.push(entry),
        }
        self.next += 1;
        ticket
    }

    /// Records that a call continues with another part, and so is running again. Has no effect if a newer call has
    /// replaced it.
    pub fn continue_call(&mut self, ticket: Ticket, part: Fingerprint) {
        if let Some(entry) = self.entry(ticket) {
            (entry.call, entry.ended) = (part, None);
        }
    }

    /// Records that a call or its latest part has ended at `now`, and whether it completed. Has no effect if a newer
    /// call has replaced it.
    pub fn end(&mut self, now: Duration, ticket: Ticket, completed: bool) {
        if let Some(entry) = self.entry(ticket) {
            entry.ended = Some((now, completed));
        }
    }

    /// Returns the recorded calls, newest first. `now` is the current time.
    pub fn calls(&self, now: Duration) -> Vec<RecordedCall> {
        let oldest = self.next.saturating_sub(RECORDED_CALLS as u64);
        let recorded = |number| {
            let entry = self.calls.get(index_of(Ticket(number)))?;
            let took = |end: Duration| end.saturating_sub(entry.began);
            Some(RecordedCall {
                step: entry.step,
                number: entry.number,
                call: entry.call.clone(),
                began: now.saturating_sub(entry.began),
                progress: match entry.ended {
                    None => Progress::Running,
                    Some((end, true)) => Progress::Completed(took(end)),
                    Some((end, false)) => Progress::Failed(took(end)),
                },
            })
        };
        (oldest..self.next).rev().filter_map(recorded).collect()
    }

    fn entry(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        let remembered = self.next.saturating_sub(ticket.0) <= RECORDED_CALLS as u64;
        self.calls.get_mut(index_of(ticket)).filter(|_| remembered)
    }
}

fn index_of(ticket: Ticket) -> usize {
    (ticket.0 % RECORDED_CALLS as u64) as usize
}

impl fmt::Display for RecordedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, number, call, began, progress } = self;
        write!(f, "step {step}, call {number}: {call}, begun {began:.3?} ago, ")?;
        match progress {
            Progress::Running => f.write_str("still running"),
            Progress::Completed(took) => write!(f, "completed in {took:.3?}"),
            Progress::Failed(took) => write!(f, "failed after {took:.3?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operation;
    use std::panic::Location;

    fn call(detail: &str) -> Fingerprint {
        Fingerprint::new(Operation::AllReduce, detail, Location::caller())
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_latest_call_is_first_with_its_start_and_result() {
        let mut recorder = FlightRecorder::new();
        assert!(recorder.calls(ms(9)).is_empty());
        let first = recorder.begin(ms(10), 3, 1, call("a"));
        recorder.end(ms(12), first, true);
        let second = recorder.begin(ms(20), 3, 2, call("b"));
        recorder.end(ms(25), second, false);
        recorder.begin(ms(30), 4, 1, call("c"));
        let calls = recorder.calls(ms(130));
        let told: Vec<_> = calls.iter().map(|c| (&*c.call.detail, c.step, c.number, c.began)).collect();
        assert_eq!(told, [("c", 4, 1, ms(100)), ("b", 3, 2, ms(110)), ("a", 3, 1, ms(120))]);
        let became = [Progress::Running, Progress::Failed(ms(5)), Progress::Completed(ms(2))];
        assert!(calls.iter().map(|call| call.progress).eq(became));
        for (call, text) in
            calls.iter().zip(["still running", "failed after 5.000ms", "completed in 2.000ms"])
        {
            assert!(call.to_string().ends_with(text), "{call}");
        }
        let text = calls[1].to_string();
        assert!(text.starts_with("step 3, call 2: all_reduce (b) at "), "{text}");
        assert!(text.contains("begun 110.000ms ago"), "{text}");
    }

    #[test]
    fn a_call_in_several_parts_is_one_that_is_over_with_the_last() {
        let mut recorder = FlightRecorder::new();
        let ticket = recorder.begin(ms(1), 1, 1, call("a"));
        recorder.end(ms(2), ticket, true);
        recorder.continue_call(ticket, call("a: its sums"));
        let calls = recorder.calls(ms(3));
        assert_eq!((calls.len(), &*calls[0].call.detail), (1, "a: its sums"));
        assert_eq!(calls[0].progress, Progress::Running);
        recorder.end(ms(5), ticket, true);
        assert_eq!(recorder.calls(ms(6))[0].progress, Progress::Completed(ms(4)));
    }

    #[test]
    fn memory_is_bounded_and_forgotten_calls_change_nothing() {
        let mut recorder = FlightRecorder::new();
        let forgotten = recorder.begin(ms(0), 1, 0, call("forgotten"));
        let room = recorder.calls.capacity();
        for number in 1..=1_000 {
            let ticket = recorder.begin(ms(number), 1, number, call("x"));
            if number < 1_000 {
                recorder.end(ms(number), ticket, true);
            }
        }
        recorder.end(ms(2_000), forgotten, false);
        recorder.continue_call(forgotten, call("again"));
        let numbers: Vec<_> = recorder.calls(ms(2_000)).iter().map(|call| call.number).collect();
        assert!(numbers.iter().copied().eq((969..=1_000).rev()), "{numbers:?}");
        assert_eq!((recorder.calls.len(), recorder.calls.capacity()), (RECORDED_CALLS, room));
        assert!(recorder.calls(ms(2_000)).iter().all(|call| !matches!(call.progress, Progress::Failed(_))));
    }
}
