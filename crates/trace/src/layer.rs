//! A layer that converts spans to slices, for a trace file and for watches.

use super::activity;
use super::file::{Events, text};
use super::slices::{Slice, SliceKind, Stack};
use distribute_base::internal::lock;
use distribute_cluster::Stopwatch;
use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing::subscriber::Interest;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter, Layer};
use tracing_subscriber::registry::LookupSpan;

/// The listeners of this process: the trace file and watches.
static LISTENERS: Mutex<Listeners> = Mutex::new(Listeners { file: None, watchers: 0 });
/// Whether there are any listeners.
static LISTENS: AtomicBool = AtomicBool::new(false);
/// The number of the latest file. A thread that finds a new number forgets its open spans.
static SESSION: AtomicU64 = AtomicU64::new(0);
/// Whether there is a watch.
static WATCHED: AtomicBool = AtomicBool::new(false);

struct Listeners {
    /// The open trace file, if there is one.
    file: Option<Events>,
    watchers: usize,
}

impl Listeners {
    /// Updates the flags of this module. It must be called after each change of the listeners.
    fn notify(&self) {
        WATCHED.store(self.watchers > 0, Ordering::Relaxed);
        LISTENS.store(self.file.is_some() || self.watchers > 0, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Opens a trace file with `events`, unless one is already open. Returns `true` if the file was opened.
pub(super) fn open(events: impl FnOnce() -> std::io::Result<Events>) -> std::io::Result<bool> {
    let mut listeners = lock(&LISTENERS);
    if listeners.file.is_some() {
        return Ok(false);
    }
    listeners.file = Some(events()?);
    SESSION.fetch_add(1, Ordering::Relaxed);
    listeners.notify();
    Ok(true)
}

/// Closes the trace file, if one is open. Returns the first error of this or an earlier write.
pub(super) fn close() -> std::io::Result<()> {
    let mut listeners = lock(&LISTENERS);
    let file = listeners.file.take();
    listeners.notify();
    drop(listeners);
    file.map_or(Ok(()), Events::close)
}

/// A guard that records the activity of replicas until it is dropped.
pub(super) struct WatchGuard;

impl WatchGuard {
    pub(super) fn new() -> Self {
        let mut listeners = lock(&LISTENERS);
        listeners.watchers += 1;
        listeners.notify();
        Self
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        let mut listeners = lock(&LISTENERS);
        listeners.watchers -= 1;
        listeners.notify();
        if listeners.watchers == 0 {
            activity::forget();
        }
    }
}

/// Returns the number of nanoseconds since the first call of this function.
pub(super) fn now() -> u64 {
    static CLOCK: OnceLock<Stopwatch> = OnceLock::new();
    CLOCK.get_or_init(Stopwatch::start).elapsed().as_nanos() as u64
}

thread_local! {
    static THREAD: RefCell<Thread> = RefCell::default();
}

/// Changes the state of this thread. Has no effect while the thread exits.
fn on_this_thread(change: impl FnOnce(&mut Thread)) {
    let _ = THREAD.try_with(|thread| {
        let mut thread = thread.borrow_mut();
        thread.renew();
        change(&mut thread);
    });
}

#[derive(Default)]
struct Thread {
    session: u64,
    /// The number of this thread's track in the file; 0 before the first slice.
    track: u64,
    stack: Stack,
    /// The first replica that this thread ran. It determines the name of the track.
    replica: Option<u64>,
    /// The strategy and the replica that this thread ran last.
    current_replica: Option<(u64, u64)>,
}

impl Thread {
    /// Resets the state if a different file has been opened.
    fn renew(&mut self) {
        let session = SESSION.load(Ordering::Relaxed);
        if self.session != session {
            *self = Self { session, ..Self::default() };
        }
    }

    fn write(&mut self, slice: Option<Slice>) {
        static TRACKS: AtomicU64 = AtomicU64::new(1);
        let Some(slice) = slice else { return };
        if let Some(replica) = self.current_replica.filter(|_| WATCHED.load(Ordering::Relaxed)) {
            activity::spent(replica, &slice);
        }
        let Some(events) = &mut lock(&LISTENERS).file else { return };
        if self.track == 0 {
            self.track = TRACKS.fetch_add(1, Ordering::Relaxed);
            match self.replica {
                Some(replica) => events.track(self.track, &format!("replica {replica}")),
                None => events.track(self.track, std::thread::current().name().unwrap_or("a thread")),
            }
        }
        events.slice(self.track, &slice);
    }

    /// Reports the current activity of this thread's replica to watches.
    fn notify(&self) {
        if let Some(replica) = self.current_replica.filter(|_| WATCHED.load(Ordering::Relaxed)) {
            activity::set_activity(replica, self.stack.part());
        }
    }

    /// Records that this thread runs a replica. The first replica determines the name of the thread's track.
    fn set_replica(&mut self, replica: u64, strategy: Option<u64>) {
        self.current_replica = strategy.map(|strategy| (strategy, replica)).or(self.current_replica);
        if self.replica.is_none()
            && self.track != 0
            && let Some(events) = &mut lock(&LISTENERS).file
        {
            events.track(self.track, &format!("replica {replica}"));
        }
        self.replica = self.replica.or(Some(replica));
    }
}

/// A layer that converts spans to slices.
pub(super) struct Slices;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Slices {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if attributes.is_empty() {
            return;
        }
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().replace(fields);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let metadata = span.metadata();
        let (args, replica, strategy) = match span.extensions().get::<Fields>() {
            Some(fields) => (format!("{{{}}}", fields.json), fields.replica, fields.strategy),
            None => (String::new(), None, None),
        };
        let kind = if is_part(metadata) { SliceKind::Part } else { SliceKind::Complete };
        on_this_thread(|thread| {
            if let Some(replica) = replica.filter(|_| kind == SliceKind::Part) {
                thread.set_replica(replica, strategy);
            }
            let ended = thread.stack.enter(now(), id.into_u64(), kind, metadata.name(), args);
            thread.write(ended);
            thread.notify();
        });
    }

    fn on_exit(&self, id: &Id, _: Context<'_, S>) {
        on_this_thread(|thread| {
            let ended = thread.stack.exit(now(), id.into_u64());
            thread.write(ended);
            thread.notify();
        });
    }
}

/// Returns `true` if a span is from one of this project's crates that emit spans.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    let krate = metadata.target().split(':').next().unwrap_or_default();
    matches!(
        krate,
        "distribute_base"
            | "distribute_checkpoint"
            | "distribute_collective"
            | "distribute_core"
            | "distribute_cross_device"
            | "distribute_data"
            | "distribute_net"
            | "distribute_nn"
            | "distribute_optimizer"
            | "distribute_parameter_server"
            | "distribute_ps_client"
            | "distribute_strategies"
            | "distribute_tf1"
            | "distribute_train"
    )
}

/// Returns `true` if a span is of a kind into which a replica's time is divided.
fn is_part(metadata: &Metadata<'_>) -> bool {
    is_ours(metadata) && metadata.name() != distribute_base::internal::STEP
}

/// The fields of a span, as the contents of a JSON object.
#[derive(Default)]
struct Fields {
    json: String,
    replica: Option<u64>,
    strategy: Option<u64>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: impl Into<serde_json::Value>) {
        let comma = if self.json.is_empty() { "" } else { "," };
        self.json += &format!("{comma}{}:{}", text(field.name()), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format!("{value:?}"));
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "replica" => self.replica = Some(value),
            "strategy" => self.strategy = Some(value),
            _ => {}
        }
        self.add(field, value);
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }
}

/// A filter that enables spans only while there is a listener: all spans of this project, and other spans of level
/// `INFO` or above. A disabled span costs only a comparison.
pub(super) struct ListenerFilter;

fn wanted(metadata: &Metadata<'_>) -> bool {
    LISTENS.load(Ordering::Relaxed)
        && metadata.is_span()
        && (is_ours(metadata) || *metadata.level() <= Level::INFO)
}

impl<S> Filter<S> for ListenerFilter {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        wanted(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if wanted(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(if LISTENS.load(Ordering::Relaxed) { LevelFilter::TRACE } else { LevelFilter::OFF })
    }
}
