//! SIGTERM, handled as a notice while at least one watch exists.

use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_decisions::internal::Notice;
use distribute_log::info_or_stderr;
use signal_hook::consts::SIGTERM;
use signal_hook::flag::register_conditional_default;
use signal_hook::iterator::{Handle, Signals};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A watch that triggers a notice on SIGTERM until the watch is dropped.
#[derive(Debug)]
pub(crate) struct Sigterm(Handle);

/// The number of watches in this process, and the flag that depends on the number. Without a watch, SIGTERM kills the
/// process, as it does by default.
///
/// A signal handler cannot be removed. Instead, a second handler kills the process if the flag `ends` is set.
struct Watchers {
    count: usize,
    ends: Option<Arc<AtomicBool>>,
}

static WATCHERS: Mutex<Watchers> = Mutex::new(Watchers { count: 0, ends: None });

impl Sigterm {
    /// Starts a watch for SIGTERM. `then` describes, for the log, how the process reacts.
    ///
    /// # Errors
    /// - [`Error::Io`]: the operating system cannot install a handler or start a thread.
    pub(crate) fn watch(notice: Arc<Notice>, then: &'static str) -> Result<Self> {
        let io = |source| Error::Io { operation: "listening for SIGTERM".into(), source };
        let mut watches = lock(&WATCHERS);
        let ends = match &watches.ends {
            Some(ends) => ends.clone(),
            None => {
                let ends = Arc::new(AtomicBool::new(true));
                register_conditional_default(SIGTERM, ends.clone()).map_err(io)?;
                watches.ends.insert(ends).clone()
            }
        };
        let mut signals = Signals::new([SIGTERM]).map_err(io)?;
        let watch = Self(signals.handle());
        // From here on, dropping the watch decrements the count.
        watches.count += 1;
        ends.store(false, Ordering::SeqCst);
        drop(watches);
        let listen = move || {
            for _ in signals.forever() {
                if notice.receive() {
                    info_or_stderr(|| tracing::info!("SIGTERM: {then}"));
                }
            }
        };
        std::thread::Builder::new().name("sigterm".into()).spawn(listen).map_err(io)?;
        Ok(watch)
    }
}

impl Drop for Sigterm {
    fn drop(&mut self) {
        self.0.close();
        let mut watches = lock(&WATCHERS);
        watches.count -= 1;
        if let (0, Some(ends)) = (watches.count, &watches.ends) {
            ends.store(true, Ordering::SeqCst);
        }
    }
}
