//! What the tests load in place of NCCL: GPUs are played by the memory of the CPU. It sums f32 and i64 when a group ends, as NCCL's header says
//! it, and refuses what breaks that. Its release is 2.27.3, or what `PLAYED_RELEASE` was when it was compiled.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};

const INVALID_ARGUMENT: c_int = 4;
const INVALID_USAGE: c_int = 5;

/// One of several communicators, of one GPU each.
struct Communicator {
    set: usize,
    rank: c_int,
    ranks: c_int,
    gpu: c_int,
}

#[derive(Clone, Copy)]
struct Call {
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    number: c_int,
    set: usize,
    rank: c_int,
    ranks: c_int,
}

thread_local! {
    static GROUP: RefCell<Option<Vec<Call>>> = const { RefCell::new(None) };
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
        INVALID_ARGUMENT => c"invalid argument".as_ptr(),
        INVALID_USAGE => c"invalid usage".as_ptr(),
        _ => std::ptr::null(),
    }
}

/// There are eight GPUs.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitAll(all: *mut *mut Communicator, count: c_int, gpus: *const c_int) -> c_int {
    let gpus = unsafe { std::slice::from_raw_parts(gpus, count as usize) };
    if gpus.iter().any(|gpu| !(0..8).contains(gpu)) {
        return INVALID_ARGUMENT;
    }
    for (rank, gpu) in gpus.iter().enumerate() {
        let communicator = Communicator { set: all.addr(), rank: rank as c_int, ranks: count, gpu: *gpu };
        unsafe { *all.add(rank) = Box::into_raw(Box::new(communicator)) };
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(communicator: *mut Communicator) -> c_int {
    drop(unsafe { Box::from_raw(communicator) });
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_int {
    GROUP.with_borrow_mut(|group| *group = Some(Vec::new()));
    0
}

/// The stream of GPU n is n + 100.
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
    let Communicator { set, rank, ranks, gpu } = *unsafe { &*communicator };
    if op != 0 || stream.addr() != gpu as usize + 100 {
        return INVALID_ARGUMENT;
    }
    let call = Call { from, to, count, number, set, rank, ranks };
    GROUP.with_borrow_mut(|group| match group {
        Some(calls) => {
            calls.push(call);
            0
        }
        None => INVALID_USAGE,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_int {
    let Some(calls) = GROUP.take() else { return INVALID_USAGE };
    let mut rest = &calls[..];
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
