//! The functions of NCCL, loaded at the first use. cudarc would link them, and a program would then not start
//! without NCCL.

use super::fault::{CallError, Fault};
use libloading::{Library, Symbol};
use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;

/// The minimum release, and its number: that of the crate `distribute-nccl`. It is the first release with
/// nonblocking calls.
const LEAST: (&str, c_int) = ("2.14", 21400);

/// `ncclSum`.
const SUM: c_int = 0;

/// `ncclInProgress`: the operation has begun.
const IN_PROGRESS: c_int = 7;

/// `ncclComm_t`.
type Communicator = *mut c_void;

/// `ncclUniqueId`, which identifies a set of communicators.
#[derive(Clone, Copy)]
#[repr(C)]
struct UniqueId([c_char; 128]);

/// `ncclConfig_t` of release [`LEAST`]. Later releases learn from `version` that later fields are missing,
/// and use their defaults.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

impl Config {
    /// The configuration of a communicator with nonblocking calls.
    const NO_CALL_WAITS: Self =
        Self { size: size_of::<Self>(), magic: 0xcafe_beef, version: LEAST.1 as c_uint, blocking: 0 };
}

/// The functions of NCCL, as in its header. A result that is neither 0 nor [`IN_PROGRESS`] is an error.
struct Functions {
    get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    comm_init_rank_config: InitRankConfig,
    comm_get_async_error: unsafe extern "C" fn(Communicator, *mut c_int) -> c_int,
    comm_abort: unsafe extern "C" fn(Communicator) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    all_reduce: AllReduce,
}

/// The parameters are the address of the communicator, the number of ranks, the id, the rank, and the
/// configuration.
type InitRankConfig = unsafe extern "C" fn(*mut Communicator, c_int, UniqueId, c_int, *mut Config) -> c_int;

/// The parameters are source, destination, number of elements, type, operation, communicator, and CUDA
/// stream.
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Communicator, *mut c_void) -> c_int;

/// The library NCCL.
pub(super) struct Nccl {
    functions: Functions,
    /// The library that contains the functions.
    _library: Library,
}

/// A set of communicators, one for each GPU. NCCL allows calls from any thread, one at a time; the caller
/// holds the lock of all sets.
#[derive(Debug)]
pub(super) struct Communicators {
    gpus: Vec<usize>,
    /// The communicators, or null. Their addresses must not change: NCCL writes each again, from its own
    /// thread, when it is linked.
    all: Box<[AtomicPtr<c_void>]>,
}

impl Communicators {
    /// Creates the set for these GPUs, by CUDA's numbers, without communicators.
    pub(super) fn new(gpus: &[usize]) -> Self {
        Self { gpus: gpus.to_vec(), all: gpus.iter().map(|_| AtomicPtr::new(ptr::null_mut())).collect() }
    }

    /// Returns the GPUs, in the order of replicas.
    pub(super) fn gpus(&self) -> &[usize] {
        &self.gpus
    }
}

/// The two vectors of a sum on a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vectors {
    pub(super) from: *const c_void,
    pub(super) to: *mut c_void,
    /// The number of elements of each vector.
    pub(super) count: usize,
    /// The number of their type in NCCL.
    pub(super) number: c_int,
}

impl Nccl {
    /// Loads the library in this file.
    ///
    /// # Errors
    /// - [`Fault::Missing`]: the file cannot be loaded, or is not NCCL.
    /// - [`Fault::TooOld`]: its release is too old.
    /// - [`Fault::Link`]: it does not return its version.
    pub(super) fn load(file: &str) -> Result<Self, Fault> {
        let nccl = Self::open(file).map_err(|reason| {
            let searched = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
            Fault::Missing { reason, searched: if searched.is_empty() { "not set".into() } else { searched } }
        })?;
        let mut release = 0;
        // SAFETY: the number lives during the call.
        let asked = unsafe { (nccl.functions.get_version)(&raw mut release) };
        nccl.done("ncclGetVersion", asked).map_err(Fault::Link)?;
        if release < LEAST.1 {
            return Err(Fault::TooOld { found: text(release), least: LEAST.0 });
        }
        Ok(nccl)
    }

    fn open(file: &str) -> Result<Self, String> {
        // The source of the error is the message of the system's loader.
        let reason =
            |error: libloading::Error| error.source().map_or_else(|| error.to_string(), ToString::to_string);
        // SAFETY: NCCL's initialization is safe. Every program linked to it runs the same code.
        let library = unsafe { Library::new(file) }.map_err(reason)?;
        /// Finds a function, which is valid while the library is loaded.
        ///
        /// # Safety
        /// The function must have type `F`.
        unsafe fn find<F: Copy>(library: &Library, name: &CStr) -> Result<F, libloading::Error> {
            // SAFETY: the caller's promise.
            let symbol: Symbol<'_, F> = unsafe { library.get(name.to_bytes_with_nul()) }?;
            Ok(*symbol)
        }
        let functions = || {
            // SAFETY: these are the declarations in NCCL's header, since release 2.14 or earlier.
            unsafe {
                Ok(Functions {
                    get_version: find(&library, c"ncclGetVersion")?,
                    get_error_string: find(&library, c"ncclGetErrorString")?,
                    get_unique_id: find(&library, c"ncclGetUniqueId")?,
                    comm_init_rank_config: find(&library, c"ncclCommInitRankConfig")?,
                    comm_get_async_error: find(&library, c"ncclCommGetAsyncError")?,
                    comm_abort: find(&library, c"ncclCommAbort")?,
                    group_start: find(&library, c"ncclGroupStart")?,
                    group_end: find(&library, c"ncclGroupEnd")?,
                    all_reduce: find(&library, c"ncclAllReduce")?,
                })
            }
        };
        let functions = functions().map_err(reason)?;
        Ok(Self { functions, _library: library })
    }

    /// Begins to link communicators. `bind` makes a GPU current on this thread.
    ///
    /// # Errors
    /// The error of a call. Some communicators may have been created, and must be aborted.
    pub(super) fn link(
        &self,
        communicators: &Communicators,
        bind: impl Fn(usize) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        const CALL: &str = "ncclCommInitRankConfig";
        let number = |number: usize| {
            c_int::try_from(number).map_err(|_| CallError { call: CALL, reason: format!("{number} GPUs") })
        };
        let count = number(communicators.all.len())?;
        let mut id = UniqueId([0; 128]);
        // SAFETY: the id lives during the call.
        self.done("ncclGetUniqueId", unsafe { (self.functions.get_unique_id)(&raw mut id) })?;
        self.start()?;
        let begin = |(rank, (gpu, place)): (usize, (&usize, &AtomicPtr<c_void>))| {
            bind(*gpu)?;
            let mut config = Config::NO_CALL_WAITS;
            let rank = number(rank)?;
            // SAFETY: the configuration lives during the call, which copies it. The place of the communicator
            // lives until `abort` has ended NCCL's work on it.
            let begun = unsafe {
                (self.functions.comm_init_rank_config)(place.as_ptr(), count, id, rank, &raw mut config)
            };
            self.done(CALL, begun)
        };
        let begun = communicators.gpus.iter().zip(&communicators.all).enumerate().try_for_each(begin);
        // Ends the group even if a call has failed: otherwise no later call of this thread would start.
        let ended = self.end();
        begun.and(ended)
    }

    /// Returns the GPUs whose communicators have not completed the last operation, started by `call`.
    ///
    /// # Errors
    /// The error of `call`, or of the GPU.
    pub(super) fn busy(
        &self,
        communicators: &Communicators,
        call: &'static str,
    ) -> Result<Vec<usize>, CallError> {
        let mut busy = Vec::new();
        for (gpu, place) in communicators.gpus.iter().zip(&communicators.all) {
            let mut state = 0;
            // SAFETY: the communicator has not been aborted, since `abort` consumes it; the state lives
            // during the call.
            let asked = unsafe {
                (self.functions.comm_get_async_error)(place.load(Ordering::Acquire), &raw mut state)
            };
            let on_gpu =
                |error: CallError| CallError { reason: format!("on GPU {gpu}: {}", error.reason), ..error };
            self.done("ncclCommGetAsyncError", asked).map_err(on_gpu)?;
            self.done(call, state).map_err(on_gpu)?;
            if asked == IN_PROGRESS || state == IN_PROGRESS {
                busy.push(*gpu);
            }
        }
        Ok(busy)
    }

    /// Begins a group of calls on this thread.
    pub(super) fn start(&self) -> Result<(), CallError> {
        // SAFETY: the function has no parameters.
        self.done("ncclGroupStart", unsafe { (self.functions.group_start)() })
    }

    /// Ends the group, and starts its calls. They are enqueued on the GPUs when no GPU is
    /// [`busy`](Self::busy).
    pub(super) fn end(&self) -> Result<(), CallError> {
        // SAFETY: the function has no parameters; the arguments of the group's calls are alive, see
        // `all_reduce`.
        self.done("ncclGroupEnd", unsafe { (self.functions.group_end)() })
    }

    /// Calls for one replica's part of a sum, in the current group.
    ///
    /// # Safety
    /// - The communicators belong to this library, and are linked.
    /// - The vectors are on this replica's GPU, and live until the stream has completed the sum or
    ///   [`abort`](Self::abort) has returned.
    /// - The vectors of all replicas have the same number of elements, of the same type.
    /// - The stream belongs to that GPU.
    pub(super) unsafe fn all_reduce(
        &self,
        communicators: &Communicators,
        replica: usize,
        vectors: Vectors,
        stream: *mut c_void,
    ) -> Result<(), CallError> {
        const CALL: &str = "ncclAllReduce";
        let Some(place) = communicators.all.get(replica) else {
            return Err(CallError { call: CALL, reason: format!("replica {replica} has no communicator") });
        };
        let communicator = place.load(Ordering::Acquire);
        let Vectors { from, to, count, number } = vectors;
        // SAFETY: the caller's promise. The communicator has not been aborted, since `abort` consumes it.
        self.done(CALL, unsafe {
            (self.functions.all_reduce)(from, to, count, number, SUM, communicator, stream)
        })
    }

    /// Aborts communicators and their operations. This blocks forever if a GPU hangs.
    pub(super) fn abort(&self, communicators: Communicators) {
        let abort = |place: &AtomicPtr<c_void>| {
            let communicator = place.load(Ordering::Acquire);
            if !communicator.is_null() {
                // SAFETY: NCCL created it, and no other thread has it any more. If the abort fails, there is
                // no remedy.
                let _ = unsafe { (self.functions.comm_abort)(communicator) };
            }
        };
        // All at the same time: one may wait until the others are aborted as well.
        thread::scope(|scope| {
            for place in &communicators.all {
                if thread::Builder::new().spawn_scoped(scope, move || abort(place)).is_err() {
                    abort(place);
                }
            }
        });
    }

    fn done(&self, call: &'static str, result: c_int) -> Result<(), CallError> {
        if result == 0 || result == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: NCCL returns text that lives as long as the library, or null.
        let text = unsafe {
            let text = (self.functions.get_error_string)(result);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        Err(CallError { call, reason: text.unwrap_or_else(|| format!("ncclResult_t {result}")) })
    }
}

/// Formats a release as NVIDIA does: 2.14.3 for 21403. Releases before 2.9 have one digit less.
fn text(release: c_int) -> String {
    let (major, minor) = if release < 10_000 {
        (release / 1000, release / 100 % 10)
    } else {
        (release / 10_000, release / 100 % 100)
    };
    format!("{major}.{minor}.{}", release % 100)
}

#[cfg(test)]
mod tests;
