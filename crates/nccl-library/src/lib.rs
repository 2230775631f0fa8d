//! NCCL's functions, found in its library when they are first asked for. cudarc would link them: a program would then not start without.
//!
//! Internal to `distribute`: GPUs of one process (`distribute-cross-device`) and workers that have a GPU each (`distribute-nccl`) call NCCL by it.

mod error;

pub use error::{CallError, LoadError};

use libloading::{Library, Symbol};
use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;

/// The file of NCCL, by which the system's loader finds it.
const FILE: &str = "libnccl.so.2";

/// The earliest release that will do, and its number. It is the first whose calls need not wait.
const LEAST: (&str, c_int) = ("2.14", 21400);

/// `ncclSum`.
const SUM: c_int = 0;

/// `ncclInProgress`: what was asked for has begun.
const IN_PROGRESS: c_int = 7;

/// `ncclComm_t`.
type Communicator = *mut c_void;

/// `ncclUniqueId`: the name by which the communicators of a set find each other.
#[derive(Clone, Copy)]
#[repr(C)]
struct UniqueId([u8; 128]);

/// `ncclConfig_t`, as [`LEAST`] has it. Later releases know by `version` that what they have beside is not there, and choose it.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

impl Config {
    /// Of a communicator none of whose calls waits.
    const NO_CALL_WAITS: Self =
        Self { size: size_of::<Self>(), magic: 0xcafe_beef, version: LEAST.1 as c_uint, blocking: 0 };
}

/// NCCL's functions, by its header. A result that is neither 0 nor [`IN_PROGRESS`] is an error.
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

/// Where the communicator goes, how many there are, their name, which one it is, and how it behaves.
type InitRankConfig = unsafe extern "C" fn(*mut Communicator, c_int, UniqueId, c_int, *mut Config) -> c_int;

/// From where to where, how many elements, of which type, the operation, the communicator, and CUDA's stream.
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Communicator, *mut c_void) -> c_int;

/// NCCL.
pub struct Nccl {
    functions: Functions,
    /// The release, as `ncclGetVersion` says it.
    release: c_int,
    /// Has the functions.
    _library: Library,
}

/// One communicator for each GPU of a set. NCCL lets any thread call for them, one at a time; whoever does holds the lock of all sets.
#[derive(Debug)]
pub struct Communicators {
    gpus: Vec<usize>,
    /// Null where there is none. They stay where they are: NCCL writes each once more, from a thread of its own, when it is linked.
    all: Box<[AtomicPtr<c_void>]>,
}

impl Communicators {
    /// Makes room for those of these GPUs, by CUDA's numbers; none is there yet.
    pub fn new(gpus: &[usize]) -> Self {
        Self { gpus: gpus.to_vec(), all: gpus.iter().map(|_| AtomicPtr::new(ptr::null_mut())).collect() }
    }

    /// Returns the GPUs, in the order of replicas.
    pub fn gpus(&self) -> &[usize] {
        &self.gpus
    }
}

/// Two vectors on a GPU, of which one gets the sum.
#[derive(Clone, Copy, Debug)]
pub struct Vectors {
    /// The summand.
    pub from: *const c_void,
    /// The place of the sum.
    pub to: *mut c_void,
    /// How many elements each has.
    pub count: usize,
    /// NCCL's number for their type, its `ncclDataType_t`: 7 is f32, 8 is f64.
    pub number: c_int,
}

impl Nccl {
    /// Returns the NCCL of this process, which is loaded when it is first asked for.
    ///
    /// # Errors
    /// [`LoadError`]; the next call looks for it again.
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

    /// Loads the library of this file.
    ///
    /// # Errors
    /// [`LoadError`].
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

    /// Returns the release, as `ncclGetVersion` says it: [`release_text`] writes it.
    pub fn release(&self) -> i32 {
        self.release
    }

    fn open(file: &str) -> Result<Self, String> {
        // What the system's loader said is its source.
        let reason =
            |error: libloading::Error| error.source().map_or_else(|| error.to_string(), ToString::to_string);
        // SAFETY: what NCCL does when it is loaded is safe; it is what any program that is linked to it does.
        let library = unsafe { Library::new(file) }.map_err(reason)?;
        /// A function, as long as the library is there.
        ///
        /// # Safety
        /// It has to be of the type.
        unsafe fn find<F: Copy>(library: &Library, name: &CStr) -> Result<F, libloading::Error> {
            // SAFETY: the caller's promise.
            let symbol: Symbol<'_, F> = unsafe { library.get(name.to_bytes_with_nul()) }?;
            Ok(*symbol)
        }
        let functions = || {
            // SAFETY: so NCCL's header declares them, since release 2.14 or before.
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

    /// Begins to link communicators. `bind` makes a GPU that of this thread.
    ///
    /// # Errors
    /// Of a call; some may have been made, which are to be given up.
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
        // Also where one has failed: else no later call of this thread would begin.
        let ended = self.end();
        begun.and(ended)
    }

    /// Begins to link the communicator of one GPU, that of this thread, with those of other processes: it is the one of number `rank` of `count`.
    ///
    /// # Errors
    /// Of the call; the communicator may have been made, and is to be given up.
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
        // SAFETY: the configuration lives during the call, which copies it, and the communicator's place until `abort` is through, which ends
        // what NCCL does for it.
        let begun = unsafe {
            (self.functions.comm_init_rank_config)(place.as_ptr(), count, id, rank, &raw mut config)
        };
        self.done(CALL, begun)
    }

    /// Makes a new name for a set of communicators.
    ///
    /// # Errors
    /// Of the call.
    pub fn unique_id(&self) -> Result<[u8; 128], CallError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the name lives during the call.
        self.done("ncclGetUniqueId", unsafe { (self.functions.get_unique_id)(&raw mut id) })?;
        Ok(id.0)
    }

    /// The GPUs whose communicators have not done yet what was asked for last, by `call`.
    ///
    /// # Errors
    /// What has failed since, of `call` or on the GPU.
    pub fn busy(&self, communicators: &Communicators, call: &'static str) -> Result<Vec<usize>, CallError> {
        let mut busy = Vec::new();
        for (gpu, place) in communicators.gpus.iter().zip(&communicators.all) {
            let mut state = 0;
            // SAFETY: the communicator has not been given up, since that takes it; the state lives during the call.
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

    /// Begins a group of calls, of this thread.
    ///
    /// # Errors
    /// Of the call.
    pub fn start(&self) -> Result<(), CallError> {
        // SAFETY: it takes nothing.
        self.done("ncclGroupStart", unsafe { (self.functions.group_start)() })
    }

    /// Ends the group, whose calls begin then. They are in the queues of the GPUs when none is [`busy`](Self::busy).
    ///
    /// # Errors
    /// Of the call, or of one of the group.
    pub fn end(&self) -> Result<(), CallError> {
        // SAFETY: it takes nothing; what the group's calls were given is there, see `all_reduce`.
        self.done("ncclGroupEnd", unsafe { (self.functions.group_end)() })
    }

    /// Calls for one replica's part of a sum, in the group that has begun, if one has.
    ///
    /// # Errors
    /// Of the call.
    ///
    /// # Safety
    /// The communicators are of this library, and linked. The vectors are on this replica's GPU and stay until the stream is through with the sum, or
    /// [`abort`](Self::abort) is; those of all replicas have the same number of elements, of the same type. The stream is of that GPU.
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
        // SAFETY: the caller's promise, and the communicator has not been given up, since that takes it.
        self.done(CALL, unsafe {
            (self.functions.all_reduce)(from, to, count, number, SUM, communicator, stream)
        })
    }

    /// Gives up communicators and what they are doing, for which it may wait, for ever where a GPU hangs.
    pub fn abort(&self, communicators: Communicators) {
        let abort = |place: &AtomicPtr<c_void>| {
            let communicator = place.load(Ordering::Acquire);
            if !communicator.is_null() {
                // SAFETY: it was made by NCCL, and nobody has it any more. Where that fails, there is nothing left to do about it.
                let _ = unsafe { (self.functions.comm_abort)(communicator) };
            }
        };
        // All at once: one may wait until the others are given up, too.
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
        // SAFETY: NCCL gives text that lives as long as the library, or null.
        let text = unsafe {
            let text = (self.functions.get_error_string)(result);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        Err(CallError { call, reason: text.unwrap_or_else(|| format!("ncclResult_t {result}")) })
    }
}

/// Checks that this release will do.
///
/// # Errors
/// [`LoadError::TooOld`].
fn check_release(release: c_int) -> Result<(), LoadError> {
    if release < LEAST.1 { Err(LoadError::TooOld { found: release_text(release) }) } else { Ok(()) }
}

/// A release as NVIDIA writes it: 2.14.3, of 21403; releases before 2.9 have a digit less.
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
