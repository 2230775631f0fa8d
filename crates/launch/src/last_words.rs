//! The end of a job's output: waits for its reader up to a limit, and reports dropped lines and the outcome.

use crate::event::Event;
use crate::printer::Printer;
use crate::{Notice, Outcome, Stream};
use distribute_cluster::Deadline;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// The time without any progress of the reader after which the remaining output is dropped.
const UNREAD: Duration = Duration::from_secs(10);

/// The same time after the user has sent two signals.
const UNREAD_IN_HASTE: Duration = Duration::from_millis(500);

/// Writes the remaining output, and the launcher's final notices. A signal during the wait for a reader ends
/// the wait.
pub(crate) fn say(printer: &Printer, events: &Receiver<Event>, outcome: &Outcome, in_haste: bool) {
    let patience = |in_haste| if in_haste { UNREAD_IN_HASTE } else { UNREAD };
    printer.drained();
    let all = flush(printer, events, patience(in_haste), Printer::is_idle);
    for (stream, dropped) in [Stream::Out, Stream::Err].into_iter().zip(printer.discard()) {
        if dropped.lines > 0 {
            let (lines, bytes, why) = (dropped.lines, dropped.bytes, dropped.why);
            printer.notice(Notice::Dropped { stream, lines, bytes, why });
        }
    }
    printer.notice(Notice::Ended(Box::new(outcome.clone())));
    // A hung reader has had its time, and may be the reader of both streams.
    if printer.can_say() {
        flush(printer, events, patience(in_haste || !all), Printer::has_said);
    }
}

/// Waits until the output is done, no progress was made for `patience`, or a signal is received. Returns
/// whether it is done.
fn flush(
    printer: &Printer,
    events: &Receiver<Event>,
    patience: Duration,
    is_done: fn(&Printer) -> bool,
) -> bool {
    let (mut deadline, mut seen) = (Deadline::after(patience), printer.progress());
    while !is_done(printer) {
        match events.recv_timeout(deadline.look()) {
            Ok(Event::Asked(_)) => return false,
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
