//! NCCL's functions, which are loaded from its library when [`Nccl::get`] is called. A program that is linked to NCCL,
//! as through cudarc, would not start without the library.
//!
//! This crate is internal to `distribute`. It is used for the GPUs of one process (`distribute-cross-device`) and for
//! workers that have one GPU each (`distribute-nccl`). It does not depend on tensors. The module `error` contains the
//! errors of loading and of calling NCCL.

// - INV-16: enforced here. Tests: `nccl-library/src/tests.rs`.

mod error;

pub use error::{CallError, LoadError};

use libloading::{Library, Symbol};
use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;

/// The file name of NCCL's library, by which the dynamic loader finds it.
const FILE: &str = "libnccl.so.2";

/// The earliest supported release and its number. It is the first release with non-blocking calls.
const LEAST: (&str, c_int) = ("2.14", 21400);

/// The operation `ncclSum`.
const SUM: c_int = 0;

/// The result `ncclInProgress`: the operation has started.
const IN_PROGRESS: c_int = 7;

/// A communicator, `ncclComm_t`.
type Communicator = *mut c_void;

/// `ncclUniqueId`: the id by which the communicators of a set find each other.
#[derive(Clone, Copy)]
#[repr(C)]
struct UniqueId([u8; 128]);

/// `ncclConfig_t` of release [`LEAST`]. Later releases detect from `version` that their additional fields are missing,
/// and use defaults for them.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

impl Config {
    /// The configuration of a communicator whose calls do not block.
    const NO_CALL_WAITS: Self =
        Self { size: size_of::<Self>(), magic: 0xcafe_beef, version: LEAST.1 as c_uint, blocking: 0 };
}

/// NCCL's functions, as declared in its header. A result that is neither 0 nor [`IN_PROGRESS`] is an error.
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

/// The type of `ncclCommInitRankConfig`. The parameters are the communicator to write, the number of ranks, the id, the
/// rank, and the configuration.
type InitRankConfig = unsafe extern "C" fn(*mut Communicator, c_int, UniqueId, c_int, *mut Config) -> c_int;

/// The type of `ncclAllReduce`. The parameters are the source, the destination, the number of elements, their type, the
/// operation, the communicator, and CUDA's stream.
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Communicator, *mut c_void) -> c_int;

/// The loaded NCCL library.
pub struct Nccl {
    functions: Functions,
    /// The release, as returned by `ncclGetVersion`.
    release: c_int,
    /// The library, which keeps the functions loaded.
    _library: Library,
}

/// One communicator for each GPU of a set. Any thread may call NCCL, but only one at a time, even for different sets:
/// callers must hold one lock for all sets.
#[derive(Debug)]
pub struct Communicators {
    gpus: Vec<usize>,
    /// The communicators, in the order of the GPUs; null until they are created. They are never moved, because a thread
    /// of NCCL writes each communicator again once it is linked.
    all: Box<[AtomicPtr<c_void>]>,
}

impl Communicators {
    /// Creates the locations for the communicators of GPUs, given by CUDA's numbers. No communicator is created yet.
    pub fn new(gpus: &[usize]) -> Self {
        Self { gpus: gpus.to_vec(), all: gpus.iter().map(|_| AtomicPtr::new(ptr::null_mut())).collect() }
    }

    /// Returns CUDA's numbers of the GPUs, in the order of replicas.
    pub fn gpus(&self) -> &[usize] {
        &self.gpus
    }
}

/// Two vectors on a GPU: a summand and the destination of the sum.
#[derive(Clone, Copy, Debug)]
pub struct Vectors {
    /// The summand.
    pub from: *const c_void,
    /// The destination of the sum.
    pub to: *mut c_void,
    /// The number of elements of each vector.
    pub count: usize,
    /// NCCL's number of the type of the elements, its `ncclDataType_t`: 7 is f32, 8 is f64.
    pub number: c_int,
}

impl Nccl {
    /// Returns the NCCL library of this process, which is loaded at the first call. If loading fails, the next call
    /// tries again.
    ///
    /// # Errors
    /// - [`LoadError::Missing`]: the library is missing, or the file is a different library.
    /// - [`LoadError::TooOld`]: the library is too old.
    /// - [`LoadError::Call`]: the library does not report its release.
    pub fn get() -> Result<&'static Self, LoadError> {
        static NCCL: OnceLock<Nccl> = OnceLock::new();
        match NCCL.get() {
            Some(nccl) => Ok(nccl),
            None => {
                let nccl = Self::load(FILE)?;
                Ok(NCCL.get_or_init(|| nccl))
            }
        }
    }

    /// Loads the library in the given file.
    ///
    /// # Errors
    /// - [`LoadError::Missing`]: the library is missing, or the file is a different library.
    /// - [`LoadError::TooOld`]: the library is too old.
    /// - [`LoadError::Call`]: the library does not report its release.
    pub fn load(file: &str) -> Result<Self, LoadError> {
        let mut nccl = Self::open(file).map_err(|reason| {
            let searched = std::env::var("LD_LIBRARY_PATH").ok().filter(|folders| !folders.is_empty());
            LoadError::Missing { reason, searched: searched.unwrap_or_else(|| "not set".into()) }
        })?;
        // SAFETY: the number lives during the call.
        let asked = unsafe { (nccl.functions.get_version)(&raw mut nccl.release) };
        nccl.done("ncclGetVersion", asked)?;
        check_release(nccl.release)?;
        Ok(nccl)
    }

    /// Returns the release, as returned by `ncclGetVersion`. [`release_text`] formats it.
    pub fn release(&self) -> i32 {
        self.release
    }

    fn open(file: &str) -> Result<Self, String> {
        // The message of the system's loader is the error's source.
        let reason =
            |error: libloading::Error| error.source().map_or_else(|| error.to_string(), ToString::to_string);
        // SAFETY: NCCL's initialisation on loading is safe: it is the same as in any program that is linked
        // to it.
        let library = unsafe { Library::new(file) }.map_err(reason)?;
        /// Returns the function with the given name, which is valid as long as the library is loaded.
        ///
        /// # Safety
        /// The function must have the type `F`.
        unsafe fn find<F: Copy>(library: &Library, name: &CStr) -> Result<F, libloading::Error> {
            // SAFETY: guaranteed by the caller.
            let symbol: Symbol<'_, F> = unsafe { library.get(name.to_bytes_with_nul()) }?;
            Ok(*symbol)
        }
        let functions = || {
            // SAFETY: NCCL's header declares them with these types, since release 2.14 or earlier.
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
        Ok(Self { functions, release: 0, _library: library })
    }

    /// Starts to link communicators. `bind` makes a GPU the current one of this thread.
    ///
    /// # Errors
    /// Returns the error of a call. Some communicators may have been created, and must be aborted.
    pub fn link(
        &self,
        communicators: &Communicators,
        bind: impl Fn(usize) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let count = communicators.all.len();
        let id = self.unique_id()?;
        self.start()?;
        let begin = |(rank, (gpu, place)): (usize, (&usize, &AtomicPtr<c_void>))| {
            bind(*gpu)?;
            self.link_rank(place, UniqueId(id), rank, count)
        };
        let begun = communicators.gpus.iter().zip(&communicators.all).enumerate().try_for_each(begin);
        // The group ends even if a call has failed: otherwise no later call of this thread would start.
        let ended = self.end();
        begun.and(ended)
    }

    /// Starts to link the communicator of this thread's current GPU with communicators of other processes, as rank
    /// `rank` of `count`. `communicators` must have this GPU only, and `id` must be the same on all processes.
    ///
    /// # Errors
    /// Returns the error of the call. The communicator may have been created, and must be aborted.
    pub fn link_across(
        &self,
        communicators: &Communicators,
        id: [u8; 128],
        rank: usize,
        count: usize,
    ) -> Result<(), CallError> {
        communicators.all.iter().try_for_each(|place| self.link_rank(place, UniqueId(id), rank, count))
    }

    fn link_rank(
        &self,
        place: &AtomicPtr<c_void>,
        id: UniqueId,
        rank: usize,
        count: usize,
    ) -> Result<(), CallError> {
        const CALL: &str = "ncclCommInitRankConfig";
        let number = |number: usize| {
            c_int::try_from(number).map_err(|_| CallError { call: CALL, reason: format!("{number} GPUs") })
        };
        let (rank, count, mut config) = (number(rank)?, number(count)?, Config::NO_CALL_WAITS);
        // SAFETY: the configuration lives during the call, which copies it. The communicator's location lives
        // until `abort` has returned, which ends NCCL's work for it.
        let begun = unsafe {
            (self.functions.comm_init_rank_config)(place.as_ptr(), count, id, rank, &raw mut config)
        };
        self.done(CALL, begun)
    }

    /// Creates a new id for a set of communicators.
    ///
    /// # Errors
    /// Returns the error of the call.
    pub fn unique_id(&self) -> Result<[u8; 128], CallError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the name lives during the call.
        self.done("ncclGetUniqueId", unsafe { (self.functions.get_unique_id)(&raw mut id) })?;
        Ok(id.0)
    }

    /// Returns the GPUs whose communicators have not completed the last operation. `call` is the name of the operation.
    ///
    /// # Errors
    /// Returns an error of `call` if the operation has failed, and of `ncclCommGetAsyncError` if NCCL does not return a
    /// status. The error names the GPU.
    pub fn busy(&self, communicators: &Communicators, call: &'static str) -> Result<Vec<usize>, CallError> {
        let mut busy = Vec::new();
        for (gpu, place) in communicators.gpus.iter().zip(&communicators.all) {
            let mut state = 0;
            // SAFETY: the communicator was not aborted, because that consumes it. The state lives during the
            // call.
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

    /// Starts a group of calls on this thread.
    ///
    /// # Errors
    /// Returns the error of the call.
    pub fn start(&self) -> Result<(), CallError> {
        // SAFETY: there are no arguments.
        self.done("ncclGroupStart", unsafe { (self.functions.group_start)() })
    }

    /// Ends the group, and starts its calls. The calls are in the queues of the GPUs when no GPU is
    /// [`busy`](Self::busy).
    ///
    /// # Errors
    /// Returns the error of the call, or of one of the group.
    pub fn end(&self) -> Result<(), CallError> {
        // SAFETY: there are no arguments, and the arguments of the group's calls are valid, see `all_reduce`.
        self.done("ncclGroupEnd", unsafe { (self.functions.group_end)() })
    }

    /// Contributes one replica's vector to a sum. If a group of calls has been started, this call belongs to the group.
    ///
    /// # Errors
    /// Returns the error of the call.
    ///
    /// # Safety
    /// The communicators must belong to this library, and be linked. The vectors must be on this replica's GPU and live
    /// until the stream has completed the sum, or until [`abort`](Self::abort) has returned. The vectors of all
    /// replicas must have the same number of elements and the same type. The stream must belong to this replica's GPU.
    pub unsafe fn all_reduce(
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
        // SAFETY: guaranteed by the caller, and the communicator was not aborted, because that consumes it.
        self.done(CALL, unsafe {
            (self.functions.all_reduce)(from, to, count, number, SUM, communicator, stream)
        })
    }

    /// Aborts communicators and their current operations. This may block, without a time limit if a GPU hangs.
    pub fn abort(&self, communicators: Communicators) {
        let abort = |place: &AtomicPtr<c_void>| {
            let communicator = place.load(Ordering::Acquire);
            if !communicator.is_null() {
                // SAFETY: NCCL has created it, and no other reference to it exists. A failure cannot be
                // handled.
                let _ = unsafe { (self.functions.comm_abort)(communicator) };
            }
        };
        // They are aborted at the same time, because one may wait until the others are aborted.
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
        // SAFETY: NCCL returns a text that lives as long as the library, or null.
        let text = unsafe {
            let text = (self.functions.get_error_string)(result);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        Err(CallError { call, reason: text.unwrap_or_else(|| format!("ncclResult_t {result}")) })
    }
}

/// Checks that this release is supported.
///
/// # Errors
/// - [`LoadError::TooOld`]: the release is too old.
fn check_release(release: c_int) -> Result<(), LoadError> {
    if release < LEAST.1 { Err(LoadError::TooOld { found: release_text(release) }) } else { Ok(()) }
}

/// Formats a release as NVIDIA does: 2.14.3 for 21403. The numbers of releases before 2.9 have one digit fewer.
pub fn release_text(release: c_int) -> String {
    let (major, minor) = if release < 10_000 {
        (release / 1000, release / 100 % 10)
    } else {
        (release / 10_000, release / 100 % 100)
    };
    format!("{major}.{minor}.{}", release % 100)
}

#[cfg(test)]
mod tests;
