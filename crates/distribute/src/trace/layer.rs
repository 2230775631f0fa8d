//! The layer that listens to spans and turns them into slices.

use super::file::{Events, text};
use super::slices::{Kind, Slice, Stack};
use crate::lock::lock;
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

/// The file that is being written.
static FILE: Mutex<Option<Events>> = Mutex::new(None);
/// Whether a file is being written, and which one: counted, because threads keep their open spans.
static LISTENS: AtomicBool = AtomicBool::new(false);
static SESSION: AtomicU64 = AtomicU64::new(0);

/// Begins to write, unless a file is already being written.
pub(super) fn open(events: impl FnOnce() -> std::io::Result<Events>) -> std::io::Result<bool> {
    let mut file = lock(&FILE);
    if file.is_some() {
        return Ok(false);
    }
    *file = Some(events()?);
    drop(file);
    SESSION.fetch_add(1, Ordering::Relaxed);
    LISTENS.store(true, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
    Ok(true)
}

/// Ends what [`open`] began.
pub(super) fn close() -> std::io::Result<()> {
    LISTENS.store(false, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
    let file = lock(&FILE).take();
    file.map_or(Ok(()), Events::close)
}

/// Nanoseconds since the first trace of the process.
fn now() -> u64 {
    static CLOCK: OnceLock<Stopwatch> = OnceLock::new();
    CLOCK.get_or_init(Stopwatch::start).elapsed().as_nanos() as u64
}

thread_local! {
    static THREAD: RefCell<Thread> = RefCell::default();
}

/// Does nothing while the thread ends.
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
    /// The number of the track; 0 before the first slice.
    track: u64,
    stack: Stack,
    /// The replica that this thread runs.
    replica: Option<u64>,
}

impl Thread {
    /// Forgets what was begun for another file.
    fn renew(&mut self) {
        let session = SESSION.load(Ordering::Relaxed);
        if self.session != session {
            *self = Self { session, ..Self::default() };
        }
    }

    fn write(&mut self, slice: Option<Slice>) {
        static TRACKS: AtomicU64 = AtomicU64::new(1);
        let Some(slice) = slice else { return };
        let mut file = lock(&FILE);
        let Some(events) = &mut *file else { return };
        if self.track == 0 {
            self.track = TRACKS.fetch_add(1, Ordering::Relaxed);
            match self.replica {
                Some(replica) => events.track(self.track, &format!("replica {replica}")),
                None => events.track(self.track, std::thread::current().name().unwrap_or("a thread")),
            }
        }
        events.slice(self.track, &slice);
    }

    /// Records that this thread runs a replica: its track is the replica's, even if the thread has another name.
    fn runs(&mut self, replica: u64) {
        if self.replica.is_none()
            && self.track != 0
            && let Some(events) = &mut *lock(&FILE)
        {
            events.track(self.track, &format!("replica {replica}"));
        }
        self.replica = self.replica.or(Some(replica));
    }
}

/// Turns spans into slices.
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
        let (args, replica) = match span.extensions().get::<Fields>() {
            Some(fields) => (format!("{{{}}}", fields.json), fields.replica),
            None => (String::new(), None),
        };
        let kind = if is_part(metadata) { Kind::Part } else { Kind::Whole };
        on_this_thread(|thread| {
            if let Some(replica) = replica.filter(|_| kind == Kind::Part) {
                thread.runs(replica);
            }
            let ended = thread.stack.enter(now(), id.into_u64(), kind, metadata.name(), args);
            thread.write(ended);
        });
    }

    fn on_exit(&self, id: &Id, _: Context<'_, S>) {
        on_this_thread(|thread| {
            let ended = thread.stack.exit(now(), id.into_u64());
            thread.write(ended);
        });
    }
}

/// Whether a span is one of this project's crates.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    let krate = metadata.target().split(':').next().unwrap_or_default();
    matches!(
        krate,
        "distribute"
            | "distribute_checkpoint"
            | "distribute_collective"
            | "distribute_data"
            | "distribute_net"
    )
}

/// Whether a span is one of the kinds into which a replica's time is divided.
fn is_part(metadata: &Metadata<'_>) -> bool {
    is_ours(metadata) && metadata.name() != super::STEP
}

/// The fields of a span, as the inside of a JSON object.
#[derive(Default)]
struct Fields {
    json: String,
    replica: Option<u64>,
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
        if field.name() == "replica" {
            self.replica = Some(value);
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

/// A filter that wants nothing while no file is written, so that a span then costs a comparison.
pub(super) struct WhileOpen;

fn wanted(metadata: &Metadata<'_>) -> bool {
    LISTENS.load(Ordering::Relaxed)
        && metadata.is_span()
        && (is_ours(metadata) || *metadata.level() <= Level::INFO)
}

impl<S> Filter<S> for WhileOpen {
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
