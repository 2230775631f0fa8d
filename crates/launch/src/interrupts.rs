//! The handling of signals that the launcher receives.

use crate::Signal;
use crate::event::Event;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::io;
use std::sync::mpsc::Sender;

/// A listener for signals. It stops listening when it is dropped.
pub(crate) struct Interrupts(Handle);

impl Drop for Interrupts {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Starts a thread that sends an event for each SIGINT, SIGTERM and SIGHUP. If SIGHUP is ignored, as under `nohup`, it
/// remains ignored.
pub(crate) fn forward(events: Sender<Event>) -> io::Result<Interrupts> {
    let mut wanted = vec![SIGINT, SIGTERM];
    if !hangup_is_ignored() {
        wanted.push(SIGHUP);
    }
    let mut signals = Signals::new(wanted)?;
    let handle = signals.handle();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let signal = match signal {
                SIGINT => Signal::Interrupt,
                SIGHUP => Signal::Hangup,
                _ => Signal::Terminate,
            };
            if events.send(Event::Signal(signal)).is_err() {
                break;
            }
        }
    })?;
    Ok(Interrupts(handle))
}

/// Returns whether this process ignores SIGHUP, as under `nohup`. This is read from `/proc`, so the result is always
/// `false` on systems other than Linux.
fn hangup_is_ignored() -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
