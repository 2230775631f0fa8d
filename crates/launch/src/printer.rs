//! The output of a job: a bounded queue and a thread for each of two streams. A reader that is hung blocks the
//! tasks that write, but neither the supervisor nor the end of the job.

use crate::event::Event;
use crate::output::Sink;
use crate::{Notice, Output, Stream, Task};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// The number of bytes waiting for the reader of a stream above which a running task blocks.
const ROOM: usize = 1 << 20;

/// The maximum number of waiting bytes after tasks no longer block. Further lines are dropped.
const MOST: usize = 16 << 20;

/// The approximate memory of a queued line in addition to its text.
const OVERHEAD: usize = 64;

/// The reason for dropped lines although the output is being read.
const TOO_FAST: &str = "they came faster than they are read";

/// The time after which a wait in a queue checks again. The wait ends with a line or room for one, or with the
/// task or the job, whose ends have deadlines.
const LOOK: Duration = Duration::from_secs(3600);

/// A line of a task, or a notice of the launcher.
pub(crate) enum Said {
    Line { index: usize, task: Arc<Task>, stream: Stream, text: Vec<u8> },
    Notice(Notice),
}

impl Said {
    fn bytes(&self) -> usize {
        match self {
            Said::Line { text, .. } => text.len() + OVERHEAD,
            Said::Notice(_) => OVERHEAD,
        }
    }

    fn output(&self) -> Output<'_> {
        match self {
            Said::Line { index, task, stream, text } => {
                Output::Line { index: *index, task, stream: *stream, text }
            }
            Said::Notice(notice) => Output::Notice(notice),
        }
    }
}

/// The lines of one stream that could not be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub lines: u64,
    pub bytes: u64,
    /// The error of the last write that failed; `None` if the reader is hung.
    pub why: Option<String>,
}

impl Dropped {
    fn add(&mut self, said: &Said) {
        // Only lines of tasks are counted, not the launcher's notices.
        if let Said::Line { text, .. } = said {
            self.lines += 1;
            self.bytes += text.len() as u64 + 1;
        }
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Said>,
    /// The size of the waiting lines and of the one being written.
    bytes: usize,
    writing: bool,
    /// The number of writes that have returned, with or without an error.
    done: u64,
    /// Whether tasks no longer block.
    ending: bool,
    /// Whether lines of tasks are ignored.
    drained: bool,
    /// Whether the queue is closed.
    closed: bool,
    dropped: Dropped,
}

/// The queue of one stream.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

/// The queues of a job's output.
pub(crate) struct Printer {
    out: Arc<Queue>,
    err: Arc<Queue>,
}

impl Queue {
    /// Writes the queued lines until the queue is closed and empty.
    fn write(&self, sink: &Sink, events: &Sender<Event>) {
        // A sink that panics closes the queue.
        let _closed = CloseOnDrop(self);
        let mut state = self.state.lock();
        loop {
            let Some(said) = state.waiting.pop_front() else {
                if state.closed {
                    return;
                }
                self.changed.wait_for(&mut state, LOOK);
                continue;
            };
            state.writing = true;
            drop(state);
            let written = sink(said.output());
            state = self.state.lock();
            state.writing = false;
            state.bytes -= said.bytes();
            state.done += 1;
            if let Err(error) = written {
                state.dropped.add(&said);
                state.dropped.why = Some(error.to_string());
            }
            self.changed.notify_all();
            if state.ending && state.waiting.is_empty() {
                // The receiver may not exist any more, and then does not need this event.
                let _ = events.send(Event::Written);
            }
        }
    }

    /// Queues an item. If there is no room, this waits while `patient` is true and the job is not ending.
    fn push(&self, said: Said, patient: Option<&AtomicBool>) {
        let mut state = self.state.lock();
        while state.bytes > ROOM
            && !state.ending
            && !state.closed
            && patient.is_some_and(|patient| patient.load(Ordering::Relaxed))
        {
            self.changed.wait_for(&mut state, LOOK);
        }
        if state.drained && matches!(said, Said::Line { .. }) {
            return;
        }
        if state.closed || state.bytes > MOST {
            state.dropped.add(&said);
        } else {
            state.bytes += said.bytes();
            state.waiting.push_back(said);
        }
        self.changed.notify_all();
    }

    /// Drops the waiting items.
    fn discard(&self) {
        let mut state = self.state.lock();
        let State { waiting, bytes, writing, dropped, .. } = &mut *state;
        if waiting.is_empty() && !*writing && dropped.lines > 0 {
            dropped.why.get_or_insert_with(|| TOO_FAST.into());
        }
        for said in waiting.drain(..) {
            *bytes -= said.bytes();
            dropped.add(&said);
        }
    }

    fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.waiting.is_empty() && !state.writing
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }
}

struct CloseOnDrop<'a>(&'a Queue);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.change(|state| (state.closed, state.writing) = (true, false));
        self.0.discard();
    }
}

impl Printer {
    /// Starts the threads. Once the job is ending, they send [`Event::Written`] whenever everything was
    /// written.
    pub(crate) fn start(sink: &Sink, events: &Sender<Event>) -> io::Result<Arc<Self>> {
        let printer = Self { out: Arc::default(), err: Arc::default() };
        for (stream, queue) in [(Stream::Out, &printer.out), (Stream::Err, &printer.err)] {
            let (queue, sink, events) = (queue.clone(), sink.clone(), events.clone());
            let thread = std::thread::Builder::new().name(stream.name().into());
            thread.spawn(move || queue.write(&sink, &events))?;
        }
        Ok(Arc::new(printer))
    }

    fn queues(&self) -> [&Queue; 2] {
        [&self.out, &self.err]
    }

    /// Queues a line of a task. It waits for room while `runs` is true.
    pub(crate) fn line(
        &self,
        index: usize,
        task: &Arc<Task>,
        stream: Stream,
        text: &[u8],
        runs: &AtomicBool,
    ) {
        let said = Said::Line { index, task: task.clone(), stream, text: text.to_vec() };
        let queue = if stream == Stream::Out { &self.out } else { &self.err };
        queue.push(said, Some(runs));
    }

    /// Queues a notice of the launcher, without waiting.
    pub(crate) fn notice(&self, notice: Notice) {
        self.err.push(Said::Notice(notice), None);
    }

    /// Records that a task has exited: its remaining output is read without waiting for room.
    pub(crate) fn runs_no_longer(&self, runs: &AtomicBool) {
        runs.store(false, Ordering::Relaxed);
        // With the lock held, so that no reader checks the flag before and waits after.
        self.queues().iter().for_each(|queue| queue.change(|_| ()));
    }

    /// Stops blocking tasks.
    pub(crate) fn ending(&self) {
        self.queues().iter().for_each(|queue| queue.change(|state| state.ending = true));
    }

    /// Ignores further lines, because the output of the tasks is complete. A process that still holds one of
    /// their pipes might write forever.
    pub(crate) fn drained(&self) {
        self.queues().iter().for_each(|queue| queue.change(|state| state.drained = true));
    }

    /// Returns whether everything has been written.
    pub(crate) fn is_idle(&self) -> bool {
        self.out.is_idle() && self.err.is_idle()
    }

    /// Returns whether the launcher's notices have been written.
    pub(crate) fn has_said(&self) -> bool {
        self.err.is_idle()
    }

    /// Returns a number that changes whenever something has been written.
    pub(crate) fn progress(&self) -> u64 {
        self.queues().iter().map(|queue| queue.state.lock().done).sum()
    }

    /// Drops the waiting items. Returns everything that was dropped so far, for standard output and standard
    /// error.
    pub(crate) fn discard(&self) -> [Dropped; 2] {
        self.queues().map(|queue| {
            queue.discard();
            queue.state.lock().dropped.clone()
        })
    }

    /// Returns whether the launcher's notices can probably be written now.
    pub(crate) fn can_say(&self) -> bool {
        let state = self.err.state.lock();
        !state.writing && !state.closed
    }
}

impl Drop for Printer {
    fn drop(&mut self) {
        self.queues().iter().for_each(|queue| queue.change(|state| state.closed = true));
    }
}
