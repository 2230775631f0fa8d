//! [`Printer`]: a bounded queue and a thread for each of the two output streams. A hung reader blocks the tasks that
//! write, but neither the supervisor nor the end of the job.

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

/// The number of queued bytes of a stream above which running tasks that write to it are blocked.
const ROOM: usize = 1 << 20;

/// The maximum number of queued bytes of a stream once tasks are no longer blocked. Lines beyond it are dropped.
const MAX: usize = 16 << 20;

/// The approximate number of bytes that a queued line occupies in addition to its text.
const OVERHEAD: usize = 64;

/// The reason to report for dropped lines if the output is being read.
const TOO_FAST: &str = "they were written faster than they were read";

/// The interval at which a wait on a queue checks its condition again. Changes of the queue normally end the wait
/// earlier.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// A line of a task, or a notice of the launcher, in a queue.
pub(crate) enum Item {
    Line { index: usize, task: Arc<Task>, stream: Stream, text: Vec<u8> },
    Notice(Notice),
}

impl Item {
    fn bytes(&self) -> usize {
        match self {
            Item::Line { text, .. } => text.len() + OVERHEAD,
            Item::Notice(_) => OVERHEAD,
        }
    }

    fn output(&self) -> Output<'_> {
        match self {
            Item::Line { index, task, stream, text } => {
                Output::Line { index: *index, task, stream: *stream, text }
            }
            Item::Notice(notice) => Output::Notice(notice),
        }
    }
}

/// The dropped output of one stream: the number of lines, and their length in bytes with line breaks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub lines: u64,
    pub bytes: u64,
    /// The error of the last failed write, or another reason; `None` if the reader is hung.
    pub why: Option<String>,
}

impl Dropped {
    fn add(&mut self, item: &Item) {
        // Only lines of tasks are counted, not the launcher's notices.
        if let Item::Line { text, .. } = item {
            self.lines += 1;
            self.bytes += text.len() as u64 + 1;
        }
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Item>,
    /// The size in bytes of the queued lines and of the line that is being written.
    bytes: usize,
    writing: bool,
    /// The number of writes that have returned, with or without an error.
    done: u64,
    /// Whether the job is ending, so that tasks no longer block.
    ending: bool,
    /// Whether lines of tasks are ignored from now on.
    drained: bool,
    closed: bool,
    dropped: Dropped,
}

/// The queue of one output stream, which threads share.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

/// The queues of a job's output: one for standard output, and one for standard error and notices.
pub(crate) struct Printer {
    out: Arc<Queue>,
    err: Arc<Queue>,
}

impl Queue {
    /// Writes the queued items until the queue is closed and empty. While the job is ending, sends [`Event::Written`]
    /// whenever the queue has become empty.
    fn write(&self, sink: &Sink, events: &Sender<Event>) {
        // A sink that panics closes the queue.
        let _closed = CloseOnDrop(self);
        let mut state = self.state.lock();
        loop {
            let Some(item) = state.waiting.pop_front() else {
                if state.closed {
                    return;
                }
                self.changed.wait_for(&mut state, CHECK_INTERVAL);
                continue;
            };
            state.writing = true;
            drop(state);
            let written = sink(item.output());
            state = self.state.lock();
            state.writing = false;
            state.bytes -= item.bytes();
            state.done += 1;
            if let Err(error) = written {
                state.dropped.add(&item);
                state.dropped.why = Some(error.to_string());
            }
            self.changed.notify_all();
            if state.ending && state.waiting.is_empty() {
                // The receiver may not exist any more, and then does not need this event.
                let _ = events.send(Event::Written);
            }
        }
    }

    /// Queues an item. If the queue is full, waits for space, but only while `patient` is `true` and the job is not
    /// ending. Never waits without `patient`. Drops and counts an item for which there is no space, or whose queue is
    /// closed. Ignores a line of a task if the queue is drained.
    fn push(&self, item: Item, patient: Option<&AtomicBool>) {
        let mut state = self.state.lock();
        while state.bytes > ROOM
            && !state.ending
            && !state.closed
            && patient.is_some_and(|patient| patient.load(Ordering::Relaxed))
        {
            self.changed.wait_for(&mut state, CHECK_INTERVAL);
        }
        if state.drained && matches!(item, Item::Line { .. }) {
            return;
        }
        if state.closed || state.bytes > MAX {
            state.dropped.add(&item);
        } else {
            state.bytes += item.bytes();
            state.waiting.push_back(item);
        }
        self.changed.notify_all();
    }

    /// Drops all queued items, and counts the lines among them.
    fn discard(&self) {
        let mut state = self.state.lock();
        let State { waiting, bytes, writing, dropped, .. } = &mut *state;
        if waiting.is_empty() && !*writing && dropped.lines > 0 {
            dropped.why.get_or_insert_with(|| TOO_FAST.into());
        }
        for item in waiting.drain(..) {
            *bytes -= item.bytes();
            dropped.add(&item);
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
    /// Starts the two threads that write the output. While the job is ending, they send [`Event::Written`] whenever a
    /// queue has become empty.
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

    /// Queues a line of a task. If the queue is full, waits while `runs` is `true` and the job is not ending.
    pub(crate) fn line(
        &self,
        index: usize,
        task: &Arc<Task>,
        stream: Stream,
        text: &[u8],
        runs: &AtomicBool,
    ) {
        let item = Item::Line { index, task: task.clone(), stream, text: text.to_vec() };
        let queue = if stream == Stream::Out { &self.out } else { &self.err };
        queue.push(item, Some(runs));
    }

    /// Queues a notice of the launcher, without waiting.
    pub(crate) fn notice(&self, notice: Notice) {
        self.err.push(Item::Notice(notice), None);
    }

    /// Records that a task has exited, by setting its `runs` to `false`. Its remaining output is then read without
    /// waiting for space.
    pub(crate) fn stop_waiting_for(&self, runs: &AtomicBool) {
        runs.store(false, Ordering::Relaxed);
        // With the lock held, so that no reader checks the flag before this change and waits after it.
        self.queues().iter().for_each(|queue| queue.change(|_| ()));
    }

    /// Marks the job as ending, so that tasks that write no longer block.
    pub(crate) fn ending(&self) {
        self.queues().iter().for_each(|queue| queue.change(|state| state.ending = true));
    }

    /// Ignores all later lines of tasks. Call this when the output of the tasks is complete, because a process that
    /// still holds one of their pipes might write forever.
    pub(crate) fn drained(&self) {
        self.queues().iter().for_each(|queue| queue.change(|state| state.drained = true));
    }

    /// Returns whether all queued output has been written.
    pub(crate) fn is_idle(&self) -> bool {
        self.out.is_idle() && self.err.is_idle()
    }

    /// Returns whether all queued notices of the launcher have been written.
    pub(crate) fn notices_are_written(&self) -> bool {
        self.err.is_idle()
    }

    /// Returns a number that changes whenever something has been written.
    pub(crate) fn progress(&self) -> u64 {
        self.queues().iter().map(|queue| queue.state.lock().done).sum()
    }

    /// Drops all queued items. Returns how much was dropped so far, for standard output and for standard error.
    pub(crate) fn discard(&self) -> [Dropped; 2] {
        self.queues().map(|queue| {
            queue.discard();
            queue.state.lock().dropped.clone()
        })
    }

    /// Returns whether a notice can probably be written now: the queue of standard error is open, and nothing is being
    /// written from it.
    pub(crate) fn can_write_notices(&self) -> bool {
        let state = self.err.state.lock();
        !state.writing && !state.closed
    }
}

impl Drop for Printer {
    fn drop(&mut self) {
        self.queues().iter().for_each(|queue| queue.change(|state| state.closed = true));
    }
}
