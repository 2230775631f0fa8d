//! A mock of NCCL for tests, with GPUs in the memory of the CPU. It sums f32 and i64 as specified by NCCL's
//! header, with nonblocking communicators, and refuses calls that violate the specification. Its release is
//! 2.27.3, or `PLAYED_RELEASE` at the time of compilation.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

const UNHANDLED_CUDA_ERROR: c_int = 1;
const INVALID_ARGUMENT: c_int = 4;
const INVALID_USAGE: c_int = 5;
const IN_PROGRESS: c_int = 7;

/// A communicator of one GPU. A set has one for each of its GPUs.
struct Communicator {
    set: u8,
    rank: c_int,
    ranks: c_int,
    gpu: c_int,
    /// The number of polls until the operation is complete; negative if it never is.
    questions: Cell<c_int>,
    /// The location of the communicator's pointer, which is written again when the communicator is linked.
    place: Cell<*mut *mut Communicator>,
}

#[repr(C)]
pub struct UniqueId([u8; 128]);

/// `ncclConfig_t` of 2.14.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// The number of polls that later operations need; negative if they never complete.
static QUESTIONS: AtomicI32 = AtomicI32::new(0);

/// The result of later operations.
static STATE: AtomicI32 = AtomicI32::new(0);

/// The number of communicators that exist.
static COMMUNICATORS: AtomicI32 = AtomicI32::new(0);

#[unsafe(no_mangle)]
pub extern "C" fn played(questions: c_int, state: c_int) -> c_int {
    QUESTIONS.store(questions, Ordering::Relaxed);
    STATE.store(state, Ordering::Relaxed);
    COMMUNICATORS.load(Ordering::Relaxed)
}

/// Sets the current GPU. There are eight.
#[unsafe(no_mangle)]
pub extern "C" fn played_gpu(gpu: c_int) {
    GPU.set(gpu);
}

#[derive(Clone, Copy)]
struct Call {
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    number: c_int,
    set: u8,
    rank: c_int,
    ranks: c_int,
}

/// The operations of the current group.
#[derive(Default)]
struct Group {
    calls: Vec<Call>,
    communicators: Vec<*mut Communicator>,
}

thread_local! {
    static GPU: Cell<c_int> = const { Cell::new(-1) };
    /// The calls that will be summed when no operation of the group is in progress.
    static BEGUN: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
    static GROUP: RefCell<Option<Group>> = const { RefCell::new(None) };
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetVersion(release: *mut c_int) -> c_int {
    let played = option_env!("PLAYED_RELEASE").map_or(22703, |text| text.parse().unwrap());
    unsafe { *release = played };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(result: c_int) -> *const c_char {
    match result {
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error".as_ptr(),
        INVALID_ARGUMENT => c"invalid argument".as_ptr(),
        INVALID_USAGE => c"invalid usage".as_ptr(),
        _ => std::ptr::null(),
    }
}

/// Returns an id whose bytes differ, so that a partial copy is detected.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    static MADE: AtomicI32 = AtomicI32::new(0);
    let first = MADE.fetch_add(1, Ordering::Relaxed) as u8;
    unsafe { *id = UniqueId(std::array::from_fn(|at| first.wrapping_add(at as u8))) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRankConfig(
    place: *mut *mut Communicator,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> c_int {
    let Config { size, magic, version, blocking } = *unsafe { &*config };
    let set = id.0[0];
    let whole = id.0.iter().enumerate().all(|(at, byte)| *byte == set.wrapping_add(at as u8));
    let gpu = GPU.get();
    if (size, magic, version, blocking) != (24, 0xcafe_beef, 21400, 0) || !whole || !(0..8).contains(&gpu) {
        return INVALID_ARGUMENT;
    }
    GROUP.with_borrow_mut(|group| {
        let Some(group) = group else { return INVALID_USAGE };
        let (questions, place) = (Cell::new(0), Cell::new(place));
        let made = Box::into_raw(Box::new(Communicator { set, rank, ranks, gpu, questions, place: place.clone() }));
        COMMUNICATORS.fetch_add(1, Ordering::Relaxed);
        group.communicators.push(made);
        unsafe { *place.get() = made };
        0
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetAsyncError(communicator: *mut Communicator, state: *mut c_int) -> c_int {
    let of = unsafe { &*communicator };
    let left = of.questions.get();
    if left != 0 {
        of.questions.set(if left > 0 { left - 1 } else { left });
        unsafe { *state = IN_PROGRESS };
        return 0;
    }
    let place = of.place.replace(std::ptr::null_mut());
    if !place.is_null() {
        unsafe { *place = communicator };
    }
    unsafe { *state = STATE.load(Ordering::Relaxed) };
    // The last rank is polled last.
    if of.rank + 1 == of.ranks { sum(&BEGUN.take()) } else { 0 }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(communicator: *mut Communicator) -> c_int {
    COMMUNICATORS.fetch_sub(1, Ordering::Relaxed);
    drop(unsafe { Box::from_raw(communicator) });
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_int {
    GROUP.with_borrow_mut(|group| *group = Some(Group::default()));
    0
}

/// Checks and enqueues the call. The stream of GPU n is n + 100.
#[unsafe(no_mangle)]
pub extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    number: c_int,
    op: c_int,
    communicator: *mut Communicator,
    stream: *mut c_void,
) -> c_int {
    let of = unsafe { &*communicator };
    let (set, rank, ranks) = (of.set, of.rank, of.ranks);
    if op != 0 || stream.addr() != of.gpu as usize + 100 || of.questions.get() != 0 {
        return INVALID_ARGUMENT;
    }
    let call = Call { from, to, count, number, set, rank, ranks };
    GROUP.with_borrow_mut(|group| match group {
        Some(group) => {
            group.calls.push(call);
            group.communicators.push(communicator);
            0
        }
        None => INVALID_USAGE,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_int {
    let Some(Group { calls, communicators }) = GROUP.take() else { return INVALID_USAGE };
    for communicator in communicators {
        unsafe { &*communicator }.questions.set(QUESTIONS.load(Ordering::Relaxed));
    }
    BEGUN.set(calls);
    IN_PROGRESS
}

fn sum(calls: &[Call]) -> c_int {
    let mut rest = calls;
    while let [first, ..] = rest {
        let ranks = first.ranks as usize;
        let Some((sum, others)) = rest.split_at_checked(ranks) else { return INVALID_USAGE };
        let fits = |(rank, call): (usize, &Call)| {
            (call.set, call.rank, call.count, call.number)
                == (first.set, rank as c_int, first.count, first.number)
        };
        if !sum.iter().enumerate().all(fits) {
            return INVALID_USAGE;
        }
        match first.number {
            4 => add::<i64>(sum),
            7 => add::<f32>(sum),
            _ => return INVALID_ARGUMENT,
        }
        rest = others;
    }
    0
}

fn add<T: Copy + std::iter::Sum>(calls: &[Call]) {
    let element = |at: usize| calls.iter().map(|call| unsafe { *call.from.cast::<T>().add(at) }).sum();
    let sums: Vec<T> = (0..calls[0].count).map(element).collect();
    for call in calls {
        unsafe { call.to.cast::<T>().copy_from(sums.as_ptr(), sums.len()) };
    }
}
