//! The end of a job's output: the launcher waits for the reader up to a limit, and then reports dropped lines and the
//! outcome.

use crate::event::Event;
use crate::printer::Printer;
use crate::{Notice, Outcome, Stream};
use distribute_cluster::Deadline;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// The maximum time after the end of the job for which the reader may make no progress. After that, the remaining
/// output is dropped.
const UNREAD: Duration = Duration::from_secs(10);

/// The maximum time without progress that replaces [`UNREAD`] if the user has sent two signals.
const UNREAD_HURRIED: Duration = Duration::from_millis(500);

/// Writes the remaining output and the launcher's final notices. Stops waiting if a signal is received, or if the
/// reader makes no progress for a limited time (shorter if `hurried` is `true`).
pub(crate) fn write(printer: &Printer, events: &Receiver<Event>, outcome: &Outcome, hurried: bool) {
    let patience = |hurried| if hurried { UNREAD_HURRIED } else { UNREAD };
    printer.drained();
    let all = flush(printer, events, patience(hurried), Printer::is_idle);
    let dropped = printer.discard();
    // A hung reader has had its time, and may be the reader of both streams. This is checked before the notices are
    // queued, because a notice may be in the middle of being written right afterwards.
    let can_write = printer.can_write_notices();
    for (stream, dropped) in [Stream::Out, Stream::Err].into_iter().zip(dropped) {
        if dropped.lines > 0 {
            let (lines, bytes, why) = (dropped.lines, dropped.bytes, dropped.why);
            printer.notice(Notice::Dropped { stream, lines, bytes, why });
        }
    }
    printer.notice(Notice::Ended(Box::new(outcome.clone())));
    if can_write {
        flush(printer, events, patience(hurried || !all), Printer::notices_are_written);
    }
}

/// Waits until `is_done` returns `true`, and then returns `true`. Returns `false` if the reader has made no progress
/// for `patience`, or if a signal is received.
fn flush(
    printer: &Printer,
    events: &Receiver<Event>,
    patience: Duration,
    is_done: fn(&Printer) -> bool,
) -> bool {
    let (mut deadline, mut seen) = (Deadline::after(patience), printer.progress());
    while !is_done(printer) {
        match events.recv_timeout(deadline.look()) {
            Ok(Event::Signal(_)) => return false,
            Ok(_) => (),
            Err(_) => {
                let now = printer.progress();
                if now != seen {
                    (deadline, seen) = (Deadline::after(patience), now);
                } else if deadline.has_passed() {
                    return false;
                }
            }
        }
    }
    true
}
